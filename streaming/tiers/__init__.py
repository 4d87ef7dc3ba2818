"""Remote tiers (KIP-405): a broker's log directory and what it has moved to a store, as one log.

``layouts``
    what lies where: the names that Kafka's, Aiven's and Pinterest's plugins give to objects.
``aiven``
    Aiven's manifests and chunks: compressed, encrypted, read by ranges.
``remote_segments``
    which remote segments are there to read, and which of them make up the log.
``tiered_store``
    the folders and files that readers see.

What brokers write of remote segments is in ``coordinator/remote_log_metadata``. Read ``layouts``
first.
"""
