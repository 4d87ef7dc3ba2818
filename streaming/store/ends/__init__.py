"""Where partitions end: one rule, the files that it goes by, and looking at them again.

``rule``
    how far a partition is committed, and where readers stop.
``tracker``, ``tracked_log``
    the ends of chosen partitions, followed cheaply.
``recorded``, ``broker_marks``
    what commit states and a broker's checkpoints say, for readers and for writers.
``tiered``, ``missing_parts``
    records that lie in a remote tier; members and partitions that are missing.
"""
