"""Rows about a log as plain values: command line, report, plots and SQL show them.

``log_dirs``, ``missing``
    the directories that are asked about, and what is missing in them.
``topics``, ``batches``, ``files``, ``groups``
    what the commands that look show, as rows.
``records``, ``counting``, ``figures``
    records that somebody asks for; numbers of them.
``readers``, ``lag``
    who reads topics, and how far each is behind.
``units``
    what rows hold, as people read it.
"""
