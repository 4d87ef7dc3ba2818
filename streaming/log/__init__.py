"""The files of a log: segments, indexes, partition directories, log directories. Knows no Spark.

``files``, ``segment``, ``segments``, ``partition_log``, ``log_dir``
    from file names to all partitions of log directories.
``log_end``, ``retention``
    where valid batches end; which segments have expired.
``index``, ``append``, ``read``, ``compaction``
    indexes; appending and recovery; reading forward; the cleaner.
``swap``, ``rewrite``
    replace segments; take bytes out of a log.
``producer_state``, ``producer_replay``
    producers at an offset.

Read ``segment`` first.
"""
