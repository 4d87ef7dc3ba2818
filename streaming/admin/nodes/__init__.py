"""The nodes of a replicated set: elect leaders, move replicas, change voters, recover.

``replicas``
    which replicas there are, who leads, who is in sync, and whether they hold the same bytes.
``elect``, ``reassign``, ``move_folders``, ``voters``
    because a person asks for it.
``node_recovery``, ``replica_upkeep``
    bring nodes into order; bring replicas in sync while writers continue.

Read ``replicas`` first.
"""
