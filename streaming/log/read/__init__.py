"""Reading a log forward: slices, transactions, timestamps, damage.

``slice_reader``
    byte ranges, and reading one to its end or not at all.
``timestamps``
    offsets by timestamp, and batches that cannot hold a wanted one.
``transactions``
    the last stable offset; which batches belong to aborted transactions.
``salvage``, ``verification``
    batch after batch, past damage; checking a segment.

Read ``slice_reader`` first.
"""
