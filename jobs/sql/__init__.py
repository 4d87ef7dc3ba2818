"""SQL over log directories by DuckDB, without a JVM: topics are tables.

``session``
    a connection that can open nothing but what was asked for.
``tables``
    topics and views as Arrow datasets, with filters that decide what is read.
``prompt``
    the prompt, with a history.
"""
