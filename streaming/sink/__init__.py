"""The Spark sink: columns, partitioning, what a task does with its rows.

``write_options``, ``write_plan``
    options; what the driver decides for all tasks.
``task_writer``, ``open_topic``
    a task's rows, from partition to staged batch.
``row_columns``, ``arrow_data``
    which columns there may be; rows as a program has them.
``partitioner``, ``partition_kernels``
    which partition a row goes to.
``group_writer``
    positions of a group.

Read ``task_writer`` first.
"""
