"""Kafka's log without the broker: read and write Kafka's log directories from Spark and Python.

``kafkalog.streaming``
    the log itself (``records`` for bytes, ``log`` for files), the Spark ``source`` and ``sink``.
``kafkalog.checkpoints``
    small durable state: Kafka's checkpoint files and the sink's commit state.
``kafkalog.jobs``
    pipelines for ``spark-submit`` and the command line.
``kafkalog.errors``, ``kafkalog.model``
    the error tree and the vocabulary that all of them share.

Importing this package is cheap on purpose: Spark imports it in six kinds of process. Nothing here
imports pyspark, numba or a codec.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
