"""Cut the power at each change of a file; let any part of what was not fsynced survive; go on.

The disk is simulated below the calls of the library: see ``tests.support.disk_calls``. CI tries a
sample of the states of each case, ``make powerloss`` many more.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.disk import Disk, Renamed, Synced
from tests.support.disk_calls import MOUNT, Machine, simulated
from tests.support.dump_log import dump_log_segments, partition_files
from tests.support.power_loss import Unsynced
from tests.support.scenes import CASES, Case, Scene, check_indexes, tasks
from tests.support.sinking import adopt_small_files

from kafkalog.checkpoints.query_checkpoint import QueryCheckpoint
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import KafkaLogError
from kafkalog.files.regular import create_exclusive, write_all
from kafkalog.streaming.commit.committer import Committer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from tests.support.disk import Change

pytestmark = pytest.mark.crash

STATES: Final = int(os.environ.get("KAFKALOG_POWER_LOSS_STATES", "10"))
"""How many states are tried of each case; half as many are made at each crash point."""

SMALL: Final = Case("one small batch", 1, {"numPartitions": "1"}, rows=2)
FIRST: Final = Case("the first batch", 0, {"numPartitions": "1"}, rows=2)
DURABLE: Final = (SMALL, FIRST, *[case for case in CASES if case.options.get("flush") != "os"])


@pytest.fixture(params=DURABLE, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    """Give each case, and let commits do what it wants."""
    request.param.apply(monkeypatch)
    return request.param


def prepared(case: Case) -> Disk:
    """Give a disk with what was there before; all of it is durable."""
    machine = Machine()
    with simulated(machine):
        Scene(case, MOUNT).prepare()
    return machine.disk


class KilledError(BaseException):
    """Ends a process; whatever it still tries to change is refused too."""


def changes_of(before: Disk, action: Callable[[], object], until: int | None = None) -> Machine:
    """Let a process act on a copy of a disk; ``until`` so many changes are made it lives."""
    machine = Machine(before.copy())
    # A process of its own, which draws other random numbers than those before and after it.
    machine.process = 1_000_000 if until is None else 2_000_000

    def die(_: Change) -> None:
        if len(machine.disk.changes) == until:
            raise KilledError

    machine.before = die
    with simulated(machine), contextlib.suppress(KilledError):
        action()
    return machine


def states_after(
    before: Disk, changes: list[Change], folders: list[int], seed: str
) -> Iterator[tuple[Disk, bool]]:
    """Give distinct disks that a loss of power may leave, and whether all had been done by then."""
    chance = random.Random(seed)
    unsynced = Unsynced.after(before, folders)
    found: dict[tuple[bytes, bool], Disk] = {}
    for number, change in enumerate(changes, start=1):
        unsynced.add(change)
        returned = number == len(changes)
        for disk in unsynced.survivors(max(STATES // 2, 8), chance):
            found.setdefault((disk.digest(), returned), disk)
    states = [(disk, returned) for (_, returned), disk in found.items()]
    yield from states if len(states) <= STATES else chance.sample(states, STATES)


def losses_of_power(before: Disk, whole: Machine, name: str) -> Iterator[bool]:
    """Stand, one after the other, on disks that a loss of power may leave of what was done.

    Yields:
        whether all had been done by then.
    """
    number = 0
    states = states_after(before, whole.disk.changes, list(whole.disk.folders), name)
    for number, (disk, returned) in enumerate(states, start=1):
        machine = Machine(disk.copy())
        machine.process = number
        with simulated(machine):
            yield returned
    assert number >= min(STATES, 20)


def check(case: Case, disk: Disk, *, returned: bool, process: int) -> Disk:
    """Read, recover by another query or by the same one, go on, and look at everything."""
    machine = Machine(disk.copy())
    machine.process = process
    scene = Scene(case, MOUNT)
    done = case.before + 1
    with simulated(machine):
        scene.check_guarded()
        seen = scene.values()
        assert seen == scene.expected(done) or (
            not returned and seen == scene.expected(case.before)
        )
        if process % 2:
            scene.write_another()
            assert scene.values() == seen
            scene.check_clean(staged=True)
        scene.write(case.before, "run-2")
        assert scene.values() == scene.expected(done)
        scene.check_clean()
        scene.write(done, "run-2")
        assert scene.values() == scene.expected(done + 1)
        scene.check_clean()
        # The index of an active segment is not fsynced: what appends to it next finds it wrong.
        check_indexes(scene.directories)
    return machine.disk


def check_each(case: Case, states: Iterable[tuple[Disk, bool]]) -> int:
    """Check states, of which each belongs to another process; give how many there were."""
    number = 0
    for number, (disk, returned) in enumerate(states, start=1):
        check(case, disk, returned=returned, process=number)
    return number


def check_all(case: Case, before: Disk, run: str) -> int:
    """Cut off the next batch of a case, everywhere."""
    machine = changes_of(before, lambda: Scene(case, MOUNT).write(case.before, run))
    folders = list(machine.disk.folders)
    return check_each(case, states_after(before, machine.disk.changes, folders, case.name))


def test_whatever_a_loss_of_power_leaves_of_a_commit_each_row_is_there_once(case: Case) -> None:
    assert check_all(case, prepared(case), "run-1") >= min(STATES, 20)


def test_whatever_a_loss_of_power_leaves_of_a_recovery_each_row_is_there_once(case: Case) -> None:
    before = prepared(case)
    whole = changes_of(before, lambda: Scene(case, MOUNT).write(case.before, "run-1"))
    # Deep in the commit, where most is there to be rolled back.
    deep = len(whole.disk.changes) * 3 // 5
    cut_off = changes_of(before, lambda: Scene(case, MOUNT).write(case.before, "run-1"), deep)
    assert check_all(case, cut_off.disk.copy(), "run-2") >= min(STATES, 20)


@pytest.mark.interop
def test_the_dump_tool_finds_nothing_wrong_after_losses_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt_small_files(monkeypatch)
    for case in (each for each in DURABLE if each.name in ("roll", "adopt")):
        before = prepared(case)
        machine = changes_of(before, partial(Scene(case, MOUNT).write, case.before, "run-1"))
        folders = list(machine.disk.folders)
        states = list(states_after(before, machine.disk.changes, folders, "dumped"))
        for number, (disk, returned) in enumerate(states[:: max(1, len(states) // 6)], start=1):
            left = check(case, disk, returned=returned, process=number)
            left.save(tmp_path / case.name / str(number))
    files = [path for folder in tmp_path.glob("*/*/*") for path in partition_files(folder)]
    assert len(files) > 100
    assert dump_log_segments([path for path in files if path.stat().st_size]).findings == []


def test_an_intent_that_was_rolled_back_says_nothing_when_it_comes_back() -> None:
    """Its sequence number is an empty batch's by then, and it names offsets beyond the end."""
    before = prepared(SMALL)
    scene = Scene(SMALL, MOUNT)
    whole = changes_of(before, lambda: scene.write(1, "run-1"))
    deep = len(whole.disk.changes) * 3 // 5
    cut_off = changes_of(before, lambda: scene.write(1, "run-1"), deep).disk.copy()
    recovered = changes_of(cut_off, lambda: scene.another().commit(0, []))
    folders = list(recovered.disk.folders)
    number = 0
    for number, (disk, _) in enumerate(
        states_after(cut_off, recovered.disk.changes, folders, "empty"), start=1
    ):
        machine = Machine(disk)
        machine.process = number
        with simulated(machine):
            scene.check_guarded()
            scene.another().commit(0, [])
            scene.check_clean(staged=True)
            assert scene.values() == scene.expected(1)
    assert number >= min(STATES, 11)


