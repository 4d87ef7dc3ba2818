"""A set of several nodes: who votes, who is in sync, who leads, and how a state is decided.

``quorum``, ``controller``, ``election``
    where a commit is decided by a majority; what was decided last; the next leaders.
``open_nodes``, ``starting``, ``voter_changes``
    open a set, start one, change its nodes.
``in_sync``, ``copying``, ``rewriting``
    bring replicas up to date.
``placement``
    on which nodes new replicas lie.

Read ``quorum`` first.
"""
