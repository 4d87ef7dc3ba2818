"""A query that follows a log in which each record's value is its offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.model import TopicPartition
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema, source_schema
from kafkalog.streaming.source.stream_control import StreamControl

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["follow"]

_PARTITION: Final = TopicPartition("t", 0)
_SCHEMA: Final = RowSchema.of(source_schema(include_headers=False))


def follow(log: Path, until: Path, check: Callable[[set[int]], None], **given: str) -> None:
    """Read topic ``t`` as a query from earliest does, until a file is there; each row once.

    ``check`` is told, for each micro-batch, which offsets of its range had no record.
    """
    place = {"path": str(log), "subscribe": "t", "startingOffsets": "earliest"}
    options = ReadOptions.parse(place | given)
    control = StreamControl(options)
    at = control.initial()
    while True:
        ended = until.exists()
        end = control.next_end(at, take_all=True)
        read = [
            batch
            for split in control.plan(at, end)
            for batch in read_split(split, options, _SCHEMA)
        ]
        offsets = [offset for batch in read for offset in batch.column("offset").to_pylist()]
        values = [value for batch in read for value in batch.column("value").to_pylist()]
        assert [int(value) for value in values] == offsets
        assert offsets == sorted(set(offsets))
        check(set(range(at.get(_PARTITION, 0), end.get(_PARTITION, 0))) - set(offsets))
        at = end
        control.batch_ran()
        if ended:
            return
