"""The command line: look at log directories, bring them into order, give them away.

``app``
    the commands by name; each is a function of one of the other modules.
``topics``, ``batches``, ``find``, ``lookup``, ``sql``, ``report``
    commands that show something.
``append``, ``groups``, ``care``, ``brokers``, ``nodes``
    commands that change something.
``arguments``, ``line_input``
    options that several commands share; records from standard input.
``output``, ``record_printing``
    tables, JSON, exit codes; what destroys asks first.

A command asks :mod:`kafkalog.jobs.inspection` for rows, or :mod:`kafkalog.streaming.admin` to act.
Read ``app`` and ``topics`` first.
"""
