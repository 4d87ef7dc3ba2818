"""The files of a log: segments, indexes, partition directories, log directories. Knows no Spark."""
