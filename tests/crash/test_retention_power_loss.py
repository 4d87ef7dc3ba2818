"""Cut the power at each change of a retention, and go on with whatever is left on the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.crash.test_power_loss import changes_of, losses_of_power, states_after
from tests.support.disk_calls import MOUNT, Machine, simulated
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.broker import LOG_START_OFFSET, read_offset_checkpoint
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import KafkaLogError
from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.retention import delete_records, retain
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.store.ends.tracker import LogEndTracker

if TYPE_CHECKING:
    from tests.support.disk import Disk

pytestmark = pytest.mark.crash

KEYS = (TopicPartition("t", 0), TopicPartition("t", 1))


def prepared(limit: str) -> Disk:
    """Give a disk with three segments in each of two partitions; all of it is durable."""
    machine = Machine()
    with simulated(machine):
        writer = Writer(
            MOUNT, topic="t", numPartitions="2", segment__bytes="80", retention__bytes=limit
        )
        for batch in range(3):
            writer.write(batch, rows([f"{batch}a", f"{batch}b"], partitions=[0, 1]))
    return machine.disk


def act() -> None:
    assert retain([str(MOUNT)]).problems == []


def seen() -> list[tuple[int, list[str]]]:
    """Give what a reader sees of each partition: the first offset, and the values."""
    watch = LogEndTracker([str(MOUNT)])
    ends = watch.look().offsets
    found = []
    for key in KEYS:
        with watch.open(key) as log:
            start = log.log_start_offset
            values = [
                value.decode()
                for part in log.slices(start, ends[key])
                for batch in log.read_slice(part, RecordDecoder(Columns.VALUE))
                for value in batch.column("value").to_pylist()
            ]
            found.append((start, values))
    return found


def look(disk: Disk) -> list[tuple[int, list[str]]]:
    with simulated(Machine(disk.copy())):
        return seen()


@pytest.mark.parametrize("limit", ["100", "0"], ids=["some", "all"])
def test_whatever_a_loss_of_power_leaves_of_a_retention_the_next_one_ends_it(limit: str) -> None:
    before = prepared(limit)
    whole = changes_of(before, act)
    first, last = look(before), look(whole.disk)
    assert first != last
    for returned in losses_of_power(before, whole, f"retention {limit}"):
        found = seen()
        assert found == last or (not returned and found == first)
        Writer(MOUNT, topic="other", name="other").write(0, rows(["x"]))
        assert seen() == found
        state = load_state(MOUNT)
        assert state is not None
        said = read_offset_checkpoint(MOUNT, LOG_START_OFFSET)
        for key in KEYS:
            (topic,) = [each for each in state.topics.values() if each.name == "t"]
            assert said.get(key, 0) == topic.partitions[key.partition].log_start
        act()
        assert seen() == last
        assert list_base_offsets(MOUNT / "t-0")[0] == last[0][0]
        assert recover([str(MOUNT)]).problems == []


def delete_what_was_left(flushes: tuple[str, ...]) -> None:
    for batch, flush in enumerate(flushes):
        writer = Writer(MOUNT, topic="t", numPartitions="2", flush=flush)
        writer.write(batch, rows([f"{batch}a", f"{batch}b"], partitions=[0, 1]))
    ends = len(flushes)
    assert delete_records([str(MOUNT)], {KEYS[0]: ends - 1, KEYS[1]: ends}).problems == []


@pytest.mark.parametrize("flushes", [("os", "os"), ("os",), ("commit", "os", "os")], ids="-".join)
def test_records_left_unsynced_may_be_deleted_before_the_power_goes(
    flushes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine()
    with simulated(machine):
        Writer(MOUNT, topic="other", name="other").write(0, rows(["x"]))
    whole = changes_of(machine.disk, lambda: delete_what_was_left(flushes))
    states = states_after(machine.disk, whole.disk.changes, list(whole.disk.folders), "deleted")
    last = look(whole.disk)
    for number, (disk, returned) in enumerate(states, start=1):
        machine = Machine(disk.copy())
        machine.process = number
        with simulated(machine), monkeypatch.context() as patch:
            patch.setattr(system, "boot_id", lambda: "after the loss")
            try:
                assert not returned or seen() == last
            except KafkaLogError as error:
                assert "--accept-os-loss" in str(error)  # noqa: PT017 - or it is read
            assert recover([str(MOUNT)], accept_lost_tail=True).problems == []
            if returned:
                assert [start for start, _ in seen()] == [start for start, _ in last]
            known = [len(values) for _, values in seen()] if (MOUNT / "t-0").exists() else [0, 0]
            Writer(MOUNT, topic="t", name="later", numPartitions="2").write(
                0, rows(["y", "z"], partitions=[0, 1])
            )
            assert [len(values) for _, values in seen()] == [count + 1 for count in known]
