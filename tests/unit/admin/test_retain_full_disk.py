"""Retention and deletion free a disk on which not one new block can be written."""

from __future__ import annotations

import errno
import itertools
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.disk import Disk, Renamed, Resized, Written, failure
from tests.support.disk_calls import MOUNT, NOW_NS, Machine, simulated
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.broker import LOG_START_OFFSET, read_offset_checkpoint
from kafkalog.checkpoints.commit_state import UNFINISHED_FOLDER
from kafkalog.checkpoints.state_file import load_state
from kafkalog.files.system import said_of_file, system
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.retention import delete_records, retain
from kafkalog.streaming.admin.topics import delete
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.store import broker_files as log_starts
from kafkalog.streaming.store.ends.tracker import LogEndTracker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.disk import Change

BLOCK = 4096
T0 = TopicPartition("t", 0)


def blocks(disk: Disk) -> int:
    """Count the blocks in use, as ext4 counts them: one for each folder, none for a name."""
    return sum(1 if data is None else -(-len(data) // BLOCK) for data in disk.tree().values())


class FullDisk(Machine):
    """A machine whose disk has so many ``free`` blocks."""

    def __init__(self, disk: Disk, free: int = 0) -> None:
        super().__init__(disk)
        self.capacity = blocks(disk) + free
        self.before = self._refuse

    def _refuse(self, change: Change) -> None:
        match change:
            case Written(inode, position, data):
                before = len(self.disk.files[inode])
                grows = _blocks(max(before, position + len(data))) - _blocks(before)
            case Resized(inode, size):
                grows = _blocks(size) - _blocks(len(self.disk.files[inode]))
            case Renamed(_, _, int(inode)):
                grows = int(inode in self.disk.folders)
            case _:
                grows = 0
        if grows > 0 and blocks(self.disk) + grows > self.capacity:
            raise failure(errno.ENOSPC)

    @property
    def free(self) -> int:
        return self.capacity - blocks(self.disk)


def _blocks(size: int) -> int:
    return -(-size // BLOCK)


def filled(**settings: str) -> Disk:
    """Give a disk with six segments of two blocks, each with two indexes of a block."""
    machine = Machine()
    with simulated(machine):
        writer = Writer(
            MOUNT,
            topic="t",
            segment__bytes="9000",
            index__interval__bytes="1000",
            compression__type="none",
            **settings,
        )
        for batch in range(12):
            writer.write(batch, rows([chr(97 + batch) + "x" * 2000] * 2))
    return machine.disk


def an_hour_later() -> None:
    """Let another process begin on the simulated machine, which gives the real clock back."""
    system.time_ns = lambda: NOW_NS + 3_600_000_000_000
    system.memory.clear()


def bases() -> list[int]:
    return list_base_offsets(MOUNT / "t-0")


def seen() -> list[str]:
    """Give the first letter of what a reader sees."""
    watch = LogEndTracker([str(MOUNT)])
    end = watch.look().offsets[T0]
    with watch.open(T0) as log:
        return [
            value[:1].decode()
            for part in log.slices(log.log_start_offset, end)
            for batch in log.read_slice(part, RecordDecoder(Columns.VALUE))
            for value in batch.column("value").to_pylist()
        ]


ACTS: dict[str, tuple[dict[str, str], Callable[[], object], list[str]]] = {
    "by size": ({"retention.bytes": "8200"}, lambda: retain([str(MOUNT)]), [*"iijjkkll"]),
    "all": ({"retention.bytes": "0"}, lambda: retain([str(MOUNT)]), []),
    "delete-records": ({}, lambda: delete_records([str(MOUNT)], {T0: 19}), [*"jkkll"]),
}


@pytest.mark.parametrize("name", ACTS)
def test_what_has_expired_goes_though_the_disk_is_full(name: str) -> None:
    settings, act, left = ACTS[name]
    machine = FullDisk(filled(**{key.replace(".", "__"): v for key, v in settings.items()}))
    with simulated(machine):
        assert bases() == [0, 4, 8, 12, 16, 20]
        act()
        assert seen() == left
        state_says = read_offset_checkpoint(MOUNT, LOG_START_OFFSET)[T0]
        assert state_says == 24 - len(left)
        assert not (MOUNT / UNFINISHED_FOLDER).exists()
        an_hour_later()
        recover([str(MOUNT)])
        assert machine.free >= 3
        Writer(MOUNT, topic="t").write(12, rows(["m"]))
        assert seen() == [*left, "m"]


def test_with_any_number_of_free_blocks_nothing_is_lost_and_a_later_round_ends_it() -> None:
    disk = filled(retention__bytes="0")
    for free in itertools.count():
        machine = FullDisk(disk.copy(), free)
        with simulated(machine):
            done = retain([str(MOUNT)])
            assert seen() in ([], [*"kkll"])
            is_whole = seen() == [] and not done.problems
            an_hour_later()
            assert retain([str(MOUNT)]).problems == []
            assert seen() == []
            assert recover([str(MOUNT)]).problems == []
        if is_whole and free > 3:
            break


def test_without_room_or_indexes_nothing_changes() -> None:
    disk = filled(retention__bytes="8200")
    machine = Machine(disk)
    with simulated(machine):
        for path in (MOUNT / "t-0").iterdir():
            if path.suffix in {".index", ".timeindex"} and path.stem != f"{20:020d}":
                path.unlink()
    full = FullDisk(machine.disk)
    with simulated(full):
        with pytest.raises(OSError, match="No space left"):
            retain([str(MOUNT)])
        assert not (MOUNT / UNFINISHED_FOLDER).exists()
        assert bases() == [0, 4, 8, 12, 16, 20]
        assert len(seen()) == 24


@pytest.mark.parametrize(("number", "says"), [(errno.ENOSPC, ""), (errno.EIO, "do not say yet")])
def test_what_is_published_is_ended_once_and_at_once_if_there_is_room(
    monkeypatch: pytest.MonkeyPatch, number: int, says: str
) -> None:
    write, failed = log_starts.write_offset_checkpoint, list[OSError]()

    def failing_once(*arguments: Any) -> None:
        if not failed:
            failed.append(failure(number))
            raise failed[0]
        write(*arguments)

    with simulated(Machine(filled(retention__bytes="8200"))):
        before = load_state(MOUNT)
        monkeypatch.setattr(log_starts, "write_offset_checkpoint", failing_once)
        problems = retain([str(MOUNT)]).problems
        assert says in "".join(problems)
        assert (bases(), seen()) == ([16, 20], [*"iijjkkll"])
        after = load_state(MOUNT)
        assert before is not None
        assert after is not None
        assert after.sequence == before.sequence + 1
        if not says:
            assert problems == []
            assert read_offset_checkpoint(MOUNT, LOG_START_OFFSET)[T0] == 16
            assert not (MOUNT / UNFINISHED_FOLDER).exists()


def gone() -> bool:
    return not [path for path in MOUNT.iterdir() if path.name.startswith("t-0")]


def test_a_topic_is_deleted_though_the_disk_is_full() -> None:
    machine = FullDisk(filled())
    with simulated(machine):
        delete([str(MOUNT)], "t")
        assert gone()
        assert not (MOUNT / UNFINISHED_FOLDER).exists()
        assert machine.free >= 24
        Writer(MOUNT, topic="t").write(12, rows(["m"]))
        assert seen() == ["m"]


def test_with_any_number_of_free_blocks_a_topic_is_deleted_or_stays_whole() -> None:
    """Also where its indexes have no room to give."""
    for free in range(9):
        for with_indexes in (True, False):
            machine = FullDisk(filled(), free)
            with simulated(machine):
                for path in () if with_indexes else list((MOUNT / "t-0").glob("*index")):
                    path.unlink()
                machine.capacity = blocks(machine.disk) + free
                try:
                    delete([str(MOUNT)], "t")
                except OSError:
                    assert not with_indexes
                    machine.capacity += 20
                    an_hour_later()
                    if load_state(MOUNT).deleted:
                        recover([str(MOUNT)])
                    else:
                        assert len(seen()) == 24
                        delete([str(MOUNT)], "t")
                assert gone()


def test_what_makes_room_is_said_of_files_of_a_log_only(tmp_path: Path) -> None:
    error = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "kafkalog.intent.tmp"))
    assert said_of_file(error) == f"{tmp_path}/kafkalog.intent.tmp: No space left on device"
    (tmp_path / "kafkalog.commit").touch()
    assert "`kafkalog topic delete` of a topic" in said_of_file(error)
