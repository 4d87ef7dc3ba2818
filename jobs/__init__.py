"""Pipelines for spark-submit, and the command line.

``ingest``, ``archive``, ``restore``, ``mirror``, ``replay``, ``maintain``, ``rebuild``
    the scripts; ``archiving``, ``restoring``, ``mirroring`` do the work of three.
``pipelines``
    what pipelines share, and the work of the others.
``session``, ``python_daemon``, ``python_launcher``
    the Spark session of a pipeline, and how its Python processes start.
``process``
    a command line: arguments, errors, signals; jars.
``inspection``
    rows about a log; ``cli``, ``report`` and ``sql`` show them.
``demo``
    the main job.

Read ``archive`` and ``archiving`` first.
"""
