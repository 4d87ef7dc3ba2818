"""Reading a log forward: slices, transactions, timestamps, damage.

``slices``, ``slice_reader``
    byte ranges, and reading one to its end or not at all.
``timestamps``
    offsets by timestamp, and batches that cannot hold a wanted one.
``transactions``, ``aborted_transactions``
    the last stable offset; what ``read_committed`` leaves out.
``salvage``, ``verification``, ``walk``
    reading on after damage; checking a segment; batch after batch.
"""
