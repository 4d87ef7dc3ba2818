"""What salvages, takeovers, deletions and copies have done, a loss of power does not undo.

As in ``test_what_survives.py``, it is looked at where no more is left than what fsync has covered.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.disk_calls import MOUNT
from tests.support.least_left import Files, acted, change, least, logs, made
from tests.support.sinking import Writer, rows
from tests.support.transactions import producer_batch

from kafkalog.checkpoints.broker import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARK,
    RECOVERY_POINT,
    write_clean_shutdown_marker,
    write_topic_id,
)
from kafkalog.checkpoints.commit_state import STAGED_PREFIX, STATE_FILE, UNFINISHED_FOLDER
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.checkpoints.query_checkpoint import QueryCheckpoint
from kafkalog.checkpoints.topic_ids import save_topic_ids
from kafkalog.files.regular import create_exclusive, write_all
from kafkalog.jobs.pipelines.replay_checkpoint import ReplayCheckpoint
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.backup import back_up
from kafkalog.streaming.admin.broker import handover
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.retention import retain
from kafkalog.streaming.admin.salvage import KEPT_PREFIX, salvage
from kafkalog.streaming.admin.topics import create, delete
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.consumer.query_member import kept_name
from kafkalog.streaming.store.nodes import SALVAGE_NOTE, note_salvage

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.disk import Disk

PATHS: Final = [str(MOUNT)]
SMALL: Final = {"segment__bytes": "100", "index__interval__bytes": "0"}
FIRST: Final = f"{0:020d}.log"
T0: Final = TopicPartition("t", 0)


def write(batch_id: int, value: str, topic: str = "t", **options: str) -> None:
    Writer(MOUNT, name=topic, topic=topic, **options).write(batch_id, rows([value * 20]))


def save(path: Path, data: bytes) -> None:
    """Make a file as another process does, and leave that to the system."""
    descriptor = create_exclusive(path)
    write_all(descriptor, data, 0)
    os.close(descriptor)


def written(count: int, **options: str) -> Disk:
    return made(*(partial(write, n, f"{n}", **options) for n in range(count)))


def flip(base: int) -> None:
    """Damage the records of the first batch of a segment."""
    change(MOUNT / "t-0" / f"{base:020d}.log", 65, b"\xff\xff")


def lose_checkpoints(folder: Path) -> None:
    """Leave nothing that would be written, and synced in passing."""
    for name in (HIGH_WATERMARK, RECOVERY_POINT):
        (folder / name).unlink(missing_ok=True)


def damaged(disk: Disk, *bases: int) -> Disk:
    return made_from(disk, *(partial(flip, base) for base in bases))


def made_from(disk: Disk, *actions: Callable[[], object]) -> Disk:
    return acted(disk, *actions).disk.copy()


def without(files: Files) -> Files:
    """Leave out what may come back: what keeps brokers out, until it is removed again."""
    return {p: data for p, data in files.items() if UNFINISHED_FOLDER not in p and "lock" not in p}


# Salvage


def dropped() -> None:
    assert [place.done for place in salvage(PATHS, drop=["t-0@0"]).places] == ["dropped"]


def test_what_salvage_has_dropped_and_kept_stays() -> None:
    before = damaged(written(3), 0)
    machine = acted(before, dropped)
    assert without(least(before, machine)) == without(machine.disk.tree())


def test_a_rewritten_segment_has_its_files_before_it_counts() -> None:
    before = damaged(written(3), 0)
    machine = acted(before, dropped)
    left = least(before, machine, f"{FIRST}.swap")
    assert {path[-len(".log.cleaned") :] for path in logs(left, ".cleaned")} >= {".log.cleaned"}
    assert sum("index.cleaned" in path for path in left) == 2


@pytest.mark.parametrize("choice", ["drop", "cut"])
def test_what_salvage_keeps_is_there_before_the_log_changes(choice: str) -> None:
    before = damaged(written(3), 0)
    original = before.tree()[f"t-0/{FIRST}"]
    machine = acted(before, lambda: salvage(PATHS, **{choice: ["t-0@0"]}))
    until = f"{FIRST}.cleaned" if choice == "drop" else f"{0:020d}.index"
    left = least(before, machine, until)
    assert [data for path, data in left.items() if path.startswith(KEPT_PREFIX)] == [original]


def test_a_torn_tail_is_cut_off_before_the_log_goes_on_in_a_new_segment() -> None:
    path = MOUNT / "t-0" / FIRST
    sound = written(3)
    size = len(sound.tree()[f"t-0/{FIRST}"] or b"")
    before = made_from(sound, partial(change, path, size, b"torn"), partial(flip, 0))
    machine = acted(before, dropped)
    left = least(before, machine, f"{3:020d}.log")
    assert len(left[f"t-0/{FIRST}"] or b"") == size


def test_the_segment_in_which_a_log_goes_on_after_a_lost_end_is_on_the_disk() -> None:
    whole, shorter = written(3), written(2).tree()[f"t-0/{FIRST}"] or b""
    before = made_from(whole, lambda: os.truncate(MOUNT / "t-0" / FIRST, len(shorter)))
    machine = acted(before, lambda: salvage(PATHS, drop=["t-0@2"]))
    there = logs(machine.disk.tree(), ".log")
    assert f"t-0/{3:020d}.log" in there
    assert logs(least(before, machine), ".log") == there


def test_what_is_cut_goes_from_its_end_and_stays_away() -> None:
    before = damaged(written(4, **SMALL), 0)
    machine = acted(before, lambda: salvage(PATHS, cut=["t-0@0"]))
    for base in (1, 2):
        left = least(before, machine, f"{base:020d}.log")
        assert f"t-0/{base + 1:020d}.log" not in left
    assert without(least(before, machine)) == without(machine.disk.tree())


def test_what_a_salvage_leaves_is_on_the_disk_before_it_counts_as_durable() -> None:
    def leave() -> None:
        write(0, "a", **SMALL)
        write(1, "b", flush="os", **SMALL)
        write(2, "c", flush="os", **SMALL)
        flip(0)

    machine = acted(made(), leave, lambda: salvage(PATHS, drop=["t-0@0"]))
    left = least(made(), machine)
    assert logs(left, ".log") == logs(machine.disk.tree(), ".log")


def test_a_salvage_keeps_brokers_out_though_the_power_goes() -> None:
    before = written(1)
    machine = acted(before, lambda: note_salvage(MOUNT, "--drop"))
    assert least(before, machine)[SALVAGE_NOTE] == b"--drop"


# Takeovers and handovers


def opened(segment_bytes: str) -> Disk:
    """Give a log that ends with an open transaction."""
    log = MOUNT / "t-0" / FIRST

    def append() -> None:
        change(log, log.stat().st_size, producer_batch(1, 1, 1))

    options = {**SMALL, "segment__bytes": segment_bytes}
    return made(partial(write, 0, "a", **options), partial(hand_over, PATHS), append)


@pytest.mark.parametrize(("segment_bytes", "base"), [("100", 2), ("1000", 0)])
def test_aborts_are_on_the_disk_also_where_a_problem_is_left(
    segment_bytes: str, base: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs with a problem are not among those that a takeover makes durable at its end."""
    monkeypatch.setattr(handover, "sync_up_to", lambda _: None)
    before, active = opened(segment_bytes), f"t-0/{base:020d}"
    machine = acted(before, partial(take_over, PATHS, aborts_open=True, abort_producers=[1]))
    there, left = logs(machine.disk.tree(), ""), least(before, machine)
    assert f"{active}.txnindex" in there
    for path, data in there.items():
        assert path in left
        is_mended_later = path.startswith(active) and path.endswith((".index", ".timeindex"))
        assert is_mended_later or left[path] == data, path


