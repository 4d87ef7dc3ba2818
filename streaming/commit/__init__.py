"""A batch's way from staged files into logs, by one rename.

``committer``
    the steps of a commit, and its outcome.
``planning``, ``append``, ``commit_plan``
    which bytes go where; the runs of one partition on their way.
``states``, ``versions``
    the commit state that follows; batch writes with an id.
``tail_recovery``, ``preserved_offsets``, ``unsynced``
    ends of logs that others have written; offsets that are kept; what is not on the disk yet.
``replication``
    the same bytes for each replica in sync.
``attached_records``, ``query_checkpoint``, ``row_digest``
    records of internal topics; Spark's checkpoint; what a batch holds as a number.

Read ``committer`` first.
"""
