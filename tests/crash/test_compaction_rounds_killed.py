"""A round of compaction is killed; then a later one, which begins at a lower offset, is killed too.

Kafka's rule makes this dangerous: a ``.swap`` file beside a ``.cleaned`` one of a lower offset is
void, and by then the segments that it was to replace are gone. CI takes some of the states,
``make kills`` all of them.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest
from tests.crash.test_compaction_killed import BATCHES, T0, prepare
from tests.support.compacting import compacted, latest, read, updates, writer
from tests.support.disk import Disk, Renamed
from tests.support.disk_calls import MOUNT, Machine, simulated
from tests.support.log_files import swap_is_unfinished
from tests.support.scenes import check_indexes

from kafkalog.checkpoints.broker import CLEANER_OFFSET
from kafkalog.streaming.admin.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.disk import Change

pytestmark = pytest.mark.crash

STRIDE: Final = int(os.environ.get("KAFKALOG_KILL_STRIDE", "59"))
FIRST_STRIDE: Final = -(-STRIDE // 2)
FOLDER: Final = MOUNT / "t-0"
MORE: Final = [{"a": "4", "g": "1"}, {"b": "2"}, {"d": None, "i": "1"}]

Records = dict[int, tuple[str, str | None]]


def nothing() -> None:
    pass


def append_more() -> None:
    updates(writer(MOUNT), MORE, first=len(BATCHES))


def append_more_into_larger_segments() -> None:
    """Let the next round make one group of what were several."""
    updates(writer(MOUNT, segment__bytes="1000"), MORE, first=len(BATCHES))


def clean_and_append() -> None:
    """Let the round that is killed be a second one: the first segments are clean."""
    compacted(MOUNT)
    updates(writer(MOUNT), [{"a": "5"}, {"e": "2"}, {"h": "1"}, {"h": "2"}], first=len(BATCHES))


def forget_what_was_clean() -> None:
    """Let the part that was clean before the killed round be dirty again."""
    (MOUNT / CLEANER_OFFSET).unlink()


CASES: Final = {
    "more was appended": (nothing, append_more),
    "more was appended and segments may be larger": (nothing, append_more_into_larger_segments),
    "an earlier part is dirty again": (clean_and_append, forget_what_was_clean),
}


class Walk:
    """What one process does on a disk, and the disks that it leaves if it is killed before a call.

    Equal disks count once. No ``.swap`` file is there when new segments are brought in.
    """

    def __init__(self, before: Disk, action: Callable[[], object], process: int) -> None:
        self.killed: dict[bytes, Disk] = {}
        self._machine = Machine(before.copy())
        self._machine.process = process
        self._machine.before = self._note
        with simulated(self._machine):
            action()

    @property
    def after(self) -> Disk:
        return self._machine.disk

    def _note(self, change: Change) -> None:
        disk = self._machine.disk
        self.killed.setdefault(disk.digest(), disk.copy())
        if isinstance(change, Renamed) and change.name.endswith(".cleaned") and change.inode:
            names = disk.folders[change.folder]
            assert not [name for name in names if name.endswith(".swap")], "two swaps at once"


def on(disk: Disk, action: Callable[[], object] = nothing) -> tuple[Disk, Records]:
    """Act on a copy of a disk, and read what is there then."""
    machine = Machine(disk.copy())
    machine.process = 9
    with simulated(machine):
        action()
        return machine.disk, read(MOUNT, T0)


def is_unfinished(disk: Disk) -> bool:
    """Tell whether a swap has begun on a disk, and has not ended."""
    names = disk.folders[disk.find(("t-0",))]
    return any(name.endswith((".cleaned", ".swap")) for name in names)


def end_by_recovery() -> None:
    assert recover([str(MOUNT)]).problems == []
    assert not swap_is_unfinished(FOLDER)
    check_indexes([MOUNT])


def end_by_compaction() -> None:
    compacted(MOUNT)
    assert not swap_is_unfinished(FOLDER)
    check_indexes([MOUNT])


@pytest.mark.parametrize("case", CASES)
def test_a_killed_swap_and_then_one_that_begins_below_it_lose_and_double_nothing(case: str) -> None:
    earlier, meanwhile = CASES[case]
    before, _ = on(Disk(), lambda: (prepare(MOUNT), earlier()))
    expected = latest(on(before, meanwhile)[1])
    first = Walk(before, lambda: compacted(MOUNT), process=1)
    unfinished = [disk for disk in first.killed.values() if is_unfinished(disk)]
    assert unfinished
    tried: set[bytes] = set()
    for disk in unfinished[::FIRST_STRIDE]:
        between, known = on(disk, meanwhile)
        _, final = on(between, end_by_compaction)
        assert latest(known) == latest(final) == expected
        second = Walk(between, lambda: compacted(MOUNT), process=2)
        for digest, killed in second.killed.items():
            if digest not in tried:
                tried.add(digest)
                if len(tried) % STRIDE == 0:
                    check(killed, known, final, recovers=len(tried) // STRIDE % 2 == 0)


def check(killed: Disk, known: Records, final: Records, *, recovers: bool) -> None:
    """Nothing comes back, nothing goes that should stay; a next round leaves what is expected."""
    _, seen = on(killed)
    assert known.items() >= seen.items() >= final.items()
    if recovers:
        killed, found = on(killed, end_by_recovery)
        assert found == seen
    assert on(killed, end_by_compaction)[1] == final
