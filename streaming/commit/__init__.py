"""A batch's way from staged files into logs, by one rename.

``committer``
    the steps of a commit, and its outcome.
``planning``, ``append``
    the plan of a commit; which bytes go where; the runs of one partition on their way, and where
    logs ended, for the next commit.
``versions``
    was a batch write with an id written already? (For queries: ``store/identity``.)
``states``
    the commit state that follows; what ``flush=os`` left unsynced is made durable.
``tail_recovery``
    cut a torn tail, or go on above what others have appended.
``preserved_offsets``
    offsets that are kept.
``replication``
    the same bytes for each replica in sync.
``bucket_commit``
    a commit of a log in an object store.
``staging``
    batches that tasks have written, before the commit.

Read ``committer`` first.
"""
