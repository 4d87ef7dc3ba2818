"""Batches that tasks have written, and that no commit has taken yet.

``staged_files``, ``staged_run``
    what a task writes, and what it says of it.
``staged_source``, ``message_source``
    a staged run on its way into a log.
``formats``, ``on_nodes``
    how batches of a topic are made; copies on the nodes that will hold them.
"""
