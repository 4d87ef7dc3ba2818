"""Of what has returned, a loss of power takes nothing: looked at where no more than that is left.

``tests/crash/test_power_loss.py`` samples what may be left at any moment. Here it is what fsync has
covered at the end, and no more: the least that is left.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.compacting import compacted, updates
from tests.support.compacting import writer as compacting_writer
from tests.support.disk import Renamed
from tests.support.disk_calls import MOUNT, Machine, simulated
from tests.support.least_left import KilledError, acted, change, least, logs, made
from tests.support.logs import Row, batch_bytes
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.broker import HIGH_WATERMARK
from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.retention import delete_records
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.store import nodes as publishing

if TYPE_CHECKING:
    from collections.abc import Callable

PATHS: Final = [str(MOUNT)]
SMALL: Final = {"segment__bytes": "100", "index__interval__bytes": "0"}


def write(batch_id: int, *values: str, topic: str = "t", **options: str) -> None:
    Writer(MOUNT, name=topic, topic=topic, **options).write(batch_id, rows(list(values)))


def write_two(batch_id: int, **options: str) -> None:
    """Write to two topics at once."""
    batch = rows(["b" * 20, "c" * 20], topics=["t", "u"])
    Writer(MOUNT, name="t", **options).write(batch_id, batch)


def killed(where: type, name: str, action: Callable[[], object]) -> None:
    """Let a process be killed where it calls something."""

    def die(*_: object, **__: object) -> None:
        raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, die)
        patch.setattr(Committer, "_try_to_roll_back", lambda *_: None)
        action()


# Commits


def test_all_that_a_commit_has_made_is_on_the_disk_before_it_is_published() -> None:
    before = made(partial(write, 0, "a" * 20, **SMALL))
    machine = acted(before, partial(write_two, 1, **SMALL))
    there, left = machine.disk.tree(), least(before, machine, STATE_FILE)
    active = f"t-0/{1:020d}", f"u-0/{0:020d}"
    for path in logs(there, ""):
        assert path in left
        is_mended_later = path.startswith(active) and path.endswith("index")
        assert is_mended_later or left[path] == there[path], path


def test_what_lies_before_a_durable_batch_is_on_the_disk_too() -> None:
    before = made(partial(write, 0, "a" * 20, **SMALL))
    machine = acted(
        before,
        partial(write, 1, "b" * 20, flush="os", **SMALL),
        partial(write, 2, "c" * 20, flush="os", **SMALL),
        partial(write, 3, "d" * 20, **SMALL),
    )
    assert logs(least(before, machine), ".log") == logs(machine.disk.tree(), ".log")


def test_indexes_that_are_sealed_say_what_their_batches_do() -> None:
    name = f"{0:020d}.index"
    options = {"segment__bytes": "400", "index__interval__bytes": "0"}
    begun = [partial(write, n, f"{n}" * 20, **options) for n in range(4)]
    ended = partial(write, 4, "c" * 20, **options)
    before = made(*begun)

    def damage() -> None:
        """Change an entry in the middle: who appends looks at the last one."""
        entries = before.tree()[f"t-0/{name}"]
        assert entries is not None
        change(MOUNT / "t-0" / name, 15, bytes([entries[15] - 1]))

    sound = acted(before, ended).disk.tree()
    assert logs(acted(before, damage, ended).disk.tree(), name) == logs(sound, name)


def test_a_durable_batch_leaves_it_known_what_other_partitions_have_left_unsynced() -> None:
    options = {"numPartitions": "2"}
    writer = Writer(MOUNT, topic="t", flush="os", **options)
    durable = Writer(MOUNT, topic="t", run="run-2", **options)
    with simulated(Machine()):
        writer.write(0, rows(["a", "b"], partitions=[0, 1]))
        durable.write(1, rows(["c"], partitions=[1]))
        state = load_state(MOUNT)
    assert state is not None
    (topic,) = state.topics.values()
    assert topic.durable_ends == {0: 0}


# What was cut off


@pytest.mark.parametrize("segment_bytes", ["200", "1000"])
def test_what_was_rolled_back_does_not_come_back(segment_bytes: str) -> None:
    options = {**SMALL, "segment__bytes": segment_bytes}
    before = made(*(partial(write, n, "a" * 20, **options) for n in range(2)))
    action = partial(write_two, 2, **options)
    after = acted(before, partial(killed, Committer, "_publish", action)).disk.copy()
    assert "u-0" in after.tree()
    machine = acted(after, partial(recover, PATHS))
    assert INTENT_FILE not in least(after, machine)
    left = least(after, machine, INTENT_FILE)  # which tells of it
    assert "u-0" not in left
    assert logs(left, ".log") == logs(before.tree(), ".log")


def test_a_commit_that_was_cut_off_after_it_was_published_is_durable_once_it_is_ended() -> None:
    before = made(partial(write, 0, "a"))

    def leave_it_to_the_system() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(publishing, "_sync", lambda *_: None)
            killed(Committer, "_finish", partial(write, 1, "b", flush="os"))

    machine = acted(before, leave_it_to_the_system, partial(recover, PATHS))
    there, left = machine.disk.tree(), least(before, machine, HIGH_WATERMARK)
    assert left[STATE_FILE] == there[STATE_FILE]
    assert logs(left, ".log") == logs(there, ".log")


def test_where_logs_end_is_not_written_before_the_state_that_says_so_is_durable() -> None:
    before = made(partial(write, 0, "a"))

    def leave_it_to_the_system() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(publishing, "_sync", lambda *_: None)
            killed(Committer, "_finish", partial(write, 1, "b", flush="os"))

    published = acted(before, leave_it_to_the_system).disk.tree()[STATE_FILE]
    another = partial(write, 0, "c", topic="u", flush="os")
    machine = acted(before, leave_it_to_the_system, another)
    assert least(before, machine, HIGH_WATERMARK)[STATE_FILE] == published


# Who gives directories away, or takes them; and what is compacted


def test_what_a_broker_left_unsynced_is_durable_once_it_was_taken_over() -> None:
    def append() -> None:
        log = MOUNT / "t-0" / f"{0:020d}.log"
        change(log, log.stat().st_size, batch_bytes(1, [Row(b"b")]))

    before = made(partial(write, 0, "a"), partial(hand_over, PATHS))
    machine = acted(before, append, partial(take_over, PATHS))
    assert logs(least(before, machine), ".log") == logs(machine.disk.tree(), ".log")


def test_cleaned_segments_are_on_the_disk() -> None:
    def prepare() -> None:
        updates(compacting_writer(MOUNT), [{"a": "1", "b": "1"}, {"a": "2"}, {"a": "3"}])

    before = made(prepare)
    machine = acted(before, partial(compacted, MOUNT))
    there = logs(machine.disk.tree(), ".log", "index")
    assert there != logs(before.tree(), ".log", "index")
    assert logs(least(before, machine), ".log", "index") == there


def test_all_cleaned_segments_are_there_before_one_of_them_counts() -> None:
    def prepare() -> None:
        updates(compacting_writer(MOUNT), [{"a": "1", "b": "1"}, {"a": "2"}, {"a": "3"}])

    before = made(prepare)
    machine = acted(before, partial(compacted, MOUNT))
    names = [each.name for each in machine.disk.changes if isinstance(each, Renamed)]
    counting = next(name for name in names if name.endswith(".swap"))
    before_that = names[: names.index(counting)]
    cleaned = logs(least(before, machine, counting), ".cleaned")
    assert {path[4:] for path in cleaned} == {n for n in before_that if n.endswith(".cleaned")}


def test_whenever_the_deletion_of_old_segments_is_cut_off_the_rest_is_a_whole_log() -> None:
    values = [f"{number}" * 20 for number in range(4)]
    before = made(*(partial(write, n, value, **SMALL) for n, value in enumerate(values)))
    whole = acted(before, lambda: delete_records(PATHS, {TopicPartition("t", 0): 3}))
    after = before.copy()
    after.files = {**dict.fromkeys(whole.disk.files, b""), **after.files}
    after.folders = {**{inode: {} for inode in whole.disk.folders}, **after.folders}
    for each in whole.disk.changes:
        after.apply(each)
        if isinstance(each, Renamed):
            bases = [int(path[4:24]) for path in logs(after.tree(), ".log")]
            assert bases == list(range(bases[0], 4))


# After a loss of power


@pytest.fixture
def boots(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give a list whose last word is the id of the machine's present run."""
    runs = ["first"]
    monkeypatch.setattr(system, "boot_id", lambda: runs[-1])
    return runs


