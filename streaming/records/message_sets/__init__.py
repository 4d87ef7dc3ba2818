"""Message sets of magic 0 and 1, both ways.

``layout``
    the bytes.
``reader``, ``decode_kernels``
    entries made ready, and records found in them.
``builder``, ``encode_kernels``
    columns in, message sets out.
"""
