"""The bytes of record batches and message sets, both ways. Knows no files and no Spark."""
