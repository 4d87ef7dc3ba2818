"""Mend a set before it is written: unfinished commits, unsynced tails, lost partitions.

``rollback``, ``intent_verification``
    cut off what an unfinished commit has appended: exactly the bytes that its intent names.
``unsynced``, ``unsynced_tail``
    records that ``flush=os`` left unsynced, and what is cut after a loss of power.
``lost_partitions``, ``partition_states``
    what the commit state knows and nobody has; states and recovery points after a recovery.

Read ``rollback`` first.
"""
