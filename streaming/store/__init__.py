"""A set of log directories: who belongs to it, what is committed, who may change it.

``session``
    exclusive access to a set: entering locks and recovers it, leaving releases it.
``log_dirs``
    which partitions live in log directories, of one node or several; which folders are theirs.
``open_set``, ``log_set``, ``nodes``, ``locks``, ``file_systems``, ``policy``
    identify a set and its members, or start one, of one node or several; hold it; store intent and
    commit state; what a writer may do.
``identity``
    was this batch of a query written already?
``topics``, ``folder_changes``
    topics; delete or move the folder of a partition.
``broker_files``
    after a commit: Kafka's checkpoint files follow.
``ends``
    where logs end, for readers.
``recovery``
    mend a set before it is written: roll back, and cut, what a crash has left.
``replicas``
    the nodes of a replicated set.

Read ``session`` first.
"""
