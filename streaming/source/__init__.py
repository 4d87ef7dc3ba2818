"""The source: offsets, admission, planning of splits, reading to Arrow.

``read_options``, ``subscription``, ``offsets``
    what is asked for.
``start``, ``end_offsets``, ``stream_end``, ``admission``, ``stream_control``
    where a query starts, what is new, how much a micro-batch takes.
``loss``, ``recreated``, ``completeness``, ``pacing``
    offsets that are gone; recreated topics; directories that are away; idle queries.
``batch_plan``, ``planner``, ``pruning``, ``filters``
    from offsets to splits.
``reading``, ``schema``, ``views``
    what a task does; the rows.
``arguments``
    what functions for Python are given, as the texts that options are parsed from.

Read ``stream_control`` and ``reading`` first.
"""