def test_a_takeover_makes_folders_and_segments_of_a_broker_durable() -> None:
    sound = written(2, **SMALL).tree()
    come = {path: data for path, data in sound.items() if path.startswith("t-0/")}

    def append() -> None:
        (MOUNT / "u-0").mkdir()
        write_topic_id(MOUNT / "u-0", "AAAAAAAAAAAAAAAAAAAAAQ")
        for path, data in come.items():
            for name in (path, path.replace("t-0", "u-0")):
                if not (MOUNT / name).exists():
                    save(MOUNT / name, data or b"")

    before = made(partial(write, 0, "0", **SMALL), partial(hand_over, PATHS))
    machine = acted(before, append, partial(take_over, PATHS))
    there = logs(machine.disk.tree(), ".log")
    assert len(there) == 4
    assert logs(least(before, machine, STATE_FILE), ".log") == there


def test_a_broker_does_not_find_the_mark_of_its_clean_stop_after_a_takeover() -> None:
    before = made(
        partial(write, 0, "a"),
        partial(hand_over, PATHS),
        partial(write_clean_shutdown_marker, MOUNT),
    )
    machine = acted(before, partial(take_over, PATHS))
    assert CLEAN_SHUTDOWN not in least(before, machine)


def test_files_that_came_without_a_sync_are_on_the_disk_when_a_broker_gets_them() -> None:
    before = written(1)
    come = partial(save, MOUNT / "t-0" / "00000000000000000001.snapshot", b"")
    machine = acted(before, come, partial(hand_over, PATHS))
    assert logs(least(before, machine), ".snapshot") == logs(machine.disk.tree(), ".snapshot")
    assert logs(machine.disk.tree(), ".snapshot")


