"""Compact partitions on Spark: one task for each, the dirtiest first.

Executors find it by its name, which they cannot a script that was started by its path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafkalog.errors import KafkaLogError
from kafkalog.files.system import system
from kafkalog.streaming.admin.cleaning import CleanedPartition, clean_partition
from kafkalog.streaming.store.locks import CleanerBusyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from kafkalog.streaming.admin.cleaning import CleaningTask

__all__ = ["Cleaned", "clean", "clean_on_spark"]

_PAUSE_S: Final = 0.5
_LONGEST: Final = 500


class Cleaned(NamedTuple):
    """What became of a partition: it is ``done``, or why not."""

    done: CleanedPartition | None = None
    busy: str = ""
    problem: str = ""


def clean_on_spark(spark: SparkSession, tasks: Sequence[CleaningTask]) -> list[Cleaned]:
    """Clean partitions by tasks of their own, which begin in this order.

    The executors must see the log directories under the same paths. Where a task fails, as one
    whose process was killed for want of memory, Spark gives the others up: they are done one by one
    then.
    """
    if not tasks:
        return []
    try:
        return spark.sparkContext.parallelize(tasks, len(tasks)).map(_clean_in_task).collect()
    except Exception as error:
        reason = _reason(error)
        if reason is None or _has_ended(spark):
            raise
    if len(tasks) == 1:
        return [Cleaned(problem=f"{tasks[0].topic_partition} was not compacted: {reason}")]
    return [found for task in tasks for found in clean_on_spark(spark, [task])]


def _reason(error: Exception) -> str | None:
    """Return what Spark says of a job that failed, in one line; None if it is something else."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415

    if not isinstance(error, Py4JJavaError):
        return None
    text = str(error.java_exception.getMessage()).strip()
    return text.partition("\n")[0][:_LONGEST]


def _has_ended(spark: SparkSession) -> bool:
    java: Any = spark.sparkContext._jsc  # noqa: SLF001 - Spark offers no other way
    return java is None or bool(java.sc().isStopped())


def _clean_in_task(task: CleaningTask) -> Cleaned:
    from pyspark import TaskContext  # noqa: PLC0415 - what needs no Spark imports this, too

    context = TaskContext.get()
    return clean(task, attempt=0 if context is None else context.attemptNumber())


def clean(task: CleaningTask, *, attempt: int = 0) -> Cleaned:
    """Clean a partition in this process.

    The second attempt of a speculative task waits for the first one: if it came back at once, Spark
    would take it for done, and kill the one that works.
    """
    while True:
        try:
            return Cleaned(clean_partition(task))
        except CleanerBusyError as error:
            if not attempt:
                return Cleaned(busy=f"{task.topic_partition}: {error}")
        except (KafkaLogError, OSError) as error:
            return Cleaned(problem=str(error))
        system.sleep(_PAUSE_S)
