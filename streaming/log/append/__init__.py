"""Appending to a log, and bringing segments and indexes into order.

``appender``, ``growth``
    which segment each batch goes to; the bytes, and the index entries that come with them.
``recovery``
    cut a segment where its valid batches end, and rebuild its indexes.
"""
