from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.sinking import Writer, rows, values_of

from kafkalog.checkpoints.broker import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARK,
    RECOVERY_POINT,
    read_offset_checkpoint,
    read_topic_id,
    write_offset_checkpoint,
)
from kafkalog.checkpoints.commit_state import PartitionState
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import (
    BatchIdentityError,
    CommitError,
    DurabilityError,
    FencedWriterError,
    LogDirectoryError,
    RowError,
)
from kafkalog.model import TopicPartition
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.store import nodes as publishing
from kafkalog.streaming.store import session
from kafkalog.streaming.store.identity import BatchIdentity
from kafkalog.streaming.store.log_set import LogSet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T0 = TopicPartition("t", 0)


def ours(folder: Path) -> list[str]:
    """Name what a commit leaves while it is under way."""
    names = ("kafkalog.intent", "kafkalog.unfinished", ".kafkalog.staged")
    return [path.name for path in folder.iterdir() if path.name.startswith(names)]


def test_a_commit_leaves_logs_state_and_checkpoints_that_agree(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t", numPartitions="2")
    outcome = writer.write(0, rows(["a", "b", "c"], partitions=[0, 1, 0]))
    ends = {T0: 2, TopicPartition("t", 1): 1}
    assert outcome.end_offsets == ends
    assert read_offset_checkpoint(tmp_path, HIGH_WATERMARK) == ends
    assert read_offset_checkpoint(tmp_path, RECOVERY_POINT) == ends
    state = load_state(tmp_path)
    assert state is not None
    stands = state.partition("t", read_topic_id(tmp_path / "t-0"), 0)
    assert stands == PartitionState(0, high_watermark=2, log_end=2, leader_epoch=0)
    assert ours(tmp_path) == []


def test_all_partitions_of_a_new_topic_carry_one_id(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t", numPartitions="3").write(0, rows(["a"]))
    ids = {read_topic_id(tmp_path / f"t-{number}") for number in range(3)}
    assert len(ids) == 1
    assert None not in ids


def test_a_topic_that_has_another_number_of_partitions_than_is_wanted_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Writer(tmp_path, topic="of-three", numPartitions="3").write(0, rows(["a"]))
    for options in ({"numPartitions": "3"}, {}, {"numPartitions": "8"}):
        writer = Writer(tmp_path, name=f"{options}", topic="of-three", **options)
        for batch_id in range(2):
            writer.write(batch_id, rows(["b"]))
    said = [message for message in caplog.messages if message.startswith("option")]
    assert len(said) == 1
    assert "option numPartitions is 8, and topic 'of-three' has 3:" in said[0]


def test_new_partitions_go_to_the_directories_with_the_fewest(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    writer = Writer(*folders, numPartitions="4")
    writer.write(0, rows(["a"], topics=["x"]))
    writer.write(1, rows(["a"], topics=["y"]))
    counts = [len([path for path in folder.iterdir() if path.is_dir()]) for folder in folders]
    assert counts == [3, 3, 2]
    assert sum(map(len, values_of(folders, "x").values())) == 1


def test_the_last_batch_again_adds_nothing_even_with_other_rows(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    assert not writer.write(0, rows(["other"])).appended
    assert values_of([tmp_path], "t") == {0: ["a"]}
    assert ours(tmp_path) == []


def test_an_empty_batch_is_remembered_too(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t")
    writer.commit(0, [])
    writer.commit(0, [])
    writer.write(1, rows(["a"]))
    with pytest.raises(BatchIdentityError):
        writer.commit(3, [])


def test_a_batch_that_follows_nothing_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]), digest="x")
    before = (tmp_path / "kafkalog.commit").read_bytes()
    for batch_id, digest in ((2, "y"), (0, "y")):
        with pytest.raises(BatchIdentityError):
            writer.write(batch_id, rows(["b"]), digest=digest)
    assert (tmp_path / "kafkalog.commit").read_bytes() == before
    assert values_of([tmp_path], "t") == {0: ["a"]}


def test_a_run_that_was_replaced_cannot_commit_any_more(tmp_path: Path) -> None:
    first = Writer(tmp_path, topic="t", run="first")
    second = Writer(tmp_path, topic="t", run="second")
    first.write(0, rows(["a"]))
    paused = first.stage(1, rows(["b"]))
    second.write(1, rows(["b"]))
    with pytest.raises(FencedWriterError, match="replaced by run second"):
        first.commit(1, paused)
    with pytest.raises(FencedWriterError):
        first.write(2, rows(["c"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b"]}


def test_a_run_that_only_found_its_batch_committed_replaces_the_one_before(tmp_path: Path) -> None:
    first, second = (Writer(tmp_path, topic="t", run=run) for run in ("first", "second"))
    first.write(0, rows(["a"]))
    second.stamp_ms = time.time_ns() // 1_000_000 + 60_000
    second.write(0, rows(["a"]))
    with pytest.raises(FencedWriterError):
        first.write(1, rows(["b"]))


def test_a_run_that_wakes_up_late_does_not_replace_its_successor(tmp_path: Path) -> None:
    first, second = (Writer(tmp_path, topic="t", run=run) for run in ("first", "second"))
    paused = first.stage(0, rows(["a"]))
    second.write(0, rows(["a"]))
    assert not first.commit(0, paused).appended
    second.write(1, rows(["b"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b"]}


def test_nor_does_it_replace_one_that_only_found_its_batch_committed(tmp_path: Path) -> None:
    killed, late, present = (
        Writer(tmp_path, topic="t", run=run) for run in ("killed", "late", "present")
    )
    killed.write(0, rows(["a"]))
    late.stamp_ms = time.time_ns() // 1_000_000 + 60_000
    present.stamp_ms = late.stamp_ms + 1
    paused = late.stage(0, rows(["a"]))
    assert not present.write(0, rows(["a"])).appended
    assert not late.commit(0, paused).appended
    present.write(1, rows(["b"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b"]}


def test_writers_of_different_names_do_not_disturb_each_other(tmp_path: Path) -> None:
    writers = [Writer(tmp_path, name=name, topic="t") for name in "xyz"]
    for batch_id in range(3):
        for writer in writers:
            writer.write(batch_id, rows([f"{writer.name}{batch_id}"]))
    assert values_of([tmp_path], "t") == {0: [f"{n}{b}" for b in range(3) for n in "xyz"]}


def test_a_write_without_identity_is_always_a_new_one(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t")
    for job in ("job:1", "job:2"):
        identity = BatchIdentity(job, 0)
        runs = [replace(run) for run in writer.stage(0, rows(["a"]))]
        Committer(writer.plan().commit_plan, identity).commit(runs)
    assert values_of([tmp_path], "t") == {0: ["a", "a"]}
    state = load_state(tmp_path)
    assert state is not None
    assert state.writers == {}


def test_writers_that_fell_silent_are_forgotten_and_their_staged_files_swept(
    tmp_path: Path,
) -> None:
    silent = Writer(tmp_path, name="silent", topic="t", transactional__id__expiration__ms="1")
    silent.write(0, rows(["a"]))
    time.sleep(0.002)
    (orphan,) = silent.stage(1, rows(["b"]))
    os.utime(tmp_path / orphan.file, (0, 0))
    other = Writer(tmp_path, name="other", topic="t")
    other.write(0, rows(["c"]))
    other.write(1, rows(["d"]))
    state = load_state(tmp_path)
    assert state is not None
    assert list(state.writers) == ["query:other"]
    assert ours(tmp_path) == []


def test_a_writer_that_was_forgotten_is_refused_when_it_comes_back(tmp_path: Path) -> None:
    short = {"transactional__id__expiration__ms": "1"}
    forgotten = Writer(tmp_path, name="forgotten", topic="t", **short)
    forgotten.write(0, rows(["a"]))
    time.sleep(0.002)
    other = Writer(tmp_path, name="other", topic="t")
    other.write(0, rows(["b"]))
    other.write(1, rows(["c"]))
    with pytest.raises(BatchIdentityError, match=r"transactional\.id\.expiration\.ms"):
        forgotten.write(1, rows(["d"]))
    with pytest.raises(BatchIdentityError, match="start it with allowUnknownCheckpoint=true"):
        forgotten.write(1, rows(["d"]))
    Writer(tmp_path, name="new name", topic="t").write(0, rows(["d"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b", "c", "d"]}


def test_a_writer_that_is_soon_forgotten_makes_nobody_else_forgotten(tmp_path: Path) -> None:
    patient = Writer(tmp_path, name="patient", topic="t")
    patient.write(0, rows(["a"]))
    runs = patient.stage(1, rows(["d"]))
    unknown = Writer(tmp_path, name="unknown", topic="t").stage(0, rows(["e"]))
    time.sleep(0.002)
    short = {"transactional__id__expiration__ms": "1"}
    hasty = Writer(tmp_path, name="hasty", topic="t", **short)
    hasty.write(0, rows(["b"]))
    hasty.write(1, rows(["c"]))
    patient.commit(1, runs)
    Writer(tmp_path, name="unknown", topic="t").commit(0, unknown)
    assert values_of([tmp_path], "t") == {0: ["a", "b", "c", "d", "e"]}


def test_a_run_that_only_finds_its_batch_committed_is_remembered_as_long(tmp_path: Path) -> None:
    setting = {"transactional__id__expiration__ms": "5d"}
    Writer(tmp_path, run="run-1", topic="t", **setting).write(0, rows(["a"]))
    again = Writer(tmp_path, run="run-2", topic="t", **setting)
    again.stamp_ms = 2 * time.time_ns() // 1_000_000
    assert not again.write(0, rows(["a"])).appended
    state = load_state(tmp_path)
    assert state is not None
    last = state.writers["query:4711"]
    assert (last.run_id, last.expiration_ms) == ("run-2", 5 * 86_400_000)


def test_staged_files_of_a_batch_that_is_under_way_are_left_alone(tmp_path: Path) -> None:
    slow, fast = (Writer(tmp_path, name=name, topic="t") for name in ("slow", "fast"))
    slow.write(0, rows(["a"]))
    runs = slow.stage(1, rows(["b"]))
    fast.write(0, rows(["c"]))
    slow.commit(1, runs)
    assert values_of([tmp_path], "t") == {0: ["a", "c", "b"]}


def test_staged_files_of_attempts_that_lost_are_swept(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t")
    writer.stage(0, rows(["lost"]))
    writer.write(0, rows(["a"]))
    assert ours(tmp_path) == []
    assert values_of([tmp_path], "t") == {0: ["a"]}


def test_aborting_drops_what_was_staged(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t")
    runs = writer.stage(0, rows(["a"]))
    Committer(writer.plan().commit_plan, writer.identity(0)).abort(runs)
    assert ours(tmp_path) == []
    writer.write(0, rows(["a"]))
    assert values_of([tmp_path], "t") == {0: ["a"]}


def test_aborting_after_a_commit_undoes_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t")
    runs = writer.stage(0, rows(["a"]))
    writer.commit(0, runs)
    Committer(writer.plan().commit_plan, writer.identity(0)).abort(runs)
    assert values_of([tmp_path], "t") == {0: ["a"]}


def test_nothing_is_appended_behind_a_log_that_lost_what_was_committed(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    size = (tmp_path / "t-0" / f"{0:020d}.log").stat().st_size
    writer.write(1, rows(["b"]))
    os.truncate(tmp_path / "t-0" / f"{0:020d}.log", size)
    with pytest.raises(CommitError, match="ends at offset 1, yet everything below 2"):
        writer.write(2, rows(["c"]))


def test_a_staged_file_that_changed_is_not_appended(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t")
    (run,) = writer.stage(0, rows(["a" * 100]))
    data = bytearray((tmp_path / run.file).read_bytes())
    data[-3] ^= 1
    (tmp_path / run.file).write_bytes(data)
    with pytest.raises(CommitError, match="checksum"):
        writer.commit(0, [run])
    assert not (tmp_path / "t-0").exists()


def test_a_staged_file_that_is_gone_is_told(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t")
    (run,) = writer.stage(0, rows(["a"]))
    (tmp_path / run.file).unlink()
    with pytest.raises(CommitError, match="is gone"):
        writer.commit(0, [run])
    assert not (tmp_path / "t-0").exists()
    assert "kafkalog.unfinished" not in ours(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"file": "../../etc/passwd"},
        {"file": ".kafkalog.staged.x"},
        {"directory": 7},
        {"position": -1},
    ],
)
def test_a_run_that_no_task_can_have_made_is_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    writer = Writer(tmp_path, topic="t")
    (run,) = writer.stage(0, rows(["a"]))
    with pytest.raises(CommitError, match="none can have made"):
        writer.commit(0, [replace(run, **change)])


@pytest.mark.parametrize("name", ["../../x", "__consumer_offsets"])
def test_topic_names_are_checked_again_in_the_commit(tmp_path: Path, name: str) -> None:
    writer = Writer(tmp_path, topic="t")
    (run,) = writer.stage(0, rows(["a"]))
    with pytest.raises((RowError, ValueError), match="topic"):
        writer.commit(0, [replace(run, topic_partition=TopicPartition(name, 0))])
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(("planned", "made"), [("4", "2"), ("1", "8")])
def test_rows_that_were_placed_among_other_partitions_than_there_are_now_are_refused(
    tmp_path: Path, planned: str, made: str
) -> None:
    writer = Writer(tmp_path, topic="t", numPartitions=planned)
    runs = writer.stage(0, rows(["a"], keys=["k"]))
    Writer(tmp_path, name="other", topic="t", numPartitions=made).write(0, rows(["b"]))
    with pytest.raises(RowError, match=f"among {planned} partitions, and it has {made}"):
        writer.commit(0, runs)
    assert sum(map(len, values_of([tmp_path], "t").values())) == 1
    writer.write(0, rows(["a"], keys=["k"]))
    assert sum(map(len, values_of([tmp_path], "t").values())) == 2


def test_kafkas_clean_shutdown_marker_goes_before_the_first_byte(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t")
    (tmp_path / CLEAN_SHUTDOWN).touch()
    writer.write(0, rows(["a"]))
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()


def test_lines_of_other_partitions_stay_in_kafkas_checkpoints(tmp_path: Path) -> None:
    other = TopicPartition("other", 3)
    write_offset_checkpoint(tmp_path, HIGH_WATERMARK, {other: 17})
    Writer(tmp_path, topic="t").write(0, rows(["a"]))
    assert read_offset_checkpoint(tmp_path, HIGH_WATERMARK) == {T0: 1, other: 17}


def synced_names(patch: pytest.MonkeyPatch) -> set[str]:
    """Give what is fsynced from now on, by name."""
    names: set[str] = set()
    original = os.fsync

    def fsync(descriptor: int) -> None:
        names.add(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))  # noqa: PTH115, PTH119
        original(descriptor)

    patch.setattr(os, "fsync", fsync)
    return names


def test_the_recovery_point_passes_only_what_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"topic": "t", "segment__bytes": "200", "index__interval__bytes": "0"}
    Writer(tmp_path, **settings).write(0, rows(["a" * 50]))
    of_system = Writer(tmp_path, **settings, flush="os")
    for batch_id in range(1, 5):
        of_system.write(batch_id, rows([f"{batch_id}" * 50]))
    assert read_offset_checkpoint(tmp_path, RECOVERY_POINT) == {T0: 1}
    bases = sorted(path.stem for path in (tmp_path / "t-0").glob("*.log"))
    assert len(bases) > 2
    synced = synced_names(monkeypatch)
    durable = Writer(tmp_path, **settings)
    durable.write(5, rows(["e" * 50]))
    assert read_offset_checkpoint(tmp_path, RECOVERY_POINT) == {T0: 6}
    left = {f"{base}{suffix}" for base in bases for suffix in (".log", ".index", ".timeindex")}
    assert left - synced <= {f"{bases[-1]}.index", f"{bases[-1]}.timeindex"}
    assert {"t-0", tmp_path.name} <= synced
    synced.clear()
    durable.write(6, rows(["f"]))
    assert not {f"{base}.log" for base in bases[:-1]} & synced


def test_a_torn_index_is_mended_before_the_recovery_point_passes_it(tmp_path: Path) -> None:
    settings = {"topic": "t", "segment__bytes": "200", "index__interval__bytes": "0"}
    Writer(tmp_path, **settings).write(0, rows(["a" * 50]))
    index = tmp_path / "t-0" / f"{0:020d}.timeindex"
    of_system = Writer(tmp_path, **settings, flush="os")
    for batch_id in range(1, 4):
        of_system.write(batch_id, rows([f"{batch_id}" * 50]))
    whole = index.read_bytes()
    index.write_bytes(bytes(len(whole)))
    Writer(tmp_path, **settings).write(4, rows(["e"]))
    assert index.read_bytes() == whole


def test_a_topic_recreated_does_not_inherit_a_recovery_point(tmp_path: Path) -> None:
    write_offset_checkpoint(tmp_path, RECOVERY_POINT, {T0: 4711, TopicPartition("u", 0): 3})
    Writer(tmp_path, topic="t", flush="os").write(0, rows(["a"]))
    assert read_offset_checkpoint(tmp_path, RECOVERY_POINT) == {TopicPartition("u", 0): 3}


def test_without_fsync_the_recovery_point_stays(tmp_path: Path) -> None:
    Writer(tmp_path, topic="t", flush="os").write(0, rows(["a"]))
    assert read_offset_checkpoint(tmp_path, RECOVERY_POINT) == {}
    assert read_offset_checkpoint(tmp_path, HIGH_WATERMARK) == {T0: 1}


def failing(name: str, calls: int, code: int) -> Callable[..., Any]:
    """Make a function of ``os`` that fails from its ``calls``-th call on, counted from 0."""
    original = getattr(os, name)
    left = [calls]

    def call(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(code, os.strerror(code))
        return original(*arguments, **named)

    return call


@pytest.mark.parametrize("calls", range(8))
@pytest.mark.parametrize(("name", "code"), [("pwrite", errno.ENOSPC), ("fsync", errno.EIO)])
def test_a_fault_of_the_disk_fails_the_batch_whole_and_the_next_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int, calls: int
) -> None:
    writer = Writer(tmp_path, topic="t", numPartitions="2")
    writer.write(0, rows(["a", "b"], partitions=[0, 1]))
    runs = writer.stage(1, rows(["c", "d"], partitions=[0, 1]))
    with monkeypatch.context() as patch:
        patch.setattr(os, name, failing(name, calls, code))
        try:
            writer.commit(1, runs)
        except DurabilityError as error:
            assert os.strerror(code) in str(error)  # noqa: PT017
        except CommitError as error:
            assert os.strerror(code) in str(error)  # noqa: PT017
            assert values_of([tmp_path], "t") == {0: ["a"], 1: ["b"]}
    writer.write(1, rows(["c", "d"], partitions=[0, 1]))
    assert values_of([tmp_path], "t") == {0: ["a", "c"], 1: ["b", "d"]}
    assert ours(tmp_path) == []


def test_a_broker_lock_that_is_replaced_during_a_commit_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, topic="t")
    runs = writer.stage(0, rows(["a"]))

    def sync_and_replace(descriptor: int) -> None:
        (tmp_path / ".lock").unlink(missing_ok=True)
        (tmp_path / ".lock").touch()

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", sync_and_replace)
        with pytest.raises(LogDirectoryError, match="deleted or replaced"):
            writer.commit(0, runs)
    assert values_of([tmp_path], "t") in ({}, {0: []})
    writer.write(0, rows(["a"]))
    assert values_of([tmp_path], "t") == {0: ["a"]}


@pytest.mark.parametrize("batch", ["empty", "again, by another run"])
def test_locks_are_looked_at_before_every_state_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: str
) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a"]), digest="d")
    before = load_state(tmp_path)
    original = session.open_set

    def open_and_replace(*arguments: Any, **named: Any) -> LogSet:
        opened = original(*arguments, **named)
        (tmp_path / ".lock").unlink()
        (tmp_path / ".lock").touch()
        return opened

    with monkeypatch.context() as patch:
        patch.setattr(session, "open_set", open_and_replace)
        writer = Writer(tmp_path, topic="t", run="run-2")
        writer.stamp_ms = time.time_ns() // 1_000_000 + 60_000
        with pytest.raises(LogDirectoryError, match="deleted or replaced"):
            writer.commit(1 if batch == "empty" else 0, [], digest="d")
    assert load_state(tmp_path) == before


def failing_once(name: str, call: int, code: int) -> Callable[..., Any]:
    """Make a function of ``os`` whose ``call``-th call fails, counted from 0, and no other."""
    original = getattr(os, name)
    calls = iter(range(1_000_000))

    def function(*arguments: Any, **named: Any) -> Any:
        if next(calls) == call:
            raise OSError(code, os.strerror(code))
        return original(*arguments, **named)

    return function


@pytest.mark.parametrize("call", range(12))
def test_an_fsync_that_failed_is_not_tried_again_until_it_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """What it was to write may be gone from memory and not on the disk, whatever the next says."""
    writer = Writer(tmp_path, topic="t", numPartitions="2")
    writer.write(0, rows(["a", "b"], partitions=[0, 1]))
    runs = writer.stage(1, rows(["c", "d"], partitions=[0, 1]))
    sequence = load_state(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing_once("fsync", call, errno.EIO))
        try:
            committed = writer.commit(1, runs).appended
        except CommitError:
            committed = False
        except DurabilityError:
            committed = True
    # Intent and its folder, both logs, the new state: whichever fails, nothing is published.
    assert committed is (call > 4)
    if not committed:
        assert load_state(tmp_path) == sequence
        assert values_of([tmp_path], "t") == {0: ["a"], 1: ["b"]}
    writer.write(1, rows(["c", "d"], partitions=[0, 1]))
    assert values_of([tmp_path], "t") == {0: ["a", "c"], 1: ["b", "d"]}


class PowerCutError(BaseException):
    """Ends a commit without letting it clear up."""


def test_aborting_with_what_an_unfinished_commit_names_takes_nothing_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    runs = writer.stage(1, rows(["b"]))
    (other,) = writer.stage(1, rows(["of an attempt that lost"]))

    def cut(*_: object, **__: object) -> None:
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr(LogSet, "publish", cut)
        with pytest.raises(PowerCutError):
            writer.commit(1, runs)
    Committer(writer.plan().commit_plan, writer.identity(1)).abort([*runs, other])
    assert (tmp_path / runs[0].file).exists()
    assert not (tmp_path / other.file).exists()
    writer.write(1, rows(["b"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b"]}
    assert ours(tmp_path) == []


def test_what_was_published_is_kept_though_publishing_failed_and_could_not_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    runs = writer.stage(1, rows(["b"]))
    publish, load = publishing.publish, publishing._published_stamp
    unreadable = [True]

    def publish_and_fail(path: Path, *, suffix: str, fsync: bool) -> None:
        publish(path, suffix=suffix, fsync=fsync)
        monkeypatch.setattr(publishing, "_published_stamp", load_later)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def load_later(written: Any) -> object:
        if unreadable.pop():
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return load(written)

    monkeypatch.setattr(publishing, "publish", publish_and_fail)
    with pytest.raises(CommitError, match="whether commit 2 is published is not known"):
        writer.commit(1, runs)
    assert unreadable == []
    assert "left for the next commit to roll back" not in caplog.text
    monkeypatch.undo()
    assert not writer.write(1, rows(["b"])).appended
    assert values_of([tmp_path], "t") == {0: ["a", "b"]}
