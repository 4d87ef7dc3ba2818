"""Kafka's log without the broker: read and write Kafka's log directories from Spark and Python.

:func:`append`, :func:`read`, :func:`tail`, :func:`get`, :func:`scan` and :func:`cache_stats`
    Arrow tables in and out, and look-ups of keys, without Spark.
:class:`Consumer`, :func:`assign_partitions`
    a member of a consumer group, and who reads which partitions in a consumer group.

``kafkalog.streaming``
    the log itself (``records`` for bytes, ``log`` for files), the Spark ``source`` and ``sink``.
``kafkalog.checkpoints``
    small durable state: Kafka's checkpoint files and the sink's commit state.
``kafkalog.jobs``
    pipelines for ``spark-submit`` and the command line.
``kafkalog.errors``, ``kafkalog.model``, ``kafkalog.texts``
    the error tree, the vocabulary that all share, and text from outside made printable.

Importing this package is cheap on purpose: Spark imports it in six kinds of process. Nothing here
imports pyspark, pyarrow, numba or a codec; the functions are imported when first asked for.
"""

import logging
from typing import TYPE_CHECKING

from kafkalog.texts import printable

if TYPE_CHECKING:
    from kafkalog.streaming.api import (
        append,
        assign_partitions,
        cache_stats,
        get,
        read,
        scan,
        tail,
    )
    from kafkalog.streaming.consumer.consumer import Consumer

__version__ = "0.1.0"

__all__ = [
    "Consumer",
    "__version__",
    "append",
    "assign_partitions",
    "cache_stats",
    "get",
    "read",
    "scan",
    "tail",
]


def _is_logged(record: logging.LogRecord) -> bool:
    """Let a log message through on one line: names that writers chose are in it."""
    text = record.getMessage()
    if not text.isprintable():
        record.msg, record.args = printable(text), None
    return True


for _name in ("border", "groups", "jobs", "log", "options", "progress", "sink", "source"):
    logging.getLogger(f"kafkalog.{_name}").addFilter(_is_logged)


def __getattr__(name: str) -> object:
    if name.startswith("_") or name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "Consumer":
        from kafkalog.streaming.consumer.consumer import Consumer  # noqa: PLC0415

        return Consumer
    from kafkalog.streaming import api as library  # noqa: PLC0415

    return getattr(library, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
