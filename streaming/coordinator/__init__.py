"""The internal topics of Kafka's coordinators: schemas, records, views, positions of groups.

``message_schema``, ``schemas``
    Kafka's message format, and the records of the internal topics as plain values.
``views``, ``view_schemas``
    the same as Arrow.
``group_metadata``, ``group_replay``
    groups and their positions, written and read.
``transaction_states``
    how transactions ended.
``cluster_metadata``
    what the metadata log of a cluster says of topics and partitions.
``remote_log_metadata``
    which segments lie in a remote tier.

Read ``message_schema`` first.
"""
