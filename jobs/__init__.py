"""Pipelines for spark-submit, and the command line.

``ingest``, ``archive``, ``restore``, ``mirror``, ``replay``, ``maintain``
    the scripts; ``archiving``, ``restoring``, ``mirroring``, ``replaying`` do their work.
``continuation``
    where a batch continues its target, or why it is refused.
``session``, ``running``, ``arguments``, ``attended``
    a Spark session, a command line, and a query that somebody waits for.
``inspection``
    rows about a log; ``cli``, ``report``, ``plots`` and ``sql`` show them.

Read ``archive`` and ``archiving`` first.
"""
