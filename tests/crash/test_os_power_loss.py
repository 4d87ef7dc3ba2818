"""Writers with ``flush=os`` beside others with ``flush=commit``, and a loss of power at any moment.

Records that were left unsynced may be lost; nothing else may: no state, no intent, no guard,
and nothing that was durable. Until somebody accepts the loss, all who notice it say how to.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.disk_calls import MOUNT, Machine, simulated
from tests.support.power_loss import Unsynced
from tests.support.scenes import CASES, Case, Scene, check_indexes

from kafkalog.checkpoints.broker import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARK,
    read_offset_checkpoint,
    write_clean_shutdown_marker,
)
from kafkalog.checkpoints.intent import load_intent
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import KafkaLogError
from kafkalog.files import atomic as atomic_file
from kafkalog.files.system import system
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.source.end_offsets import EndOffsets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.disk import Disk

pytestmark = pytest.mark.crash

NAMES: Final = ("append", "roll", "adopt", "new topics", "two directories", "v1, rolling")
MIXED: Final = [case for case in CASES if case.name in NAMES]
STATES: Final = int(os.environ.get("KAFKALOG_POWER_LOSS_STATES", "12"))
FLUSHES: Final = ("os", "commit", "os")
"""Of the batches in a row that are written before the power goes."""


@pytest.fixture
def boots(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give a list whose last word is the id of the machine's present run."""
    runs = ["first"]
    monkeypatch.setattr(system, "boot_id", lambda: runs[-1])
    return runs


def written_by(case: Case, flush: str) -> Scene:
    return Scene(replace(case, options={**case.options, "flush": flush}), MOUNT)


def prepared(case: Case) -> Disk:
    """Give a disk with what was there before; all of it is durable, and marked as clean."""
    machine = Machine()
    with simulated(machine):
        scene = Scene(case, MOUNT)
        scene.prepare()
        for folder in scene.directories:
            write_clean_shutdown_marker(folder)
    return machine.disk


def torn_disks(case: Case) -> Iterator[tuple[Disk, int]]:
    """Give disks that a loss of power may leave, and how many batches must have survived."""
    before = prepared(case)
    machine = Machine(before.copy())
    machine.process = 1
    durable = {}
    with simulated(machine):
        for batch_id, flush in enumerate(FLUSHES, start=case.before):
            written_by(case, flush).write(batch_id, "run-1")
            if flush == "commit":
                durable[len(machine.disk.changes)] = batch_id + 1
    chance = random.Random(case.name)
    unsynced = Unsynced.after(before, list(machine.disk.folders))
    found: dict[tuple[bytes, int], Disk] = {}
    for number, change in enumerate(machine.disk.changes, start=1):
        unsynced.add(change)
        kept = max((n for at, n in durable.items() if number >= at), default=case.before)
        for disk in unsynced.survivors(max(STATES // 4, 6), chance):
            found.setdefault((disk.digest(), kept), disk)
    disks = [(disk, kept) for (_, kept), disk in found.items()]
    if len(disks) <= STATES:
        yield from disks
        return
    step = len(disks) / STATES  # one of each part of the three commits
    yield from (disks[int((number + chance.random()) * step)] for number in range(STATES))


def check_files(scene: Scene, disk: Disk) -> None:
    """What is small is never torn; the mark of a clean shutdown goes before the first byte."""
    prepared_logs = _logs(prepared(scene.case))
    for folder in scene.directories:
        load_state(folder)
        load_intent(folder)
        read_offset_checkpoint(folder, HIGH_WATERMARK)
        if (folder / CLEAN_SHUTDOWN).exists():
            assert _logs(disk) == prepared_logs, "marked as clean, and is not"


def _logs(disk: Disk) -> dict[str, bytes | None]:
    return {path: data for path, data in disk.tree().items() if path.endswith(".log")}


def started(disk: Disk, process: int) -> Machine:
    machine = Machine(disk.copy())
    machine.process = process
    return machine


def check(case: Case, disk: Disk, kept: int, process: int) -> int:
    """Look at a disk, go on if that is possible, and by accepting the loss; give what was lost."""
    scene = Scene(case, MOUNT)
    refused = False
    with simulated(started(disk, process)):
        check_files(scene, disk)
        try:
            scene.write_another()
            assert scene.values() == scene.expected(_batches(scene))
        except KafkaLogError as error:
            assert "recover --accept-os-loss" in str(error)  # noqa: PT017 - or it is written
            refused = True
    with simulated(started(disk, process + 1)):
        done = recover([str(folder) for folder in scene.directories], accept_lost_tail=True)
        assert done.problems == []
        assert refused or not done.lost
        assert not done.lost or any("query:4711" in writer for writer in done.writers)
        values, batches = scene.values(), _batches(scene)
        assert batches >= kept
        assert set(values) >= set(scene.expected(kept))
        assert set(values) <= set(scene.expected(batches))
        gone = sum(each.end - each.start for each in done.lost)
        assert gone == len(scene.expected(batches)) - len(values)
        assert recover([str(f) for f in scene.directories], accept_lost_tail=True).lost == []
        EndOffsets([str(folder) for folder in scene.directories], lambda _: True).look()
        scene.write(batches, "run-2")
        following = set(scene.expected(batches + 1)) - set(scene.expected(batches))
        assert set(scene.values()) == set(values) | following
        scene.check_clean()
        check_indexes(scene.directories)
    return gone


def _batches(scene: Scene) -> int:
    states = [state for folder in scene.directories if (state := load_state(folder)) is not None]
    newest = max(states, key=lambda state: state.sequence)
    known = newest.writers.get("query:4711")
    return 0 if known is None else known.batch_id + 1


@pytest.mark.parametrize("case", MIXED, ids=lambda case: case.name)
def test_a_loss_of_power_takes_only_records_that_were_left_unsynced(
    case: Case, boots: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case.apply(monkeypatch)
    disks = list(torn_disks(case))
    assert len(disks) == STATES
    boots.append("second")
    assert any(check_each(case, disks))


def check_each(case: Case, disks: Sequence[tuple[Disk, int]]) -> list[int]:
    return [check(case, disk, kept, 100 + 2 * slot) for slot, (disk, kept) in enumerate(disks)]


def test_states_and_intents_that_are_left_unsynced_are_found_out(
    boots: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (rolling,) = [case for case in MIXED if case.name == "roll"]
    with monkeypatch.context() as patch:
        patch.setattr(atomic_file, "sync", lambda _: None)
        disks = list(torn_disks(rolling))
    boots.append("second")
    with pytest.raises((AssertionError, KafkaLogError)):
        check_each(rolling, disks)


def test_going_on_without_a_look_after_the_machine_started_again_is_found_out(
    boots: list[str],
) -> None:
    (rolling,) = [case for case in MIXED if case.name == "roll"]
    disks = list(torn_disks(rolling))
    assert boots == ["first"]  # as if it had not
    with pytest.raises((AssertionError, KafkaLogError)):
        check_each(rolling, disks)
