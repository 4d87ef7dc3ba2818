"""What an operator does to a set of log directories.

``topics``
    create, alter, delete.
``retention``, ``old_segments``
    delete the oldest records: by what was given to topics, DeleteRecords, now and then.
``compaction``, ``cleaning``
    compact topics, as a broker's cleaner does.
``backup``, ``folder_copy``, ``copied_bounds``
    copies of log directories.
``recovery``, ``salvage``, ``damage``, ``preview``
    bring logs into order; go on with a damaged one.
``groups``
    consumer groups: deleted topics, expiration.
``broker``, ``nodes``
    give a set to a broker and take it back; the nodes of a replicated set.
"""
