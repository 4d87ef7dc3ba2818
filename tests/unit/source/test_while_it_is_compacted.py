"""Queries read through a compaction: each record that was there when they reached it, once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.compacting import compacted, updates, writer

from kafkalog.model import TopicPartition
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema, source_schema
from kafkalog.streaming.source.stream_control import StreamControl

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

T0 = TopicPartition("t", 0)
SCHEMA = RowSchema.of(source_schema(include_headers=False))
BATCHES = [{"a": str(number), f"k{number}": "x"} for number in range(8)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a log of a segment for each batch, which become few groups."""
    updates(writer(tmp_path), BATCHES[:-1])
    updates(writer(tmp_path, segment__bytes="400"), BATCHES[-1:], first=len(BATCHES) - 1)
    return tmp_path


class Query:
    """A query over the log, driven by hand; ``given`` are options of the source."""

    def __init__(self, log: Path, **given: str) -> None:
        options = {"path": str(log), "subscribe": "t", "startingOffsets": "earliest"} | given
        self.options = ReadOptions.parse(options)
        self.control = StreamControl(self.options)
        self.at = self.control.initial()

    def plan(self, *, all_of_it: bool = True) -> list[Any]:
        """Plan a micro-batch."""
        end = self.control.next_end(self.at, take_all=all_of_it)
        splits = list(self.control.plan(self.at, end))
        self.at = end
        self.control.batch_ran()
        return splits

    def read(self, splits: Iterable[Any]) -> list[tuple[int, bytes, bytes]]:
        """Read the splits of a micro-batch."""
        return [row for split in splits for row in self.rows(split)]

    def rows(self, split: Any) -> Iterable[tuple[int, bytes, bytes]]:
        for batch in read_split(split, self.options, SCHEMA):
            for row in batch.to_pylist():
                yield row["offset"], row["key"], row["value"]


def values(found: list[tuple[int, bytes, bytes]]) -> dict[bytes, bytes]:
    """See that nothing came twice or out of order; give the last value of each key."""
    offsets = [offset for offset, _, _ in found]
    assert offsets == sorted(set(offsets))
    return {key: value for _, key, value in found}


WHOLE = {key.encode(): value.encode() for each in BATCHES for key, value in each.items()}


def test_what_was_planned_before_a_compaction_is_read_after_it(log: Path) -> None:
    query = Query(log)
    splits = query.plan()
    compacted(log)
    found = query.read(splits)
    assert values(found) == WHOLE
    assert len(found) < 2 * len(BATCHES)


def test_a_compaction_in_the_middle_of_a_split_takes_nothing_away(log: Path) -> None:
    query = Query(log)
    found = []
    for split in query.plan():
        for row in query.rows(split):
            found.append(row)
            if len(found) == 3:
                compacted(log)
    assert values(found) == WHOLE


def test_a_tailing_query_reads_on_where_it_was(log: Path) -> None:
    query = Query(log, maxOffsetsPerTrigger="3")
    found = []
    for number in range(20):
        found += query.read(query.plan(all_of_it=False))
        if number % 2 == 0:
            compacted(log)
        if number in {3, 9}:
            updates(
                writer(log, segment__bytes="400"), [{"a": f"new {number}"}], first=8 + number // 9
            )
    assert values(found) == WHOLE | {b"a": b"new 9"}
    assert query.read(query.plan()) == []


def test_a_query_that_stands_in_a_gap_continues_after_it(log: Path) -> None:
    query = Query(log, maxOffsetsPerTrigger="5")
    found = query.read(query.plan(all_of_it=False))
    compacted(log)
    while splits := query.plan(all_of_it=False):
        found += query.read(splits)
    assert values(found) == WHOLE
