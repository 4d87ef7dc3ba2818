"""The indexes of a segment: by offset, by timestamp, of aborted transactions.

``sparse``
    ascending entries, and the hot-region search; ``offset`` and ``time`` are such indexes.
``txn``
    aborted transactions.
"""
