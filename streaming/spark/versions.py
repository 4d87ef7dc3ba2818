"""What each Spark version offers data sources written in Python.

========================  =============  =====================================================
a part of Spark's API     since          where it is missing
========================  =============  =====================================================
admission control         4.2            Spark asks ``latestOffset()`` without start and limit:
                                         the reader keeps its own position. All triggers look
                                         alike, and ``availableNow`` is one batch
filter pushdown           4.1            filters do not decide what is read
stream writers for Arrow  4.1            4.0 hands Arrow to batch writers, and asks of a
                                         stream's writer only whether it is one, too
``repartitionById``       4.1            4.0 spreads rows by ranges of the number, and a task may
                                         get several numbers
``timezone`` of types     4.2            times of Arrow are those of UTC by themselves
========================  =============  =====================================================

Each part is looked for, and no version number is compared: vendors' builds have parts of later
versions. All other modules ask here. Classes that are missing have stand-ins of the same names, so
that a reader has one form for all versions.
"""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Final

import pyspark
from pyspark.sql import datasource

from kafkalog.files.system import once_per_process

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )

    _has_admission_control = True
except ImportError:  # what is never asked for a limit needs no class that does anything
    _has_admission_control = False

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands for Spark's."""

    class ReadLimit:  # type: ignore[no-redef]
        """Stands for Spark's."""

        def __init__(self, *limits: int) -> None:
            """Take what Spark's takes."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """Stands for Spark's."""

    ReadMaxBytes = ReadMaxRows = ReadMinRows = ReadLimit  # type: ignore[misc, assignment]

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamArrowWriter
    from pyspark.sql.types import DataType
elif hasattr(datasource, "DataSourceStreamArrowWriter"):
    StreamArrowWriter = datasource.DataSourceStreamArrowWriter
else:

    class StreamArrowWriter(datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter):
        """A stream's writer that Spark 4.0 hands Arrow batches to.

        Source: pyspark 4.0 ``sql/worker/write_into_data_source.py``.
        """


__all__ = [
    "HAS_ADMISSION_CONTROL",
    "HAS_FILTER_PUSHDOWN",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "ReadMinRows",
    "StreamArrowWriter",
    "SupportsTriggerAvailableNow",
    "arrow_type",
    "repartition_by_number",
    "spark_line",
    "warn_of_no_lag",
    "warn_of_no_pushdown",
    "warn_of_single_batch",
]

_LOGGER: Final = logging.getLogger("kafkalog.source")

HAS_ADMISSION_CONTROL: Final = _has_admission_control
"""Whether Spark says where a micro-batch starts, how much it may take, and by which trigger."""

HAS_FILTER_PUSHDOWN: Final = hasattr(datasource, "Filter")
"""Whether a batch reader is told the filters of a query."""


def spark_line() -> str:
    """Return the line of Spark that runs, such as ``4.2``: Java libraries are built for one."""
    return ".".join(pyspark.__version__.split(".")[:2])


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the type of Arrow's that has a type of Spark's; times are UTC's."""
    from pyspark.sql.pandas.types import to_arrow_type  # noqa: PLC0415 - few need it

    if "timezone" in inspect.signature(to_arrow_type).parameters:
        return to_arrow_type(kind, timezone="UTC")
    return to_arrow_type(kind)


def repartition_by_number(rows: DataFrame, count: int, number: Column) -> DataFrame:
    """Bring the rows of each number below ``count`` into one task, most tasks having one number."""
    if hasattr(rows, "repartitionById"):
        return rows.repartitionById(count, number.cast("int"))
    return rows.repartitionByRange(count, number)


@once_per_process
def warn_of_single_batch(options: tuple[str, ...]) -> None:
    """Say once per process that ``options`` end a query early with some triggers.

    For a Spark without admission control.
    """
    if options:
        _LOGGER.warning(
            "Spark %s has no admission control for sources written in Python: with the triggers "
            "availableNow and once the query ends after a single micro-batch, which %s may hold "
            "back or cut short. Run it until nothing is new, leave that out, or use Spark 4.2",
            pyspark.__version__,
            " and ".join(options),
        )


@once_per_process
def warn_of_no_lag() -> None:
    """Say once per process that a query's progress cannot tell how far it is behind."""
    _LOGGER.warning(
        "Spark %s asks no source written in Python for its newest offsets, so a query's progress "
        "tells no lag: kafkalog.lag tells it from a checkpoint's offsets. Spark 4.2 asks",
        pyspark.__version__,
    )


@once_per_process
def warn_of_no_pushdown() -> None:
    """Say once per process that ``filterPushdown`` has no effect: Spark tells no filters."""
    _LOGGER.warning(
        "Spark %s tells sources written in Python no filters: filterPushdown has no effect, and "
        "all that the other options choose is read. Spark 4.1 and later tell them",
        pyspark.__version__,
    )
