"""Compaction of one partition's log, as Kafka's cleaner does it; knows no set and no locks.

``cleanable``
    what can be cleaned, whether a broker would do it now, and which segments become one.
``offset_map``, ``map_kernels``
    the last offset of each key, in memory of a fixed size.
``batch_filter``, ``transactions``, ``rewrite_kernels``
    what becomes of each batch: copied, emptied, encoded again, or gone.
``cleaner``
    one round: the map is filled, segments are written beside those that they replace.

Read ``cleaner`` first.
"""
