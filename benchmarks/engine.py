"""Python sources that do nothing of their own: what is left is what Spark takes for any of them.

Classes within a function travel to the workers whole: those cannot import a benchmark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from kafkalog.streaming.spark.versions import SupportsTriggerAvailableNow

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from benchmarks.rows import Shape
    from pyspark.sql.types import StructType

__all__ = [
    "DROPPING_SINK",
    "EMPTY_SOURCE",
    "READY_SOURCE",
    "dropping_sink",
    "empty_source",
    "ready_source",
]

DROPPING_SINK: Final = "Python sink that drops its rows"
EMPTY_SOURCE: Final = "empty Python source"
READY_SOURCE: Final = "Python source of ready batches"

_SCHEMA: Final = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,"
    " timestampType INT"
)
_BATCH_ROWS: Final = 8192
_BATCH_BYTES: Final = 4 << 20


def ready_source(  # noqa: C901 - four small classes
    shape: Shape, format_name: str = "ready"
) -> type[DataSource]:
    """Return a source of rows of the shape: the same Arrow batch again and again.

    No reader can hand over rows sooner: it is what the pipe to Spark and Spark itself allow. As a
    stream it has all of them at once, and no more.
    """

    class Ready:
        def __init__(self, names: list[str]) -> None:
            self.names = names

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            import numpy as np  # noqa: PLC0415
            import pyarrow as pa  # noqa: PLC0415

            rows = min(_BATCH_ROWS, max(1, _BATCH_BYTES // (shape.key_bytes + shape.value_bytes)))
            time = pa.array(np.full(rows, 1_700_000_000_000_000)).cast(pa.timestamp("us", "UTC"))
            columns = {
                "key": pa.array([b"k" * shape.key_bytes] * rows),
                "value": pa.array([b"v" * shape.value_bytes] * rows),
                "topic": pa.array(["rows"] * rows),
                "partition": pa.array(np.full(rows, partition.value, np.int32)),
                "offset": pa.array(np.arange(rows)),
                "timestamp": time,
                "timestampType": pa.array(np.zeros(rows, np.int32)),
            }
            batch = pa.RecordBatch.from_pydict({name: columns[name] for name in self.names})
            left = shape.rows // shape.partitions
            while left > 0:
                yield batch.slice(0, left)
                left -= rows

    class ReadyReader(Ready, DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            return [InputPartition(number) for number in range(shape.partitions)]

    class ReadyStream(Ready, DataSourceStreamReader, SupportsTriggerAvailableNow):
        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"at": 0}

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            pass

        def latestOffset(self, *asked: object) -> dict[str, int]:  # noqa: N802
            del asked
            return {"at": 1}

        def partitions(self, start: object, end: object) -> list[InputPartition]:
            del start, end
            return [InputPartition(number) for number in range(shape.partitions)]

    class ReadySource(DataSource):
        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> str:
            return _SCHEMA

        def reader(self, schema: StructType) -> DataSourceReader:
            return ReadyReader(schema.names)

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
            return ReadyStream(schema.names)

    return ReadySource


def empty_source(partitions: int) -> type[DataSource]:
    """Return the streaming source ``empty``, which yields nothing.

    It has something new as many times as its option ``triggers`` says.
    """

    class EmptyReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def __init__(self, triggers: int) -> None:
            self.triggers = triggers

        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"at": 0}

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            pass

        def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: N802
            del limit
            return {"at": min(start["at"] + 1, self.triggers)}

        def partitions(self, start: object, end: object) -> list[InputPartition]:
            del start, end
            return [InputPartition(number) for number in range(partitions)]

        def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
            del partition
            return iter(())

    class EmptySource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "empty"

        def schema(self) -> str:
            return "value BINARY"

        def streamReader(self, schema: object) -> DataSourceStreamReader:  # noqa: N802
            del schema
            return EmptyReader(int(self.options["triggers"]))

    return EmptySource


def dropping_sink() -> type[DataSource]:
    """Return the batch sink ``dropping``, which takes rows and does nothing with them."""

    class DroppingWriter(DataSourceArrowWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class DroppingSink(DataSource):
        @classmethod
        def name(cls) -> str:
            return "dropping"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
            del schema, overwrite
            return DroppingWriter()

    return DroppingSink
