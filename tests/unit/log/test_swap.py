"""New segments take the place of old ones, whatever is cut off: processes, or the power."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Final

import pytest
from tests.crash.test_power_loss import changes_of, states_after
from tests.support.cleaning import CleanableLog, batch
from tests.support.disk_calls import MOUNT, Machine, simulated
from tests.support.least_left import least
from tests.support.log_files import swap_is_unfinished

from kafkalog.files.regular import create_exclusive, fsync_directory, sync, write_all
from kafkalog.streaming.log.recovery import build_indexes
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.log.swap import (
    bring_in,
    finish_swap,
    replace_segments,
)
from kafkalog.streaming.log.valid_batches import ValidBatches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tests.support.disk import Disk

FOLDER: Final = MOUNT / "log" / "t-0"
ROOT: Final = MOUNT / "log"

Records = dict[int, tuple[bytes | None, bytes | None]]

OLD: Final = {
    0: [batch(0, [(b"a", b"1"), (b"b", b"1")])],
    2: [batch(2, [(b"a", b"2")]), batch(3, [(b"c", b"1")])],
    4: [batch(4, [(b"a", b"3"), (b"d", b"1")])],
    6: [batch(6, [(b"e", b"1")])],
}
"""Four segments, of which the last one is active."""

JOINED: Final = ([0, 2], {0: [batch(1, [(b"b", b"1")]), batch(3, [(b"c", b"1")])]})
SHORTER: Final = ([0, 2], {0: [batch(1, [(b"b", b"1")])]})
ALONE: Final = ([2], {2: [batch(3, [(b"c", b"1")])]})
EMPTY: Final = ([0], {0: []})
SPLIT: Final = (
    [2, 4],
    {2: [batch(3, [(b"c", b"1")])], 4: [batch(4, [(b"a", b"3"), (b"d", b"1")])]},
)
DIVIDED: Final = ([2], {2: [batch(2, [(b"a", b"2")])], 3: [batch(3, [(b"c", b"1")])]})
CASES: Final = {
    "joined": JOINED,
    "the end gone": SHORTER,
    "one alone": ALONE,
    "nothing left": EMPTY,
    "two for two": SPLIT,
    "two for one": DIVIDED,
}


def save(path: Path, data: bytes) -> None:
    descriptor = create_exclusive(path)
    try:
        write_all(descriptor, data, 0)
        sync(descriptor)
    finally:
        os.close(descriptor)


def write_segment(folder: Path, base: int, batches: Iterable[bytes], prefix: str = "") -> None:
    """Write a segment durably, with indexes of an entry for each batch."""
    log = folder / f"{base:020d}.log"
    save(log, b"".join(batches))
    with LogSegment(folder, base) as segment:
        for path, content in build_indexes(segment, ValidBatches(segment), 0).items():
            save(folder / (prefix + path.name), content)
    if prefix:
        log.rename(folder / (prefix + log.name))


@functools.cache
def prepared() -> Disk:
    """Give a disk with a log, all of it durable, and snapshots beside two of its segments."""
    machine = Machine()
    with simulated(machine):
        FOLDER.mkdir(parents=True)
        for base, batches in OLD.items():
            write_segment(FOLDER, base, batches)
        for base in (2, 6):
            save(FOLDER / f"{base:020d}.snapshot", b"")
        fsync_directory(FOLDER)
    return machine.disk


def act(case: str) -> Callable[[], None]:
    """Give what cleans a log of its segments."""
    old, new = CASES[case]

    def clean() -> None:
        prefix = ".kafkalog.cleaned.x."
        for base, batches in new.items():
            write_segment(ROOT, base, batches, prefix)
        fsync_directory(ROOT)
        bring_in(FOLDER, sorted(ROOT.glob(f"{prefix}*")))
        replace_segments(FOLDER, old, sorted(new))

    return clean


def records() -> Records:
    """Read the log, and see that its offsets ascend."""
    log = CleanableLog(FOLDER)
    found = log.records()
    read = [offset for each in log.batches() for offset, *_ in each.records]
    assert read == sorted(set(read))
    return found


@functools.cache
def expected(case: str | None) -> Records:
    """Give what a log holds, before or after it was cleaned."""
    machine = Machine(prepared().copy())
    with simulated(machine):
        if case is not None:
            act(case)()
        return records()


def check(disk: Disk, case: str, *, returned: bool) -> Records:
    """Read, end the swap, and read again."""
    before, after = expected(None), expected(case)
    # Of the last old segments nothing may be left to say that they were replaced.
    more = {**after, **{k: v for k, v in before.items() if k > max(after_of(case))}}
    with simulated(Machine(disk.copy())):
        seen = records()
        assert seen in ([after, more] if returned else [before, after, more])
        finish_swap(FOLDER)
        assert records() == seen
        assert not swap_is_unfinished(FOLDER)
        assert not finish_swap(FOLDER)
        assert_indexes_are_right()
    return seen


def after_of(case: str) -> list[int]:
    return [base for base, batches in CASES[case][1].items() if batches] or [0]


def assert_indexes_are_right() -> None:
    for base in list_base_offsets(FOLDER):
        with LogSegment(FOLDER, base) as segment:
            for path, content in build_indexes(segment, ValidBatches(segment), 0).items():
                if path.exists():  # else the segment is scanned
                    descriptor = os.open(path, os.O_RDONLY)
                    assert os.pread(descriptor, 1 << 20, 0) == content, path.name
                    os.close(descriptor)


@pytest.mark.parametrize("case", CASES)
def test_segments_are_replaced_and_the_old_ones_retired(case: str) -> None:
    old, new = CASES[case]
    machine = Machine(prepared().copy())
    with simulated(machine):
        act(case)()
        assert list_base_offsets(FOLDER) == sorted({*OLD} - {*old} | {*new})
        names = [path.name for path in FOLDER.iterdir()]
        for base in old:
            assert f"{base:020d}.log.deleted" in names
        assert (f"{2:020d}.snapshot" in names) == (2 not in old or 2 in new)
        assert f"{6:020d}.snapshot" in names
        assert not swap_is_unfinished(FOLDER)
        assert [*ROOT.iterdir()] == [FOLDER]


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_a_swap_that_is_killed_anywhere_is_ended_by_the_next_one(case: str) -> None:
    before = prepared()
    whole = changes_of(before, act(case))
    seen = []
    for number in range(len(whole.disk.changes)):
        killed = changes_of(before, act(case), number)
        seen.append(check(killed.disk, case, returned=False))
    assert seen[0] == expected(None)
    assert seen[-1] == expected(case)


@pytest.mark.long
@pytest.mark.parametrize("case", ["joined", "two for one"])
def test_the_end_of_a_swap_may_be_cut_off_too(case: str) -> None:
    before = prepared()
    whole = changes_of(before, act(case))
    for first in range(len(whole.disk.changes) - 1, 20, -5):
        killed = changes_of(before, act(case), first).disk
        seen = check(killed, case, returned=False)
        ended = changes_of(killed, lambda: finish_swap(FOLDER))
        for second in range(len(ended.disk.changes)):
            again = changes_of(killed, lambda: finish_swap(FOLDER), second)
            assert check(again.disk, case, returned=False) == seen
        folders = list(ended.disk.folders)
        for disk, _ in states_after(killed, ended.disk.changes, folders, f"{case} {first}"):
            assert check(disk, case, returned=False) == seen


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_whatever_a_loss_of_power_leaves_of_a_swap_no_record_is_lost(case: str) -> None:
    before = prepared()
    whole = changes_of(before, act(case))
    folders = list(whole.disk.folders)
    states = list(states_after(before, whole.disk.changes, folders, f"swap {case}"))
    for disk, returned in states:
        check(disk, case, returned=returned)
    assert len(states) >= 10


@pytest.mark.parametrize("case", CASES)
def test_each_step_of_a_swap_is_on_the_disk_before_the_next_one(case: str) -> None:
    before, base = prepared(), min(CASES[case][1])
    machine = changes_of(before, act(case))
    name, log = f"log/t-0/{base:020d}", f"{base:020d}.log"
    named = least(before, machine, f"{log}.swap", last=True)
    for each in (f"{name}.log", f"{name}.index"):
        assert named[each] == machine.disk.tree()[each]
    assert f"{name}.log.swap" not in least(before, machine, f"{base:020d}.index.swap", last=True)
    left, there = least(before, machine), machine.disk.tree()
    assert {p: d for p, d in left.items() if "/t-0" in p} == {
        p: d for p, d in there.items() if "/t-0" in p
    }


def test_what_a_cut_off_swap_made_void_is_gone_before_what_tells_that() -> None:
    def cut_off() -> None:
        write_segment(ROOT, 0, OLD[0], "x.")
        for path in sorted(ROOT.glob("x.*")):
            path.rename(FOLDER / f"{path.name[2:]}{'.swap' if '.log' in path.name else '.cleaned'}")

    before = changes_of(prepared(), cut_off).disk.copy()
    machine = changes_of(before, lambda: finish_swap(FOLDER))
    left = least(before, machine, f"{0:020d}.index.cleaned")
    assert f"log/t-0/{0:020d}.log.swap" in before.tree()
    assert f"log/t-0/{0:020d}.log.swap" not in left
