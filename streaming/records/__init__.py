"""The bytes of record batches and message sets, both ways. Knows no files and no Spark.

``batch_layout``, ``batch_header``, ``batch``
    where the fields of a batch lie; headers, and checksums.
``columns``, ``row_buffers``
    batches in, Arrow columns out.
``builder``, ``open_batch``, ``record_columns``
    columns in, batches out.
``message_sets``, ``control``
    magic 0 and 1; markers of transactions.
``compression``, ``jit``, and what ends in ``_kernels``
    codecs; loops as machine code, each beside the table of its format.

Read ``batch_layout`` first, then ``columns``.
"""
