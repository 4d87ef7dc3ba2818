"""Consumer groups over log directories: who reads which partition.

``membership``, ``member_files``
    one member; the files by which members speak, and who is alive by them.
``rebalance``, ``assignors``
    the next assignment, by Kafka's four assignors.
``group_commits``, ``group_log``
    what is decided about a group, committed and read.
``planned_commit``, ``position_topics``, ``administration``
    positions with a query's rows; positions of an earlier topic; write, reset and delete.

Read ``membership`` first.
"""
