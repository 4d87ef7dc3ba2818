"""Give a set of log directories to a broker, and take it back.

``handover``
    both ways for one node; ``node_handover`` and ``node_takeover`` for several.
``handover_state``, ``handed_nodes``, ``cluster_check``
    the commit state of what changes hands; what both ways share; what the cluster must know.
``open_transactions``
    what becomes of transactions that a dead broker has left open.

Read ``handover`` first.
"""
