"""Appending makes the files that a broker would, in one go or in pieces."""

from __future__ import annotations

import errno
import itertools
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.log_files import (
    FLIGHTS,
    NOW_MS,
    TOPIC_ID,
    append,
    contents,
    flip,
    grow_with_zeros,
    make_batches,
    read_offsets,
    scan,
)

from kafkalog.checkpoints.broker import LeaderEpoch, read_leader_epochs, write_leader_epochs
from kafkalog.errors import CorruptRecordError, LogDirectoryError, RecordTooLargeError
from kafkalog.files.regular import copy_range
from kafkalog.streaming.log.appender import BufferSource, PartitionAppender
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.producer_state import EMPTY_SNAPSHOT
from kafkalog.streaming.options.topic_settings import LogConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=300)


def _file(directory: Path, base_offset: int, suffix: str) -> Path:
    return directory / f"{base_offset:020d}{suffix}"


def test_a_new_partition_is_what_a_broker_expects(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    data = make_batches(0, [2, 3])
    append(directory, data)
    assert contents(directory) == {
        "00000000000000000000.index": b"",
        "00000000000000000000.log": data,
        "00000000000000000000.timeindex": bytes.fromhex("0000018bcfe56801 00000004"),
        "leader-epoch-checkpoint": b"0\n1\n0 0\n",
        "partition.metadata": b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ",
    }


def test_a_new_partition_may_be_empty(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    appender = PartitionAppender(directory, FLIGHTS, LogConfig(), now_ms=0, topic_id=TOPIC_ID)
    plan = appender.plan([])
    appender.apply(plan, [])
    assert contents(directory).keys() == {path.name for path in plan.created_files()}
    assert sum(map(len, contents(directory).values())) == len(b"0\n1\n0 0\n") + 43
    append(directory, make_batches(0, [5]))
    with PartitionLog(directory, FLIGHTS) as log:
        assert (log.log_start_offset, log.log_end_offset()) == (0, 5)


def test_a_new_partition_may_start_at_any_offset(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    appender = PartitionAppender(
        directory, FLIGHTS, LogConfig(), now_ms=0, topic_id=TOPIC_ID, first_offset=1000
    )
    assert appender.log_end_offset == 1000
    appender.append(*scan(make_batches(1000, [5])))
    assert read_leader_epochs(directory) == [LeaderEpoch(0, 1000)]
    with PartitionLog(directory, FLIGHTS) as log:
        assert (log.log_start_offset, log.log_end_offset()) == (1000, 1005)


def test_planning_touches_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    appender = PartitionAppender(directory, FLIGHTS, SMALL, now_ms=0, topic_id=TOPIC_ID)
    plan = appender.plan([scan(make_batches(0, [5] * 20))[1]])
    assert not directory.exists()
    assert (plan.start_offset, plan.end_offset, len(plan.segments) > 2) == (0, 100, True)


def test_the_plan_names_every_file_that_it_makes_and_changes(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [5] * 4), SMALL)
    before = contents(directory)
    data, table = scan(make_batches(20, [5] * 20))
    plan = PartitionAppender(directory, FLIGHTS, SMALL, now_ms=0).append(data, table)
    after = contents(directory)
    made = {path.name for path in plan.created_files()}
    changed = {path.name for path in (*plan.log_files(), *plan.index_files(sealed=True))}
    changed |= {path.name for path in plan.index_files(sealed=False)}
    assert after.keys() - before.keys() == made
    assert {name for name in before if before[name] != after[name]} <= changed
    assert len(plan.index_files(sealed=False)) == 2


def test_a_log_that_others_have_changed_since_the_plan_is_not_written_to(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [5]))
    data, table = scan(make_batches(5, [1]))
    late = PartitionAppender(directory, FLIGHTS, LogConfig(), now_ms=0)
    plan = late.plan([table])
    append(directory, make_batches(5, [7]))
    before = contents(directory)
    with pytest.raises(LogDirectoryError, match="another writer has changed it"):
        late.apply(plan, [BufferSource(data)])
    assert contents(directory) == before


def test_the_id_and_files_of_a_partition_made_again_are_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "flights-0"
    data, table = scan(make_batches(0, [1]))
    late = PartitionAppender(directory, FLIGHTS, LogConfig(), now_ms=0, topic_id="B" * 21 + "A")
    plan = late.plan([table])
    append(directory, make_batches(0, [7]))
    before = contents(directory)
    # Its folder was made before another writer recovered, and made the partition itself.
    monkeypatch.setattr("kafkalog.streaming.log.appender.make_directory", lambda _: None)
    with pytest.raises(FileExistsError):
        late.apply(plan, [BufferSource(data)])
    assert contents(directory) == before


def test_a_new_partition_without_a_topic_id_is_refused(tmp_path: Path) -> None:
    appender = PartitionAppender(tmp_path / "flights-0", FLIGHTS, LogConfig(), now_ms=0)
    with pytest.raises(LogDirectoryError, match="topic id"):
        appender.append(*scan(make_batches(0, [1])))


def test_segments_roll_with_an_empty_producer_snapshot(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [5] * 12), SMALL)
    logs = sorted(directory.glob("*.log"))
    snapshots = sorted(directory.glob("*.snapshot"))
    assert len(logs) > 2
    assert [path.stem for path in logs[1:]] == [path.stem for path in snapshots]
    assert {path.read_bytes() for path in snapshots} == {EMPTY_SNAPSHOT}
    assert all(path.stat().st_size <= 2000 for path in logs)


