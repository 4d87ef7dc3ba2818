"""Cut the power at each change of a compaction, and continue with whatever is left on the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.crash.test_compaction_killed import LATEST, T0, prepare
from tests.crash.test_power_loss import changes_of, losses_of_power
from tests.support.compacting import compacted, latest, read
from tests.support.disk_calls import MOUNT, Machine, simulated
from tests.support.log_files import swap_is_unfinished
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.broker import CLEANER_OFFSET, read_offset_checkpoint
from kafkalog.streaming.admin.recovery import recover

if TYPE_CHECKING:
    from tests.support.disk import Disk

pytestmark = pytest.mark.crash


def prepared() -> Disk:
    """Give a disk with a log of several groups of segments; all of it is durable."""
    machine = Machine()
    with simulated(machine):
        prepare(MOUNT)
    return machine.disk


def test_whatever_a_loss_of_power_leaves_of_a_compaction_the_next_one_ends_it() -> None:
    before = prepared()
    whole = changes_of(before, lambda: compacted(MOUNT))
    with simulated(Machine(whole.disk.copy())):
        cleaned, clean_to = read(MOUNT, T0), read_offset_checkpoint(MOUNT, CLEANER_OFFSET)[T0]
    assert latest(cleaned) == LATEST
    for returned in losses_of_power(before, whole, "compaction"):
        found = read(MOUNT, T0)
        assert latest(found) == LATEST
        assert not returned or found == cleaned
        Writer(MOUNT, topic="other", name="other").write(0, rows(["x"]))
        compacted(MOUNT)
        assert read(MOUNT, T0) == cleaned
        assert read_offset_checkpoint(MOUNT, CLEANER_OFFSET)[T0] == clean_to
        assert not swap_is_unfinished(MOUNT / "t-0")
        assert recover([str(MOUNT)]).problems == []
        left = [path.name for path in MOUNT.iterdir() if path.name.startswith(".kafkalog.c")]
        assert left == []
