"""Read logs as Spark's processes do, without Spark: plan, pickle, read."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema, source_schema
from kafkalog.streaming.source.stream_control import StreamControl
from kafkalog.streaming.spark.datasource import KafkaLogDataSource

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["read_batch", "read_stream"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ALL: Final = source_schema(include_headers=True)


def read_batch(**options: str) -> list[dict[str, Any]]:
    """Return the rows of a batch query, timestamps in ms."""
    reader = KafkaLogDataSource(options | {"includeHeaders": "true"}).reader(_ALL)
    rows = []
    for partition in reader.partitions():
        task, split = pickle.loads(pickle.dumps((reader, partition)))
        rows += [row for batch in task.read(split) for row in batch.to_pylist()]
    return _in_ms(rows)


def read_stream(max_offsets: int, **options: str) -> list[dict[str, Any]]:
    """Return the rows of a streaming query from earliest that reads what is there, and ends."""
    more = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(max_offsets)}
    parsed = ReadOptions.parse(options | more)
    control = StreamControl(parsed)
    control.freeze_targets()
    rows = []
    start = control.initial()
    while (end := control.next_end(start, take_all=False)) != start:
        for planned in control.plan(start, end):
            split = pickle.loads(pickle.dumps(planned))
            batches = read_split(split, pickle.loads(pickle.dumps(parsed)), RowSchema.of(_ALL))
            rows += [row for batch in batches for row in batch.to_pylist()]
        start = end
    return _in_ms(rows)


def _in_ms(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row | {"timestamp": _ms(row)} for row in rows]


def _ms(row: Mapping[str, Any]) -> int:
    since: timedelta = row["timestamp"] - _EPOCH
    return since // timedelta(milliseconds=1)
