"""The nodes of a replicated set: elect leaders, move replicas, change voters, recover.

``replicas``
    which replicas there are, who leads, who is in sync; bring those that lag in sync.
``elect``, ``reassign``, ``voters``
    because a person asks for it.
``node_recovery``
    bring nodes into order.

Read ``replicas`` first.
"""
