"""The log, and what Spark does with it: from bytes (``records``) to Spark (``spark``).

From bottom to top; each package imports those above it in this list, and none below:

``records``, ``options``
    bytes of batches; what a user may say.
``log``
    segments, indexes, partitions, log directories, compaction.
``coordinator``
    Kafka's internal topics.
``store``
    a set of log directories: sessions, locks, commit state, rollback, replicas.
``commit``
    a batch's way into logs.
``objects``
    the same into an object store.
``groups``
    consumer groups.
``source``, ``sink``, ``admin``
    what a query reads, what it writes, what an operator does.
``consumer``, ``lookup``
    members of groups; the newest row of each key.
``spark``, ``api``
    what Spark sees, and the same from Python.

``docs/architecture.md`` follows a row through them. Read ``source`` or ``sink`` first.
"""
