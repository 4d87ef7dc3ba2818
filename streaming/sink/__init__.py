"""The Spark sink: columns, partitioning, what a task does with its rows.

``write_options``
    options; what the driver decides for all tasks.
``task_writer``
    a task's rows, from partition to staged batch.
``row_columns``
    which columns there may be.
``partition_kernels``
    which partition a row goes to.

Read ``task_writer`` first.
"""
