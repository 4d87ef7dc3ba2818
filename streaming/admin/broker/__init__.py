"""Give a set of log directories to a broker (handover), and take it over again (takeover).

``handover``
    both ways for one node; ``node_handover`` and ``node_takeover`` for several.
``handover_state``
    the commit state and the nodes of what changes hands; what the cluster must know.
``open_transactions``
    what becomes of transactions that a dead broker has left open.

Read ``handover`` first.
"""
