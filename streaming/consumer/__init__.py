"""A member of a consumer group that reads, without Spark.

``consumer``
    ``kafkalog.Consumer``: poll, commit, seek, close.
``joined``
    membership, heartbeats, and where the group begins.
``fetching``, ``cursors``
    rows of the partitions that a member has, and how far it has come.
"""
