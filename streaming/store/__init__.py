"""A set of log directories: who belongs to it, what is committed, who may change it.

``session``
    exclusive access to a set: entering locks and recovers it, leaving releases it.
``open_set``, ``log_set``, ``nodes``, ``locks``, ``file_systems``, ``policy``
    identify a set and its members; hold it; what a writer may do.
``identity``
    was this batch written already?
``topics``, ``log_starts``, ``folders``
    topics and their folders; where logs start.
``guard``, ``cleanup``, ``stale_entries``, ``expired_segments``, ``cleaner_lock``
    around a commit: keep a broker out, clean up; ``appender_cache`` remembers ends.
``ends``
    where logs end, for readers.
``recovery``
    mend a set before it is written.
``replicas``
    the nodes of a replicated set.

Read ``session`` first.
"""