def test_snapshots_are_left_out_behind_producers(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    data = make_batches(0, [5])
    foreign = bytearray(data)
    foreign[43:51] = (7).to_bytes(8, "big")  # a producer id; the checksum does not matter here
    append(directory, data, SMALL)
    appender = PartitionAppender(directory, FLIGHTS, SMALL, now_ms=0)
    _file(directory, 0, ".log").write_bytes(foreign)
    plan = appender.plan([scan(make_batches(5, [5] * 12))[1]])
    assert len(plan.segments) > 1
    assert plan.snapshots == ()


def test_snapshots_are_left_out_where_the_newest_one_is_not_empty(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [5]), SMALL)
    _file(directory, 5, ".snapshot").write_bytes(EMPTY_SNAPSHOT[:-1] + b"\1" + b"x" * 46)
    plan = append(directory, make_batches(5, [5]), SMALL).plan(
        [scan(make_batches(10, [5] * 12))[1]]
    )
    assert len(plan.segments) > 1
    assert plan.snapshots == ()


def test_the_leader_epoch_is_the_latest_and_never_invented(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    assert append(directory, make_batches(0, [5])).leader_epoch == 0
    write_leader_epochs(directory, [LeaderEpoch(0, 0), LeaderEpoch(7, 3)])
    appender = append(directory, make_batches(5, [5]))
    assert appender.leader_epoch == 7
    assert read_leader_epochs(directory) == [LeaderEpoch(0, 0), LeaderEpoch(7, 3)]


def test_a_log_without_leader_epochs_gets_one_where_it_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [5]))
    (directory / "leader-epoch-checkpoint").unlink()
    append(directory, make_batches(5, [5]))
    assert read_leader_epochs(directory) == [LeaderEpoch(0, 5)]


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.integers(1, 20), min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=5),
    steps=st.lists(st.integers(-500, 900), min_size=30, max_size=30),
    config=st.builds(
        LogConfig,
        segment_bytes=st.integers(1500, 6000),
        segment_ms=st.integers(500, 5000),
        segment_jitter_ms=st.integers(0, 400),
        index_interval_bytes=st.sampled_from([0, 200, 1000, 4096]),
        segment_index_bytes=st.sampled_from([72, 240, 10485760]),
    ),
)
def test_appending_at_once_or_in_pieces_makes_the_same_files(
    tmp_path_factory: pytest.TempPathFactory,
    counts: list[int],
    cuts: list[int],
    steps: list[int],
    config: LogConfig,
) -> None:
    times = [NOW_MS + time for time in np.cumsum(steps).tolist()]
    data = make_batches(0, counts, timestamps=times)
    whole, pieces = (tmp_path_factory.mktemp("logs") / "flights-0" for _ in range(2))
    append(whole, data, config)
    _, table = scan(data)
    ends = [0, *table.end_position.tolist()]
    bounds = sorted({0, len(data), *(ends[cut] for cut in cuts if cut < len(ends))})
    for start, end in itertools.pairwise(bounds):
        append(pieces, data[start:end], config)
    assert contents(pieces) == contents(whole)


def test_a_thousand_tiny_appends_leave_indexes_as_dense_as_one(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    for offset in range(1000):
        append(directory, make_batches(offset, [1], timestamps=[NOW_MS + offset]))
    size = _file(directory, 0, ".log").stat().st_size
    assert _file(directory, 0, ".index").stat().st_size == pytest.approx(size / 4150 * 8, abs=16)
    assert _file(directory, 0, ".timeindex").stat().st_size <= size / 4096 * 12 + 12


@dataclass(frozen=True, slots=True)
class FileSource:
    """A run in an open file, which the caller closes."""

    descriptor: int

    def copy(self, position: int, size: int, target: int, target_position: int) -> None:
        """Copy inside the kernel where file systems can, else through a buffer."""
        assert copy_range(self.descriptor, position, size, target, target_position) == size

    def link_as(self, path: Path) -> bool:
        """Return False: whoever opened the file may still need it."""
        del path
        return False


def test_runs_in_memory_and_in_files_make_the_same_bytes(tmp_path: Path) -> None:
    data, table = scan(make_batches(0, [5] * 30))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    append(tmp_path / "a" / "flights-0", data.tobytes(), SMALL)
    staged = tmp_path / "staged"
    staged.write_bytes(b"before" + data.tobytes() + b"after")
    moved = replace(table, facts=table.facts.copy())
    moved.position[:] += 6
    appender = PartitionAppender(
        tmp_path / "b" / "flights-0", FLIGHTS, SMALL, now_ms=NOW_MS, topic_id=TOPIC_ID
    )
    with staged.open("rb") as file:
        plan = appender.plan([moved[:11], moved[11:]])
        source = FileSource(file.fileno())
        appender.apply(plan, [source, source])
    assert contents(tmp_path / "a" / "flights-0") == contents(tmp_path / "b" / "flights-0")


def test_copying_goes_on_where_the_kernel_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    test_runs_in_memory_and_in_files_make_the_same_bytes(tmp_path)


def test_other_errors_of_copying_are_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "copy_file_range", full)
    with pytest.raises(OSError, match="no space"):
        test_runs_in_memory_and_in_files_make_the_same_bytes(tmp_path)