def test_a_batch_that_is_committed_is_known_to_the_querys_checkpoint() -> None:
    """Spark does not fsync its checkpoint; without it the batch would be planned anew."""
    scene = Scene(SMALL, MOUNT)
    folder = MOUNT / "checkpoint"

    def write() -> None:
        planned = folder / "offsets" / "1"
        save(planned, b"v1\n{}\n{}")
        checkpoint = QueryCheckpoint(folder)
        writer = scene.writer("run-1")
        identity = writer.identity(1, checkpoint.digest(1))
        runs = writer.stage(1, *tasks(1, SMALL.rows))
        Committer(writer.plan().commit_plan, identity, checkpoint=checkpoint).commit(runs)

    machine = Machine()
    with simulated(machine):
        scene.prepare()
        (folder / "offsets").mkdir(parents=True)
        save(folder / "metadata", json.dumps({"id": "4711"}).encode())
        save(folder / "offsets" / "0", b"v1\n{}\n{}")
    after = changes_of(machine.disk, write)
    committed = 0
    for disk, _ in states_after(
        machine.disk, after.disk.changes, list(after.disk.folders), "checkpoint"
    ):
        with simulated(Machine(disk)):
            state = load_state(scene.directories[0])
            assert state is not None
            if state.writers["query:4711"].batch_id == 1:
                committed += 1
                assert QueryCheckpoint(folder).digest(1) == state.writers["query:4711"].digest
    assert committed


def save(path: Path, data: bytes) -> None:
    descriptor = create_exclusive(path)
    write_all(descriptor, data, 0)
    os.close(descriptor)


@pytest.mark.parametrize("lost", ["kafkalog.commit.tmp", ".log", ".staged", "kafkalog.intent.tmp"])
def test_a_commit_that_forgets_an_fsync_is_found_out(
    lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = prepared(FIRST)
    machine = Machine(before.copy())
    machine.process = 1
    scene = Scene(FIRST, MOUNT)
    with simulated(machine):
        scene.write(0, "run-1")
    forgotten = {
        change.inode
        for change in machine.disk.changes
        if isinstance(change, Renamed) and lost in change.name
    }
    kept = [
        change
        for change in machine.disk.changes
        if not (isinstance(change, Synced) and change.inode in forgotten)
    ]
    assert len(kept) < len(machine.disk.changes)
    monkeypatch.setattr(f"{__name__}.STATES", 400)
    states = states_after(before, kept, list(machine.disk.folders), lost)
    with pytest.raises((AssertionError, KafkaLogError)):
        check_each(FIRST, states)
