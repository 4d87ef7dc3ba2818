"""Members of consumer groups: the library's Consumer, and a streaming query.

``consumer``, ``consumer_options``
    ``kafkalog.Consumer``: poll, commit, seek, close.
``fetching``, ``cursors``
    rows of the partitions that a member has, where they begin, and how far it has come.
``query_member``, ``query_control``
    a streaming query that has joined a group: its membership, and its offsets.

Read ``consumer`` first.
"""