def test_a_batch_larger_than_a_segment_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    with pytest.raises(RecordTooLargeError, match="flights-0"):
        append(directory, make_batches(0, [1], value_bytes=3000), SMALL)
    assert not directory.exists()


@pytest.mark.parametrize("tail", [b"\0" * 500, b"x" * 100, b"torn"])
def test_a_log_with_a_tail_that_is_no_batch_is_refused(tmp_path: Path, tail: bytes) -> None:
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [5] * 3))
    with _file(directory, 0, ".log").open("ab") as file:
        file.write(tail)
    with pytest.raises(CorruptRecordError, match=r"00\.log"):
        PartitionAppender(directory, FLIGHTS, LogConfig(), now_ms=0)


def test_indexes_that_a_broker_preallocated_are_trimmed(tmp_path: Path) -> None:
    plain, grown = tmp_path / "a" / "flights-0", tmp_path / "b" / "flights-0"
    for directory in (plain, grown):
        directory.parent.mkdir()
        append(directory, make_batches(0, [5] * 40))
    grow_with_zeros(_file(grown, 0, ".index"), 10485760)
    grow_with_zeros(_file(grown, 0, ".timeindex"), 10485756)
    for directory in (plain, grown):
        append(directory, make_batches(200, [5] * 40))
    assert contents(plain) == contents(grown)


def _remove(path: Path) -> None:
    path.unlink()


def _damage_last(path: Path) -> None:
    flip(path, path.stat().st_size - 6)


def _garbage(path: Path) -> None:
    path.write_bytes(b"\xff" * 48)


@pytest.mark.parametrize(
    ("suffix", "harm"),
    [
        (".index", _remove),
        (".index", _garbage),
        (".index", _damage_last),
        (".timeindex", _remove),
        (".timeindex", _garbage),
    ],
)
def test_an_index_that_is_lost_or_damaged_is_rebuilt(
    tmp_path: Path, suffix: str, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    plain, harmed = tmp_path / "a" / "flights-0", tmp_path / "b" / "flights-0"
    for directory in (plain, harmed):
        directory.parent.mkdir()
        append(directory, make_batches(0, [5] * 40))
    harm(_file(harmed, 0, suffix))
    for directory in (plain, harmed):
        append(directory, make_batches(200, [5] * 40))
    assert contents(plain) == contents(harmed)
    assert "recreated" in caplog.text


def test_an_existing_segment_is_never_written_over(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    appender = append(directory, make_batches(0, [5]), SMALL)
    data, table = scan(make_batches(5, [5] * 12))
    plan = appender.plan([table])
    other = plan.segments[1].base_offset
    _file(directory, other, ".log").write_bytes(b"somebody else's")
    with pytest.raises(LogDirectoryError, match="already exists"):
        appender.apply(plan, [BufferSource(data)])
    assert _file(directory, other, ".log").read_bytes() == b"somebody else's"


def test_index_files_without_a_log_give_way(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    append(directory, make_batches(0, [5] * 2), SMALL)
    appender = PartitionAppender(directory, FLIGHTS, SMALL, now_ms=0)
    data, table = scan(make_batches(10, [5] * 12))
    plan = appender.plan([table])
    orphan = _file(directory, plan.segments[1].base_offset, ".index")
    orphan.write_bytes(b"\xff" * 800)
    appender.apply(plan, [BufferSource(data)])
    assert b"\xff\xff" not in orphan.read_bytes()
    with PartitionLog(directory, FLIGHTS) as log:
        assert read_offsets(log, 0, 70) == list(range(70))


def test_a_link_planted_for_a_file_is_not_followed(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    append(directory, make_batches(0, [5]))
    _file(directory, 0, ".timeindex").unlink()
    _file(directory, 0, ".timeindex").symlink_to(victim)
    with pytest.raises(LogDirectoryError):
        append(directory, make_batches(5, [5]))
    assert victim.read_bytes() == b"mine"


def test_appends_go_on_with_the_same_appender(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    appender = PartitionAppender(directory, FLIGHTS, SMALL, now_ms=0, topic_id=TOPIC_ID)
    for offset in range(0, 60, 5):
        assert appender.log_end_offset == offset
        appender.append(*scan(make_batches(offset, [5])))
    with PartitionLog(directory, FLIGHTS) as log:
        assert read_offsets(log, 0, 60) == list(range(60))


def test_an_empty_folder_gets_its_first_segment(tmp_path: Path) -> None:
    directory = tmp_path / "flights-0"
    directory.mkdir()
    append(directory, make_batches(0, [5]))
    with PartitionLog(directory, FLIGHTS) as log:
        assert read_offsets(log, 0, 5) == list(range(5))
