"""What an operator does to a set of log directories.

``topics``
    create, alter, delete; starts and ends of a copy.
``retention``, ``old_segments``
    delete the oldest records: by what was given to topics, DeleteRecords, now and then.
``compaction``, ``cleaning``
    compact topics, as a broker's cleaner does.
``backup``
    copies of log directories.
``tier_restore``
    log directories out of a remote tier.
``recovery``
    bring logs into order: roll back, truncate a torn tail (by ``commit.tail_recovery``), rebuild
    indexes; and dry runs of it.
``salvage``
    go on with a damaged log: cut it, or take bytes out of its middle, because a person asks for it.
``groups``
    consumer groups: deleted topics, expiration.
``broker``, ``nodes``
    give a set to a broker and take it over; the nodes of a replicated set.

Read ``topics`` first.
"""
