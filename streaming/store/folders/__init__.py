"""Folders of partitions in a set: deleted, moved, or not of this set.

``deleted``
    which folders are left of topics that are being deleted, for whoever lists partitions.
``deletion``, ``moves``
    delete topics; put a partition's folder into another log directory.
``ownership``
    folders that lie in a log directory and are not its own.
"""
