"""Committed records around damage: reading ends, and shows nothing that may have been aborted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.support.log_files import flip, scan
from tests.support.transactions import BrokerLog

from kafkalog.errors import CorruptRecordError
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.read.salvage import Salvage
from kafkalog.streaming.log.read.slice_reader import read_slice
from kafkalog.streaming.log.read.transactions import StableOffset
from kafkalog.streaming.records.columns import Columns, RecordDecoder

if TYPE_CHECKING:
    from pathlib import Path

T0 = TopicPartition("t", 0)
OFFSETS = Columns.OFFSET


def committed(folder: Path, high_watermark: int, start: int = 0) -> list[int]:
    """Read as a query with ``read_committed`` and ``onCorruptRecord=skip`` does."""
    found: list[int] = []
    with PartitionLog(folder, T0) as log:
        end = StableOffset(folder, around_damage=True).find(high_watermark)
        for planned in log.slices(start, end):
            for batch in read_slice(
                T0, planned, RecordDecoder(OFFSETS), committed_only=True, salvage=Salvage(T0)
            ):
                found += batch.column("offset").to_pylist()
    return found


def damage(folder: Path, number: int, at: int, base_offset: int = 0) -> None:
    """Flip a byte of a batch."""
    path = folder / f"{base_offset:020d}.log"
    _, table = scan(path.read_bytes())
    flip(path, int(table.position[number]) + at)


IN_RECORDS = 66
IN_SIZE = 8


@pytest.mark.parametrize("at", [IN_RECORDS, IN_SIZE], ids=["records", "size"])
def test_a_transaction_whose_marker_is_damaged_is_left_out(
    at: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # offsets: 0-1 of 7, marker 2, 3-4 of 7, marker 5, 6-7 of nobody
    steps = [("send", 7), ("commit", 7), ("send", 7), ("commit", 7), ("plain", 8)]
    BrokerLog(tmp_path).play(steps)
    damage(tmp_path, 1, at)
    for index in tmp_path.glob("*.index"):
        assert index.stat().st_size  # it leads behind bytes that tell no size
    assert committed(tmp_path, 8) == [3, 4, 6, 7]
    assert "may have been the end of the transactions of producers [7]" in caplog.text
    with pytest.raises(CorruptRecordError):
        StableOffset(tmp_path).find(8)


def test_an_abort_further_on_does_not_stand_for_a_damaged_commit(tmp_path: Path) -> None:
    steps = [("send", 7), ("commit", 7), ("send", 7), ("abort", 7), ("plain", 8)]
    BrokerLog(tmp_path).play(steps)
    for path in tmp_path.glob("*.txnindex"):
        path.unlink()
    damage(tmp_path, 1, IN_RECORDS)
    assert committed(tmp_path, 8) == [6, 7]


def test_a_commit_further_on_does_not_stand_for_a_damaged_abort(tmp_path: Path) -> None:
    steps = [("send", 7), ("abort", 7), ("send", 7), ("commit", 7)]
    BrokerLog(tmp_path).play(steps)
    for path in tmp_path.glob("*.txnindex"):
        path.unlink()
    damage(tmp_path, 1, IN_RECORDS)
    assert committed(tmp_path, 6) == [3, 4]


def test_an_index_tells_what_a_damaged_marker_does_not(tmp_path: Path) -> None:
    steps = [("send", 7), ("commit", 7), ("send", 9), ("abort", 9), ("roll", 0), ("plain", 8)]
    BrokerLog(tmp_path).play(steps)
    damage(tmp_path, 1, IN_RECORDS)
    assert committed(tmp_path, 8) == [0, 1, 6, 7]


def test_a_snapshot_lets_the_end_lie_past_damage(tmp_path: Path) -> None:
    steps = [("send", 7), ("commit", 7), ("roll", 0), ("plain", 8), ("send", 9)]
    BrokerLog(tmp_path).play(steps)
    damage(tmp_path, 1, IN_RECORDS)
    assert StableOffset(tmp_path, around_damage=True).find(7) == 5


def test_damage_above_the_high_watermark_concerns_nobody(tmp_path: Path) -> None:
    steps = [("plain", 8), ("send", 7), ("send", 7), ("commit", 7)]
    BrokerLog(tmp_path).play(steps)
    damage(tmp_path, 3, IN_RECORDS)
    assert StableOffset(tmp_path, around_damage=True).find(6) == 2


STEPS = st.lists(
    st.tuples(st.sampled_from(["send", "plain", "commit", "abort", "roll"]), st.integers(1, 3)),
    min_size=2,
    max_size=25,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS, place=st.integers(0, 2**20), data=st.binary(min_size=1, max_size=20))
@example(
    steps=[("send", 1), ("commit", 1), ("roll", 1), ("send", 1)],
    place=2012,
    data=b"\x00\x01\x00\x00\x00\x00\x00\x00",
)
@example(
    steps=[*[("send", 1)] * 4, ("commit", 1), ("send", 1), ("send", 1)],
    place=406,
    data=b"\x00\x00\x00\x01",
)
@example(
    steps=[*[("send", 1)] * 4, ("commit", 1), ("send", 1)],
    place=406,
    data=b"\x00\x00\x00\x01",
)
@example(
    steps=[("send", 1), ("roll", 1), *[("send", 1)] * 3, ("abort", 1)],
    place=59,
    data=bytes(18) + b"\x80\x00",
)
def test_whatever_the_damage_is_nothing_that_was_aborted_is_shown(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, int]],
    place: int,
    data: bytes,
) -> None:
    folder = tmp_path_factory.mktemp("t-0")
    broker = BrokerLog(folder)
    broker.play(steps)
    logs = sorted(path for path in folder.glob("*.log") if path.stat().st_size > len(data))
    if not logs:
        return
    path = logs[place % len(logs)]
    sound = path.read_bytes()
    place %= len(sound) - len(data)
    path.write_bytes(sound[:place] + data + sound[place + len(data) :])
    for suffix in ("txnindex", "snapshot") if place % 2 else ():
        for index in folder.glob(f"*.{suffix}"):
            index.unlink()
    shown = committed(folder, broker.next_offset)
    assert shown == sorted(set(shown))
    assert set(shown) <= broker.visible