@pytest.mark.parametrize("is_lost", [False, True])
def test_indexes_that_were_left_unsynced_are_mended_once(boots: list[str], is_lost: bool) -> None:
    begun = [partial(write, n, f"{n}" * 20, flush="os", **SMALL) for n in range(3)]
    sound = made(*begun)

    def tear() -> None:
        boots.append("second")
        change(MOUNT / "t-0" / f"{0:020d}.index", 0, b"\xff" * 8)
        if is_lost:
            os.truncate(MOUNT / "t-0" / f"{2:020d}.log", 10)

    go_on = partial(recover, PATHS, accept_lost_tail=is_lost)
    mended = acted(sound, tear, go_on).disk
    assert logs(mended.tree(), f"{0:020d}.index") == logs(sound.tree(), f"{0:020d}.index")


def test_what_is_left_after_an_accepted_loss_is_durable_before_that_is_published(
    boots: list[str],
) -> None:
    """The directories may have come here as files that nobody has synced."""
    whole = made(*(partial(write, n, f"{n}" * 20, flush="os", **SMALL) for n in range(4)))
    logs_of_it = logs(whole.tree(), ".log")
    before = whole.copy()
    for path in logs_of_it:
        before.files[before.find(tuple(path.split("/")))] = b""

    def come() -> None:
        boots.append("second")
        for path, data in logs_of_it.items():
            change(MOUNT / path, 0, data or b"")
        (MOUNT / "t-0" / f"{2:020d}.log").unlink()

    machine = acted(before, come, partial(recover, PATHS, accept_lost_tail=True))
    there = logs(machine.disk.tree(), ".log", ".snapshot")
    assert logs(there, ".log") == dict([*logs_of_it.items()][:2])
    assert logs(least(before, machine, STATE_FILE), ".log", ".snapshot") == there
