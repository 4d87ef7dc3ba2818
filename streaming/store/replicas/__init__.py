"""A set of several nodes: who votes, who is in sync, who leads, and how a state is committed.

``quorum``, ``controller``, ``election``
    a commit by a majority; what was committed last, and other voters; placement and leaders.
``open_nodes``
    open a set, and rebuild what a node of it has lost.
``in_sync``, ``copying``
    bring replicas up to date: cut where one differs from its leader, and copy what it lacks.

Read ``quorum`` first.
"""
