"""A streaming query of Spark as a member of a consumer group.

``joined_control``
    the offsets of the query: of what it owns, and of nothing else.
``query_member``
    the member, from Spark's first question to the process's end.
``member_options``
    how it takes part.
"""