def test_an_id_that_a_topic_gets_is_on_the_disk_before_the_state_knows_no_other() -> None:
    given = "AAAAAAAAAAAAAAAAAAAAAQ"
    before = written(1)
    machine = acted(before, lambda: hand_over(PATHS, topic_ids={"t": given}))
    left = least(before, machine, STATE_FILE, last=True)
    assert given.encode() in (left["t-0/partition.metadata"] or b"")


# Deletions


def test_folders_of_deleted_topics_are_renamed_before_the_intent_goes() -> None:
    before = made(partial(create, PATHS, "t"), partial(lose_checkpoints, MOUNT))
    machine = acted(before, lambda: delete(PATHS, "t"))
    assert "t-0" not in least(before, machine, INTENT_FILE, last=True)


def test_folders_of_deleted_topics_are_gone_before_they_are_forgotten() -> None:
    before = written(2)
    machine = acted(before, lambda: delete(PATHS, "t"))
    left = least(before, machine, STATE_FILE, last=True)
    assert not [path for path in left if path.startswith("t-0")]


def test_a_log_that_was_deleted_whole_goes_on_in_a_segment_that_is_there() -> None:
    old = rows(["a"], timestamps=[1000])
    before = made(lambda: Writer(MOUNT, topic="t").write(0, old))
    machine = acted(before, lambda: retain(PATHS, config={"retention.ms": "1"}))
    assert f"t-0/{1:020d}.log" in machine.disk.tree()
    assert f"t-0/{1:020d}.log" in least(before, machine, STATE_FILE)


# Copies, and what lies beside logs


@pytest.mark.parametrize("count", [1, 2])
def test_a_copy_is_on_the_disk(count: int) -> None:
    sources = [MOUNT / f"log{number}" for number in range(count)]
    batch = rows(["a", "b"], partitions=[0, 1])

    def begin() -> None:
        Writer(*sources, topic="t", numPartitions="2").write(0, batch)

    before = made(begin)
    paths = [str(each) for each in sources]
    machine = acted(before, lambda: back_up(paths, str(MOUNT / "copy")))
    left = least(before, machine)
    assert without(left) == without(machine.disk.tree())
    assert not any(UNFINISHED_FOLDER in path for path in left)


