"""SQL over log directories by DuckDB, without a JVM: topics are tables.

``session``
    a connection that can open nothing but what was asked for, and its prompt.
``tables``
    topics and views as Arrow datasets, with filters that decide what is read.
"""
