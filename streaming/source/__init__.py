"""The source: offsets, admission, planning of splits, reading to Arrow.

``subscription``, ``offsets``
    which partitions, and their offsets.
``stream_control``
    a streaming query: what is new, what the next micro-batch takes.
``start``, ``end_offsets``, ``admission``
    where a query starts and ends; where logs end; how much a micro-batch takes, and how often.
``loss``
    offsets that are gone, topics that were recreated.
``batch_plan``, ``planner``, ``filters``
    from offsets to splits.
``reading``, ``schema``
    what a task does; the rows, and the option ``view``.
``decoded``
    columns by the schemas of a registry.
``arguments``
    what functions for Python are given, as the texts that options are parsed from.

The options are in :mod:`kafkalog.streaming.options.read_options`. Read ``stream_control`` and
``reading`` first.
"""
