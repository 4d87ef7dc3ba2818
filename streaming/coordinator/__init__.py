"""The internal topics of Kafka's coordinators: schemas, records, views, positions of groups.

``message_schema``, ``schemas``
    Kafka's message format, and the records of the internal topics.
``records``, ``views``, ``view_schemas``
    records as plain values and as Arrow.
``group_metadata``, ``group_positions``, ``group_replay``, ``offset_commits``
    groups and their positions, read and written.
``cluster_metadata``, ``cluster_partitions``
    what ``__cluster_metadata`` says of topics and partitions.

Read ``message_schema`` first.
"""
