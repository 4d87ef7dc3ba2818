"""Cut the power at each change of a deletion, and go on with whatever is left on the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.crash.test_power_loss import changes_of, losses_of_power
from tests.support.disk_calls import MOUNT, Machine, simulated
from tests.support.sinking import Writer, rows, values_of

from kafkalog.checkpoints.broker import HIGH_WATERMARK, read_offset_checkpoint
from kafkalog.checkpoints.commit_state import UNFINISHED_FOLDER
from kafkalog.checkpoints.state_file import load_state
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.topics import alter, delete
from kafkalog.streaming.store.ends.tracker import LogEndTracker

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.disk import Disk

pytestmark = pytest.mark.crash


def prepared() -> Disk:
    """Give a disk with the topics t and other, all of it durable."""
    machine = Machine()
    with simulated(machine):
        Writer(MOUNT, topic="t", name="t", numPartitions="2").write(
            0, rows(["a", "b"], partitions=[0, 1])
        )
        Writer(MOUNT, topic="other", name="other").write(0, rows(["x"]))
    return machine.disk


def delete_t() -> None:
    delete([str(MOUNT)], "t")


def alter_t() -> None:
    alter([str(MOUNT)], "t", partitions=3, config={"flush.ms": "7"})


def seen() -> tuple[dict[str, int], dict[str, dict[str, str]]]:
    """Give what a reader sees of committed partitions, and the settings of topics."""
    state = load_state(MOUNT)
    assert state is not None
    topics = state.topics.values()
    known = {(topic.name, number) for topic in topics for number in topic.partitions}
    ends = LogEndTracker([str(MOUNT)]).look().offsets
    assert not any(end for key, end in ends.items() if key not in known)
    settings = {topic.name: dict(topic.settings) for topic in topics}
    return {str(key): end for key, end in ends.items() if key in known}, settings


def look(disk: Disk) -> object:
    with simulated(Machine(disk.copy())):
        return seen()


def names() -> set[str]:
    return {path.name for path in MOUNT.iterdir()}


@pytest.mark.parametrize("act", [delete_t, alter_t], ids=lambda act: act.__name__)
def test_whatever_a_loss_of_power_leaves_of_a_change_of_topics_the_next_writer_ends_it(
    act: Callable[[], None],
) -> None:
    before = prepared()
    whole = changes_of(before, act)
    first, last = look(before), look(whole.disk)
    assert first != last
    for returned in losses_of_power(before, whole, f"topics {act.__name__}"):
        found = seen()
        assert found == last or (not returned and found == first)
        state = load_state(MOUNT)
        assert state is not None
        is_live = {"t-0", "t-1"} & names()
        if found == last and act is delete_t and is_live:
            assert UNFINISHED_FOLDER in names(), "a broker would serve what is deleted"
        Writer(MOUNT, topic="other", name="other").write(1, rows(["y"]))
        now = ({**found[0], "other-0": 2}, found[1])
        assert seen() == now
        assert not [name for name in names() if name.endswith("-delete")]
        if found == last and act is delete_t:
            assert not [name for name in names() if name.startswith("t-")]
            assert {key.topic for key in read_offset_checkpoint(MOUNT, HIGH_WATERMARK)} == {"other"}
        elif found == first:
            act()
            assert seen() == ({**last[0], "other-0": 2}, last[1])  # type: ignore[index]
        assert recover([str(MOUNT)]).problems == []
        assert values_of([MOUNT], "other") == {0: ["x", "y"]}
