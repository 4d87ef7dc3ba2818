"""Cut off anywhere how a set takes in log directories: no batch is lost, no way is blocked."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.support.disk_calls import MOUNT, Machine, simulated
from tests.support.power_loss import Unsynced
from tests.support.sinking import Writer, rows, values_of

from kafkalog.errors import KafkaLogError, LogDirectoryError
from kafkalog.streaming.store import open_set
from kafkalog.streaming.store.log_set import LogSet
from kafkalog.streaming.store.nodes import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from tests.support.disk import Disk

    from kafkalog.checkpoints.commit_state import CommitState

pytestmark = pytest.mark.crash

OLD: Final = [MOUNT / name for name in ("a", "b")]
NEW: Final = [MOUNT / name for name in ("c", "d")]
STATES: Final = 3
"""Disks that a loss of power may leave, at each change."""


def writer(folders: Sequence[Path], run: str) -> Writer:
    return Writer(*folders, run=run, topic="t", numPartitions="2")


def both(batch_id: int) -> pa.RecordBatch:
    """Give a batch with a row for each partition."""
    return rows([f"{batch_id}/0", f"{batch_id}/1"], partitions=[0, 1])


def prepared(old: Sequence[Path], *, begun: bool) -> Disk:
    """Give a disk with a set that has committed, or that has only begun its first commit."""
    machine = Machine()
    with simulated(machine):
        for folder in (*old, *NEW):
            folder.mkdir()
        first = writer(old, "run-1")
        if not begun:
            first.write(0, both(0))
            return machine.disk
        runs = first.stage(0, both(0))
    return cut_off_deep(machine.disk, lambda: first.commit(0, runs))


def cut_off_deep(before: Disk, action: Callable[[], object]) -> Disk:
    """Give what a process leaves that dies in the midst of an action."""
    machine = Machine(before.copy())
    with simulated(machine):
        action()
    disk = with_inodes_of(before, machine.disk)
    for change in machine.disk.changes[: len(machine.disk.changes) * 3 // 5]:
        disk.apply(change)
    disk.changes.clear()
    return disk


def with_inodes_of(before: Disk, after: Disk) -> Disk:
    """Copy a disk, with the files and folders that it is to get, still without names."""
    disk = before.copy()
    for inode in after.folders:
        disk.folders.setdefault(inode, {})
    for inode in after.files:
        disk.files.setdefault(inode, b"")
    return disk


def left_behind(before: Disk, folders: Sequence[Path]) -> Iterator[Disk]:
    """Give the disks that a kill or a loss of power leaves at each change of a join."""
    machine = Machine(before.copy())
    machine.process = 1
    with simulated(machine):
        writer(folders, "run-1").ensure()
    killed = with_inodes_of(before, machine.disk)
    unsynced = Unsynced.after(before, machine.disk.folders)
    chance = random.Random("join")
    found: dict[bytes, Disk] = {}
    for change in machine.disk.changes:
        killed.apply(change)
        unsynced.add(change)
        for disk in (killed.copy(), *unsynced.survivors(STATES, chance)):
            found.setdefault(disk.digest(), disk)
    yield from found.values()


def go_on(disk: Disk, steps: Sequence[Sequence[Path]]) -> list[bool]:
    """Write a batch by each of ``steps``, and look for all of them; tell which were accepted."""
    machine = Machine(disk.copy())
    machine.process = 2
    accepted: list[bool] = []
    batch_id = 0
    with simulated(machine):
        for number, folders in enumerate(steps):
            again = writer(folders, f"run-{number + 2}")
            try:
                again.write(batch_id, both(batch_id))
            except LogDirectoryError as error:
                if "are missing" not in str(error):
                    raise
                accepted.append(False)
                continue
            batch_id += 1
            accepted.append(True)
            wanted = {p: [f"{batch}/{p}" for batch in range(batch_id)] for p in (0, 1)}
            assert values_of(folders, "t") == wanted
    return accepted


def check_whatever_is_left(old: list[Path], *, begun: bool) -> None:
    together = [*old, *NEW]
    alone = grown = 0
    for number, disk in enumerate(left_behind(prepared(old, begun=begun), together[::-1])):
        order = together if number % 2 else together[::-1]
        assert go_on(disk, [order, order[::-1]]) == [True, True]
        without, after, again = go_on(disk, [old, order, order[::-1]])
        assert after
        assert again
        alone += without
        grown += not without
    assert alone
    assert grown


@pytest.mark.parametrize(
    ("old", "begun"),
    [
        pytest.param(OLD[:1], True, id="one, at its first commit", marks=pytest.mark.nightly),
        pytest.param(OLD, False, id="two"),
    ],
)
def test_whatever_is_left_of_a_join_the_set_goes_on_and_grows(old: list[Path], begun: bool) -> None:
    check_whatever_is_left(old, begun=begun)


def test_to_name_new_members_in_themselves_first_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def join(newest: CommitState, log_set: LogSet, folders: list[Path]) -> Any:
        joined = {**{f"new-{folder.name}": folder for folder in folders}, **log_set.members}
        state = replace(newest, sequence=newest.sequence + 1, member_ids=tuple(joined))
        open_set._write(state, joined, log_set.check_current)
        return LogSet(state, Node(joined), log_set.verify_locks)

    monkeypatch.setattr(open_set, "_join", join)
    with pytest.raises((AssertionError, KafkaLogError)):
        check_whatever_is_left(OLD[:1], begun=False)
