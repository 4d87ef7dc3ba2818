"""Queries that read committed records only, batch by batch as a stream asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.logs import append_batch, write_checkpoint
from tests.support.transactions import ABORT, COMMIT, BrokerLog, marker, producer_batch

from kafkalog.checkpoints.broker import HIGH_WATERMARK
from kafkalog.errors import DataLossError
from kafkalog.model import TopicPartition
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema, source_schema
from kafkalog.streaming.source.stream_control import StreamControl

if TYPE_CHECKING:
    from pathlib import Path

T0 = TopicPartition("t", 0)
ROWS = RowSchema.of(source_schema(include_headers=False))


def options(log: Path, **given: str) -> ReadOptions:
    return ReadOptions.parse(
        {
            "path": str(log),
            "subscribe": "t",
            "kafka.isolation.level": "read_committed",
            "startingOffsets": "earliest",
        }
        | given
    )


class Query:
    """A stream from the earliest offset on; each of :meth:`batches` lists what one batch gave."""

    def __init__(self, given: ReadOptions) -> None:
        self._options = given
        self._control = StreamControl(given)
        self._at = self._control.initial()

    def batches(self) -> list[list[int]]:
        found = []
        while (end := self._control.next_end(self._at, take_all=False)) != self._at:
            splits = self._control.plan(self._at, end)
            rows = [
                row
                for split in splits
                for batch in read_split(split, self._options, ROWS)
                for row in batch.to_pylist()
            ]
            assert all(row["value"] == str(row["offset"]).encode() for row in rows)
            found.append([row["offset"] for row in rows])
            self._at = end
        return found


def batch_offsets(given: ReadOptions) -> list[int]:
    return [
        offset
        for split in plan_batch(given)
        for batch in read_split(split, given, ROWS)
        for offset in batch.column("offset").to_pylist()
    ]


def test_micro_batches_count_offsets_and_hide_what_is_not_committed(tmp_path: Path) -> None:
    broker = BrokerLog(tmp_path / "t-0")
    broker.write()
    query = Query(options(tmp_path, maxOffsetsPerTrigger="3"))
    broker.append(7, 5)
    broker.write()
    assert query.batches() == []
    broker.end(7, COMMIT)  # at offset 5
    broker.write()
    assert query.batches() == [[0, 1, 2], [3, 4]]
    broker.append(7, 5)
    broker.end(7, ABORT)
    broker.write()
    assert query.batches() == [[], []]
    broker.append(7, 5)
    broker.end(7, COMMIT)
    broker.write()
    assert query.batches() == [[12, 13, 14], [15, 16]]
    for _ in range(2):
        broker.append(7)
        broker.end(7, COMMIT)
    broker.append(7, 2)
    broker.end(7, COMMIT)
    broker.write()
    assert query.batches() == [[18, 20], [22, 23], []]


def test_uncommitted_reads_show_all_records_and_no_markers(tmp_path: Path) -> None:
    broker = BrokerLog(tmp_path / "t-0")
    broker.write()
    given = {"kafka.isolation.level": "read_uncommitted", "maxOffsetsPerTrigger": "3"}
    query = Query(options(tmp_path, **given))
    broker.append(7, 5)
    broker.write()
    assert query.batches() == [[0, 1, 2], [3, 4]]
    broker.end(7, ABORT)
    broker.append(7, 1)
    broker.write()
    assert query.batches() == [[6]]


def test_a_batch_ends_at_the_last_stable_offset(tmp_path: Path) -> None:
    broker = BrokerLog(tmp_path / "t-0")
    broker.play([("plain", 8), ("send", 7), ("abort", 7), ("plain", 8), ("send", 7), ("plain", 8)])
    assert batch_offsets(options(tmp_path)) == [0, 1, 5, 6]
    all_of_them = options(tmp_path, **{"kafka.isolation.level": "read_uncommitted"})
    assert batch_offsets(all_of_them) == [0, 1, 2, 3, *range(5, 11)]


@pytest.mark.parametrize("to_log_end", [False, True])
def test_the_end_moves_when_the_oldest_transaction_ends(to_log_end: bool, tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    broker = BrokerLog(folder)
    broker.play([("plain", 8), ("send", 7), ("plain", 8)])
    tail = EndOffsets([str(tmp_path)], lambda _: True, to_log_end=to_log_end, committed_only=True)
    assert tail.look().offsets == {T0: 2}
    assert tail.look().offsets == {T0: 2}
    append_batch(folder / f"{0:020d}.log", producer_batch(6, 1, 9) + marker(7, 7, COMMIT))
    assert tail.look().offsets == {T0: 6}
    assert tail.look().offsets == {T0: 6}
    append_batch(folder / f"{0:020d}.log", marker(8, 9, ABORT))
    assert tail.look().offsets == {T0: 9}


@pytest.mark.long
def test_a_query_that_has_read_into_an_open_transaction_waits_there_for_its_end(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "t-0"
    broker = BrokerLog(folder)
    broker.play([("plain", 8), ("send", 7), ("plain", 8)])  # open from offset 2 on
    stream = StreamControl(options(tmp_path))
    assert stream.next_end({T0: 5}, take_all=False) == {T0: 5}
    with pytest.raises(DataLossError, match=r"\[2, 5\) cannot be read"):
        stream.plan({T0: 1}, {T0: 5})
    append_batch(folder / f"{0:020d}.log", marker(6, 7, COMMIT))
    assert stream.next_end({T0: 5}, take_all=False) == {T0: 7}


def test_the_high_watermark_bounds_the_last_stable_offset(tmp_path: Path) -> None:
    BrokerLog(tmp_path / "t-0").play([("plain", 8), ("send", 7), ("commit", 7)])
    tail = EndOffsets([str(tmp_path)], lambda _: True, committed_only=True)
    for high_watermark, expected in [(2, 2), (4, 2), (5, 5)]:
        write_checkpoint(tmp_path, HIGH_WATERMARK, {"t-0": high_watermark})
        assert tail.look().offsets == {T0: expected}
        assert dict(tail.ends.unread) == ({T0: (high_watermark, 5)} if high_watermark < 5 else {})
