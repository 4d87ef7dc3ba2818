"""The files of a log: segments, indexes, partition directories, log directories. Knows no Spark.

``files``, ``segment``, ``segments``, ``partition_log``, ``log_dir``
    from file names to the folders of partitions.
``indexes``
    the index files: by offset, by time, of aborted transactions.
``valid_batches``, ``history``, ``retention``
    where valid batches end; whether a position is of this log; which segments have expired.
``appender``, ``growth``
    append batches: which segment each goes to, the bytes, and the index entries that come along.
``recovery``
    truncate one segment, at the end of its valid batches or where its caller says; rebuild indexes.
``read``, ``compaction``
    reading forward; the cleaner.
``swap``
    replace segments; take bytes out of a log, or cut off its end.
``producer_state``
    producers at an offset.

Read ``segment`` first.
"""
