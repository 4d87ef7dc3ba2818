"""Small durable state: Kafka's checkpoint files, the commit state. Knows no log and no Spark.

``broker``
    the small files that a broker keeps beside its segments.
``sealed_file``
    text files of ours, with a version and a checksum; the others are such files.
``commit_state``, ``state_file``, ``committed``
    what is committed, its bytes, and how a reader finds it out.
``intent``
    what a commit is about to do.
``bucket_state``
    what is committed of a log in an object store.
``voters``
    the nodes of a replicated set.
``query_checkpoint``, ``topic_ids``
    what Spark's checkpoint says; ids that outlast a run.

Read ``commit_state`` first.
"""
