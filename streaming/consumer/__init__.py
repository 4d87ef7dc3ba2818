"""Members of consumer groups: the library's Consumer, and a streaming query.

``consumer``, ``consumer_options``
    ``kafkalog.Consumer``: poll, commit, seek, close.
``fetching``
    rows of the partitions that a member has, and where they begin.
``query_member``
    a streaming query that has joined a group: its membership, and its offsets.

Read ``consumer`` first.
"""
