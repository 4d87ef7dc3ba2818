"""Where partitions end: one rule, the files that it goes by, and reading them again.

``rule``
    how far a partition is committed, and where readers stop.
``tracker``, ``tracked_log``
    the ends of chosen partitions, followed cheaply.
``recorded``
    what commit states, intents and a broker's checkpoints say, for readers and for writers.
``tiered``
    records that lie in a remote tier.

Read ``rule`` first.
"""
