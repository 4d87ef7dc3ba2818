"""The command ``kafkalog``: look at log directories, bring them into order, give them away.

``app``
    the commands by name; each is a function of one of the other modules.
``arguments``, ``record_arguments``
    options that several commands share.
``output``, ``record_printing``
    tables, JSON, exit codes.

A command asks :mod:`kafkalog.jobs.inspection` for rows, or :mod:`kafkalog.streaming.admin` to act.
Read ``app`` and ``topics`` first.
"""
