"""Batches that tasks have written, and that no commit has taken yet.

``formats``
    how batches of a topic are made.
``staged_files``, ``staged_run``
    what a task writes, on each node that will hold it, and what it says of it, with a digest of the
    rows; records of internal topics that the driver attaches.
``in_objects``
    the same in an object store.
``staged_source``
    a staged run on its way into a log: record batches, or message sets.

Read ``staged_files`` first.
"""
