"""A log in an object store: its commits are objects, each created only if its name is free.

``bucket_log``
    open a log, follow its commits, commit; credit, floors, checkpoints.
``sweeping``
    raise the floor below old commits, and delete them.
``merging``
    put what many commits have left in pieces into segments, and into objects that partitions share.
``bucket_files``
    the folders and files that follow from the state of a log.
``bucket_store``
    show them to readers.
``numbered_extents``
    read the batches that they stand for, and give them their offsets.

What the objects hold is in :mod:`kafkalog.checkpoints.bucket_state`; what the store is asked, in
:mod:`kafkalog.files.objects`.
"""
