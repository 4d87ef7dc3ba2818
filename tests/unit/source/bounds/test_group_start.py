from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from tests.support.coordinator_corpus import group_offsets
from tests.support.corpus import UnpackedCase
from tests.support.logs import Row, append_batch, batch_bytes, write_checkpoint, write_segment
from tests.support.messages import offset_commit_key, offset_commit_value

from kafkalog.errors import OptionError
from kafkalog.model import TopicPartition
from kafkalog.streaming.coordinator.group_replay import partition_for_group
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source import start as group_start
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.start import read_commits
from kafkalog.streaming.source.stream_control import StreamControl

if TYPE_CHECKING:
    from pathlib import Path

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Groups:
    """``__consumer_offsets`` of a log directory, with as many partitions as are asked for."""

    def __init__(self, directory: Path, partitions: int = 50) -> None:
        self._directory = directory
        self._partitions = partitions
        self._ends = dict.fromkeys(range(partitions), 0)
        for partition in range(partitions):
            write_segment(directory / f"__consumer_offsets-{partition}", 0, b"")

    def commit(self, group: str, **positions: int) -> None:
        """Commit positions of partitions of ``t``, such as ``t0=5``."""
        partition = partition_for_group(group, self._partitions)
        rows = [
            Row(offset_commit_value(offset), offset_commit_key(group, "t", int(name[1:])))
            for name, offset in positions.items()
        ]
        folder = self._directory / f"__consumer_offsets-{partition}"
        append_batch(folder / f"{0:020d}.log", batch_bytes(self._ends[partition], rows))
        self._ends[partition] += len(rows)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give t-0 [0, 10) and t-1 [0, 4)."""
    write_segment(tmp_path / "t-0", 0, batch_bytes(0, [Row()] * 10))
    write_segment(tmp_path / "t-1", 0, batch_bytes(0, [Row()] * 4))
    return tmp_path


def given(log: Path, group: str = "g", **more: str) -> ReadOptions:
    options = {"path": str(log), "subscribe": "t", "startingOffsets": f"group:{group}"}
    return ReadOptions.parse(options | more)


@pytest.mark.parametrize("partitions", [50, 3, 1])
def test_a_stream_starts_where_a_group_stands(log: Path, partitions: int) -> None:
    groups = Groups(log, partitions)
    groups.commit("g", t0=3, t1=1)
    groups.commit("other", t0=9, t1=9)
    groups.commit("g", t0=5)
    assert StreamControl(given(log)).initial() == {T0: 5, T1: 1}
    assert StreamControl(given(log, startingOffsets="GROUP: g")).initial() == {T0: 5, T1: 1}


def test_a_batch_starts_where_a_group_stands(log: Path) -> None:
    Groups(log).commit("g", t0=5, t1=1)
    spans = [(s.slices[0].start_offset, s.slices[-1].end_offset) for s in plan_batch(given(log))]
    assert spans == [(5, 10), (1, 4)]


def test_partitions_without_a_position_start_as_without_the_option(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Groups(log).commit("g", t0=5)
    assert StreamControl(given(log)).initial() == {T0: 5, T1: 4}
    assert "committed nothing in 1 partition" in caplog.text
    assert "t-1" in caplog.text
    spans = [(s.slices[0].start_offset, s.slices[-1].end_offset) for s in plan_batch(given(log))]
    assert spans == [(5, 10), (0, 4)]


@pytest.mark.parametrize(
    ("there", "count"), [([], 50), ([0, 1, 2], 3), ([1, 2], 50), ([0, 2], 50), ([0, 60], 61)]
)
def test_of_several_brokers_each_has_only_some_partitions(there: list[int], count: int) -> None:
    ends = {TopicPartition("__consumer_offsets", number): 1 for number in there}
    assert group_start._count(ends) == count


def test_a_group_that_has_committed_nothing_is_refused(log: Path) -> None:
    with pytest.raises(OptionError, match=r"kept in __consumer_offsets-\d+, which is not in"):
        StreamControl(given(log)).initial()
    Groups(log).commit("other", t0=1)
    with pytest.raises(OptionError, match="group 'g' has committed nothing, by what"):
        StreamControl(given(log)).initial()
    with pytest.raises(OptionError, match="nothing in the partitions that are read, only in t-0"):
        StreamControl(
            ReadOptions.parse(
                {"path": str(log), "assign": '{"t":[1]}', "startingOffsets": "group:other"}
            )
        ).initial()


def test_a_start_without_a_group_is_refused(log: Path) -> None:
    with pytest.raises(OptionError, match="accepts group: and a group's id"):
        StreamControl(given(log, startingOffsets="group: "))


def test_only_what_is_committed_counts(log: Path) -> None:
    groups = Groups(log, 1)
    groups.commit("g", t0=3, t1=1)
    groups.commit("g", t0=5)
    write_checkpoint(
        log,
        "replication-offset-checkpoint",
        {"__consumer_offsets-0": 2, "t-0": 10, "t-1": 4},
    )
    assert StreamControl(given(log)).initial() == {T0: 3, T1: 1}
    assert StreamControl(given(log, readUpTo="logEnd")).initial() == {T0: 5, T1: 1}


def test_a_first_batch_that_failed_loses_nothing_though_the_group_moves(log: Path) -> None:
    groups = Groups(log)
    groups.commit("g", t0=3, t1=1)
    first = StreamControl(given(log))
    start = first.initial()
    kept = first.next_end(start, take_all=False)
    assert kept == start == {T0: 3, T1: 1}
    assert first.plan(start, kept) == []
    groups.commit("g", t0=10, t1=4)  # its consumers are still running
    again = StreamControl(given(log))
    assert again.plan(again.initial(), kept) == []
    end = again.next_end(kept, take_all=False)
    spans = [(s.slices[0].start_offset, s.slices[-1].end_offset) for s in again.plan(kept, end)]
    assert spans == [(3, 10), (1, 4)]


def test_trigger_once_reads_from_where_a_group_stands(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Groups(log).commit("g", t0=3)
    stream = StreamControl(given(log))
    with caplog.at_level(logging.INFO, "kafkalog"):
        assert stream.next_end(stream.initial(), take_all=True) == {T0: 10, T1: 4}
    assert "startingOffsets starts at" in caplog.text


@pytest.mark.parametrize("case", ["p09-groups", "p11-live-copy"])
def test_groups_of_a_broker_stand_where_it_answered(case: str, tmp_path: Path) -> None:
    paths = UnpackedCase(case, tmp_path).path.split(",")
    for group, positions in group_offsets(case).items():
        expected = {key: offset for key, (offset, _, _) in positions.items()}
        found = read_commits(paths, group, to_log_end=True)
        assert {key: position.offset for key, position in found.items()} == expected
