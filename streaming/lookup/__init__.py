"""The newest row of each key: the view ``latest``, and the functions get and scan.

``latest``, ``seen_keys``, ``key_kernels``
    the newest row of every key, or of those wanted: a log is read from its end, and keys that do
    not fit go to a file.
``lookup``, ``block_cache``
    the newest record of some keys, with what the process keeps of the log between calls.
``ordered_rows``, ``memtable_kernels``
    rows in the order of their keys: LevelDB's memtable, and sorted runs on disk.

Read ``latest`` first, then ``lookup``.
"""
