"""Writers with ``flush=os`` and with ``flush=commit`` on one log, and a loss of power.

What the first ones left unsynced lies in front of what the others were promised: it must be on
the disk with it.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.disk import Disk, Renamed
from tests.support.disk_calls import MOUNT, Machine, simulated
from tests.support.power_loss import Unsynced
from tests.support.scenes import CASES, TOPICS, Case, Scene

from kafkalog.checkpoints.broker import (
    RECOVERY_POINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.errors import KafkaLogError
from kafkalog.model import TopicPartition
from kafkalog.streaming.commit import committer as applying
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.store.log_dirs import LogDirs
from kafkalog.streaming.store.recovery import rollback as recovery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.disk import Change

pytestmark = pytest.mark.crash

NAMES: Final = ("append", "roll", "new topics", "two directories", "v1, rolling")
MIXED: Final = [case for case in CASES if case.name in NAMES]
STATES: Final = int(os.environ.get("KAFKALOG_POWER_LOSS_STATES", "24"))
LEFT_TO_THE_SYSTEM: Final = 2
"""Batches in a row."""


class KilledError(BaseException):
    """Ends a process."""


def of_system(case: Case) -> Scene:
    """Give the same query, which leaves its writes to the system."""
    return Scene(replace(case, options={**case.options, "flush": "os"}), MOUNT)


def prepared(case: Case) -> Disk:
    """Give a disk with what was there before; all of it is durable."""
    machine = Machine()
    with simulated(machine):
        Scene(case, MOUNT).prepare()
    return machine.disk


def survivors(before: Disk, after: Disk, seed: str) -> Iterator[Disk]:
    """Give disks that a loss of power may leave at the end."""
    unsynced = Unsynced.after(before, after.folders)
    for change in after.changes:
        unsynced.add(change)
    return unsynced.survivors(STATES, random.Random(seed))


def write_mixed(case: Case, before: Disk) -> Disk:
    machine = Machine(before.copy())
    machine.process = 1
    durable = case.before + LEFT_TO_THE_SYSTEM
    with simulated(machine):
        for batch_id in range(case.before, durable):
            of_system(case).write(batch_id, "run-1")
        Scene(case, MOUNT).write(durable, "run-1")
    return machine.disk


def check_survivors(case: Case) -> None:
    before = prepared(case)
    done = case.before + LEFT_TO_THE_SYSTEM + 1
    scene = Scene(case, MOUNT)
    for number, disk in enumerate(survivors(before, write_mixed(case, before), case.name)):
        machine = Machine(disk)
        machine.process = number
        with simulated(machine):
            assert scene.values() == scene.expected(done)
            scene.write(done, "run-2")
            assert scene.values() == scene.expected(done + 1)
            scene.check_clean()


@pytest.mark.parametrize("case", MIXED, ids=lambda case: case.name)
def test_a_durable_batch_does_not_lie_behind_a_hole(case: Case) -> None:
    check_survivors(case)


def test_a_commit_that_syncs_only_its_own_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    (rolling,) = [case for case in MIXED if case.name == "roll"]
    monkeypatch.setattr(applying, "sync_up_to", list)
    with pytest.raises((AssertionError, KafkaLogError)):
        check_survivors(rolling)


def killed_after_publishing(case: Case, before: Disk) -> Disk:
    """Give the disk of a process that died once its state was renamed, and nothing was synced."""
    machine = Machine(before.copy())
    machine.process = 1
    published = False

    def die(change: Change) -> None:
        nonlocal published
        if published:
            raise KilledError
        published = isinstance(change, Renamed) and change.name == STATE_FILE

    machine.before = die
    with simulated(machine), pytest.raises(KilledError):
        of_system(case).write(case.before, "run-1")
    return machine.disk


def with_stale_points(case: Case) -> Disk:
    """Give a disk on which earlier topics of the same names have left their recovery points."""
    machine = Machine(prepared(case))
    names = [TopicPartition(topic, number) for topic in TOPICS for number in range(3)]
    with simulated(machine):
        for folder in Scene(case, MOUNT).directories:
            write_offset_checkpoint(folder, RECOVERY_POINT, dict.fromkeys(names, 1_000))
    return Machine(machine.disk.copy()).disk


def check_recreated(case: Case) -> None:
    """A topic is made by a writer that dies once it has published; one that is durable goes on."""
    machine = Machine(killed_after_publishing(case, with_stale_points(case)))
    machine.process = 2
    scene = Scene(case, MOUNT)
    with simulated(machine):
        scene.write(1, "run-2")
    for number, disk in enumerate(survivors(with_stale_points(case), machine.disk, case.name)):
        reading = Machine(disk)
        reading.process = 100 + number
        with simulated(reading):
            assert scene.values() == scene.expected(2)


def test_a_recovery_point_of_an_earlier_topic_of_that_name_is_not_trusted() -> None:
    (new,) = [case for case in MIXED if case.name == "new topics"]
    check_recreated(new)


def check_points(case: Case) -> None:
    """What a dead process had left unsynced is ended by one whose commits are durable."""
    before = prepared(case)
    machine = Machine(killed_after_publishing(case, before))
    machine.process = 2
    scene = Scene(case, MOUNT)
    with simulated(machine):
        scene.write_another()
    moved = 0
    for number, disk in enumerate(survivors(before, machine.disk, case.name)):
        reading = Machine(disk)
        reading.process = 100 + number
        with simulated(reading):
            for key, found in LogDirs(scene.directories).partitions().items():
                point = read_offset_checkpoint(found.log_dir, RECOVERY_POINT).get(key, 0)
                with PartitionLog(found.path, key) as log:
                    assert log.log_end_offset(verify_from=0) >= point
                moved += point > 0
            assert scene.values() == scene.expected(case.before + 1)
    assert moved


@pytest.mark.parametrize("case", MIXED, ids=lambda case: case.name)
def test_a_recovery_point_passes_nothing_that_a_dead_writer_left_unsynced(case: Case) -> None:
    check_points(case)


def test_ending_a_commit_without_syncing_it_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    (rolling,) = [case for case in MIXED if case.name == "roll"]
    monkeypatch.setattr(recovery, "sync_up_to", lambda *_, **__: None)
    with pytest.raises((AssertionError, KafkaLogError)):
        check_points(rolling)
