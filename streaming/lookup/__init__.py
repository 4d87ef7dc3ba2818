"""The newest row of each key: ``view=latest``, ``get`` and ``scan``.

``latest``, ``newest_rows``, ``seen_keys``, ``spilled_keys``, ``spill_file``
    the newest row of every key: a log is read from its end, and keys that do not fit go to a file.
``lookup``, ``key_search``, ``block_cache``, ``wanted_keys``
    the newest record of some keys, with what the process keeps of the log between calls.
``ordered_rows``, ``memtable``
    rows in the order of their keys: LevelDB's memtable, and sorted runs on disk.

Read ``latest`` first, then ``lookup``.
"""