def test_a_copy_has_its_files_before_it_has_a_state() -> None:
    begin = partial(Writer(MOUNT / "log", topic="t").write, 0, rows(["a"]))
    before = made(begin, partial(lose_checkpoints, MOUNT / "log"))
    machine = acted(before, lambda: back_up([str(MOUNT / "log")], str(MOUNT / "copy")))
    left = least(before, machine, STATE_FILE)
    assert left[f"copy/t-0/{FIRST}"] == before.tree()[f"log/t-0/{FIRST}"]
    assert f"copy/{UNFINISHED_FOLDER}" in left


def test_a_copy_keeps_brokers_out_before_it_has_anything() -> None:
    before = made(lambda: Writer(MOUNT / "log", topic="t").write(0, rows(["a"])))
    machine = acted(before, lambda: back_up([str(MOUNT / "log")], str(MOUNT / "copy")))
    assert f"copy/{UNFINISHED_FOLDER}" in least(before, machine, "t-0")


def test_a_log_directory_that_is_made_has_its_name_on_the_disk() -> None:
    machine = acted(made(), lambda: Writer(MOUNT / "a" / "b", topic="t").write(0, rows(["a"])))
    left = least(made(), machine)
    assert f"a/b/{STATE_FILE}" in left


def test_a_log_directory_that_a_killed_process_made_has_its_name_on_the_disk() -> None:
    write_there = partial(Writer(MOUNT / "a", topic="t").write, 0, rows(["a"]))
    machine = acted(made(), (MOUNT / "a").mkdir, write_there)
    assert f"a/{STATE_FILE}" in least(made(), machine)


def test_a_batch_is_known_to_the_querys_checkpoint_before_it_is_published() -> None:
    folder = MOUNT / "checkpoint"
    before = written(1)

    def plan_and_write() -> None:
        (folder / "offsets").mkdir(parents=True)
        save(folder / "metadata", b'{"id":"4711"}')
        save(folder / "offsets" / "1", b"v1\n{}\n{}")
        writer = Writer(MOUNT, name="t", topic="t")
        runs = writer.stage(1, rows(["b"]))
        checkpoint = QueryCheckpoint(folder)
        identity = writer.identity(1, checkpoint.digest(1))
        Committer(writer.plan().commit_plan, identity, checkpoint=checkpoint).commit(runs)

    machine = acted(before, plan_and_write)
    left = least(before, machine, STATE_FILE)
    assert left["checkpoint/offsets/1"] == b"v1\n{}\n{}"
    assert left["checkpoint/metadata"] == b'{"id":"4711"}'


def test_what_is_staged_is_on_the_disk_before_the_log_gets_it() -> None:
    """What a commit that is cut off has left in a log is told by it."""
    before = written(1)
    machine = acted(before, partial(write, 1, "b"))
    left = least(before, machine, INTENT_FILE)
    (staged,) = (data for path, data in left.items() if path.startswith(STAGED_PREFIX))
    assert b"b" * 20 in (staged or b"")


@pytest.mark.parametrize("is_made", [True, False])
def test_a_members_name_is_on_the_disk(is_made: bool) -> None:
    state = MOUNT / "a" / "state"
    before = made(partial(state.mkdir, parents=True)) if is_made else made()
    machine = acted(before, lambda: kept_name(state))
    assert least(before, machine) == machine.disk.tree()
    assert len(machine.disk.tree()) > len(before.tree())


def test_the_topic_ids_of_a_query_are_on_the_disk_with_their_folder() -> None:
    machine = acted(made(), lambda: save_topic_ids(MOUNT / "a" / "state", {T0: "i" * 22}))
    assert least(made(), machine) == machine.disk.tree() != {}


def test_how_far_a_replay_has_come_is_on_the_disk_with_its_folder() -> None:
    replay = ReplayCheckpoint(MOUNT / "a" / "replay", {}, "id")
    machine = acted(made(), lambda: replay.note_begin({T0: 0}, {T0: 1}))
    assert least(made(), machine) == machine.disk.tree() != {}
