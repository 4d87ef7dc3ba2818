"""What Spark sees: the data source, its readers and writers, and what each version has.

``datasource``
    the data source: it hands out readers and writers.
``readers``, ``writers``
    readers and writers as Spark sees them, over :mod:`kafkalog.streaming.source` and
    :mod:`kafkalog.streaming.sink`.
``versions``
    what the Spark that runs has: nobody else asks.
``listeners``, ``worker``
    listeners for streaming queries; what a Python process of Spark does beside its tasks.

Read ``datasource`` first.
"""
