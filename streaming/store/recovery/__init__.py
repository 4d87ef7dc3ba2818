"""Mend a set before it is written: unfinished commits, unsynced tails, lost partitions.

``rollback``, ``intent_verification``
    an unfinished commit is rolled back: exactly the bytes that its intent names.
``unsynced``, ``unsynced_tail``
    records that ``flush=os`` left to the system, and what is done after a loss of power.
``lost_partitions``, ``partition_states``, ``recovery_points``
    what the commit state knows and nobody has; states and recovery points after a recovery.

Read ``rollback`` first.
"""
