"""Rows about a log as plain values: command line, report, plots and SQL show them.

``log_dirs``
    the directories that are asked about, and what is missing in them.
``topics``, ``batches``, ``groups``
    what the commands that show something show, as rows.
``tiers``
    what lies in a remote tier.
``records``, ``figures``
    records that somebody asks for; numbers of them.
``lag``
    who reads topics, and how far each is behind.
``metrics``
    lag, sizes, ages, writers and disks, as Prometheus is given them.
``units``
    what rows hold, as people read it.

Read ``topics`` first.
"""
