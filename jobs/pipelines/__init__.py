"""What the pipelines share: inputs, checkpoints, and whether a batch continues its target.

The pipelines themselves are modules of :mod:`kafkalog.jobs`, one to start and one that works.

``supervised``
    run a query that somebody waits for, and end it between two micro-batches.
``inputs``, ``ingesting``
    what a pipeline can take in, and how it becomes rows of a topic.
``continuation``, ``copied_logs``, ``topic_facts``
    what a target holds of a source, and what may follow.
``checkpoint_folder``, ``delta_tables``
    checkpoints and Delta tables, on any of Spark's file systems.
``spark_cleaning``
    compact partitions by tasks of Spark.
``replaying``, ``replay_checkpoint``, ``restore_plan``
    play a range again; what a topic is to be after it is restored.

Read ``continuation`` first.
"""
