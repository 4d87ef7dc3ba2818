"""Where partitions end: the rule, a line for each case."""

from __future__ import annotations

import shutil
from copy import deepcopy
from itertools import pairwise, product
from typing import TYPE_CHECKING

import pytest
from tests.support.logs import Row, batch_bytes, write_checkpoint, write_segment

from kafkalog.checkpoints.broker import HIGH_WATERMARK, RECOVERY_POINT
from kafkalog.errors import UnknownTopicOrPartitionError
from kafkalog.model import TopicPartition
from kafkalog.streaming.store.ends.rule import (
    OffsetGap,
    RecordedOffsets,
    SeenEnd,
    committed_end,
    end_of,
    marks_above,
    unverified_from,
)
from kafkalog.streaming.store.ends.tiered import LogStart
from kafkalog.streaming.store.ends.tracker import Ends, LogEndTracker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WHOLE = SeenEnd(0, 10)
TORN = SeenEnd(0, 10, is_torn=True)
DAMAGED = SeenEnd(0, 10, is_damaged=True)

COMMITTED = [
    # commit state, intent, high watermark, committed end
    (5, None, None, 5),
    (5, None, 3, 5),
    (5, None, 7, 7),
    (None, None, 7, 7),
    (None, None, 0, 0),
    ("unnamed", None, None, 0),
    (None, None, None, None),
    (5, 7, 9, 7),
    (5, 7, 6, 6),
    (5, 7, None, 5),
    (None, 7, 9, 7),
    (None, 7, None, 7),
    (None, 0, 9, 0),
]

SEEN = [
    # what is said, the log, where readers stop, unread, missing, lost
    (RecordedOffsets(5), WHOLE, 5, (5, 10), None, None),
    (RecordedOffsets(10), WHOLE, 10, None, None, None),
    (RecordedOffsets(high_watermark=12), WHOLE, 10, None, (10, 12), None),
    (RecordedOffsets(high_watermark=12), TORN, 10, None, (10, 12), None),
    (RecordedOffsets(high_watermark=12), DAMAGED, 12, None, None, None),
    (RecordedOffsets(12), WHOLE, 10, None, (10, 12), (10, 12)),
    (RecordedOffsets(12), TORN, 12, None, None, None),
    (RecordedOffsets(11, high_watermark=12), WHOLE, 10, None, (10, 12), (10, 11)),
    (RecordedOffsets(), WHOLE, 10, None, None, None),
]


def said_of(
    state: int | str | None, begun: int | None, high_watermark: int | None
) -> RecordedOffsets:
    committed = state if isinstance(state, int) else None
    return RecordedOffsets(committed, state is not None, begun, high_watermark)


@pytest.mark.parametrize(("state", "begun", "high_watermark", "expected"), COMMITTED)
def test_how_far_a_partition_is_committed(
    state: int | str | None, begun: int | None, high_watermark: int | None, expected: int | None
) -> None:
    said = said_of(state, begun, high_watermark)
    assert committed_end(said) == end_of(said, WHOLE).committed == expected
    assert committed_end(said._replace(recovery_point=8, log_start=2)) == expected


@pytest.mark.parametrize(("said", "log", "offset", "unread", "missing", "lost"), SEEN)
def test_where_readers_stop(
    said: RecordedOffsets,
    log: SeenEnd,
    offset: int,
    unread: tuple[int, int] | None,
    missing: tuple[int, int] | None,
    lost: tuple[int, int] | None,
) -> None:
    end = end_of(said, log)
    assert (end.offset, end.unread, end.missing, end.lost) == (offset, unread, missing, lost)


@pytest.mark.parametrize(
    ("said", "log", "offset", "unread", "is_hidden"),
    [
        (RecordedOffsets(5, log_start=2), WHOLE, 5, (5, 10), False),
        (RecordedOffsets(5, log_start=7), WHOLE, 7, (7, 10), False),
        (RecordedOffsets(5, log_start=10), WHOLE, 10, None, False),
        (RecordedOffsets(5, log_start=11), WHOLE, 11, None, True),
        (RecordedOffsets(7, log_start=6, kept_start=2), WHOLE, 7, (7, 10), False),
        (RecordedOffsets(7, log_start=2, kept_start=6), WHOLE, 7, (7, 10), False),
        (RecordedOffsets(12, kept_start=11), WHOLE, 10, None, False),
        (RecordedOffsets(12, kept_start=11), DAMAGED, 12, None, False),
        (RecordedOffsets(high_watermark=0), SeenEnd(20, 30), 20, (20, 30), False),
        (RecordedOffsets(high_watermark=12, log_start=11), DAMAGED, 12, None, False),
    ],
)
def test_no_end_lies_below_the_log_start(
    said: RecordedOffsets,
    log: SeenEnd,
    offset: int,
    unread: tuple[int, int] | None,
    is_hidden: bool,
) -> None:
    end = end_of(said, log)
    assert (end.offset, end.unread, end.is_hidden) == (offset, unread, is_hidden)
    assert end.start == max(said.log_start, min(said.kept_start, log.end), log.start)


@pytest.mark.parametrize(
    ("said", "log", "offset", "missing", "is_damaged"),
    [
        (RecordedOffsets(5), WHOLE, 10, None, False),
        (RecordedOffsets(5), DAMAGED, 10, None, True),
        (RecordedOffsets(10), DAMAGED, 10, None, True),
        (RecordedOffsets(12), WHOLE, 10, (10, 12), False),
        (RecordedOffsets(12), TORN, 12, None, False),
        (RecordedOffsets(high_watermark=12), DAMAGED, 12, None, False),
        (RecordedOffsets(), DAMAGED, 10, None, True),
    ],
)
def test_up_to_the_log_end_readers_stop_there_where_it_has_what_is_committed(
    said: RecordedOffsets,
    log: SeenEnd,
    offset: int,
    missing: tuple[int, int] | None,
    is_damaged: bool,
) -> None:
    end = end_of(said, log, to_log_end=True)
    assert (end.offset, end.missing, end.is_damaged) == (offset, missing, is_damaged)
    assert (end.unread, end.is_confirmed) == (None, False)


@pytest.mark.parametrize(
    ("said", "is_confirmed"),
    [
        (RecordedOffsets(5), True),
        (RecordedOffsets(10), True),
        (RecordedOffsets(12), False),
        (RecordedOffsets(), False),
        (RecordedOffsets(5, log_start=11), False),
    ],
)
def test_an_end_holds_until_files_say_another_where_the_log_was_seen_to_have_it(
    said: RecordedOffsets, is_confirmed: bool
) -> None:
    assert end_of(said, WHOLE).is_confirmed == is_confirmed


@pytest.mark.parametrize(("begun", "reach"), [(None, 10), (4, 4), (0, 0), (12, 10)])
def test_what_an_unfinished_commit_has_appended_does_not_count_as_there(
    begun: int | None, reach: int
) -> None:
    assert end_of(RecordedOffsets(3, begun=begun), WHOLE).reach == reach


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (RecordedOffsets(5, recovery_point=3), 3),
        (RecordedOffsets(5, recovery_point=8), 5),
        (RecordedOffsets(5), 5),
        (RecordedOffsets(recovery_point=3), 3),
        (RecordedOffsets(), None),
    ],
)
def test_batches_are_verified_from_what_was_neither_committed_nor_flushed(
    said: RecordedOffsets, expected: int | None
) -> None:
    assert unverified_from(said) == expected


@pytest.mark.parametrize(
    ("said", "reach", "expected"),
    [
        (RecordedOffsets(10, high_watermark=10, recovery_point=10), 20, []),
        (RecordedOffsets(), 20, []),
        (RecordedOffsets(12), 20, [(12, "committed up to")]),
        (
            RecordedOffsets(high_watermark=12),
            20,
            [(12, f"the high watermark in {HIGH_WATERMARK} is")],
        ),
        (
            RecordedOffsets(recovery_point=12),
            12,
            [(12, f"the recovery point in {RECOVERY_POINT} is")],
        ),
        (RecordedOffsets(recovery_point=12), 11, []),
    ],
)
def test_what_was_committed_acknowledged_or_flushed_is_never_cut(
    said: RecordedOffsets, reach: int, expected: list[tuple[int, str]]
) -> None:
    assert list(marks_above(said, 10, lambda: reach)) == expected


def test_whatever_files_say_ends_are_in_order() -> None:
    numbers = (None, 0, 4, 9, 10, 15)
    logs = [SeenEnd(2, 10, damaged, torn) for damaged in (0, 1) for torn in (0, 1)]
    for committed, begun, high_watermark, log_start, has_state, to_log_end, log in product(
        numbers, numbers, numbers, (0, 4, 10), (False, True), (False, True), logs
    ):
        said = RecordedOffsets(committed, has_state, begun, high_watermark, None, log_start)
        end = end_of(said, log, to_log_end=to_log_end)
        assert end.offset >= end.start
        assert end.reach <= log.end
        assert end.missing is None or end.missing[0] == log.end < end.missing[1]
        assert end.lost is None or (end.missing and log.end < end.lost[1] <= end.missing[1])
        assert end.unread is None or (end.offset, log.end) == end.unread
        if begun is not None and committed is not None and committed <= begun:
            assert committed <= (end.committed or 0) <= begun


def test_what_one_look_has_found_stays_as_it_is_when_the_next_finds_other_ends(
    tmp_path: Path,
) -> None:
    for number in range(4):
        write_segment(tmp_path / f"t-{number}", 0, batch_bytes(0, [Row()] * 5))
    t = [TopicPartition("t", number) for number in range(4)]
    write_checkpoint(tmp_path, HIGH_WATERMARK, {"t-0": 3, "t-1": 7, "t-2": 5})
    watch = LogEndTracker([tmp_path])
    found = watch.look()
    assert found == Ends(
        offsets={t[0]: 3, t[1]: 5, t[2]: 5, t[3]: 0},
        unread={t[0]: OffsetGap(3, 5), t[3]: OffsetGap(0, 5)},
        missing={t[1]: OffsetGap(5, 7)},
        lost={},
        damaged={},
    )
    assert watch.look() == found
    before = deepcopy(found)
    write_checkpoint(tmp_path, HIGH_WATERMARK, {"t-0": 5, "t-1": 5, "t-2": 9, "t-3": 5})
    changed = watch.look()
    assert (changed.unread, changed.missing) == ({}, {t[2]: OffsetGap(5, 9)})
    assert found == before


def test_an_empty_log_of_a_look_need_not_be_opened_and_one_that_is_gone_is_unknown(
    tmp_path: Path,
) -> None:
    empty, filled, gone = (TopicPartition("t", number) for number in range(3))
    write_segment(tmp_path / "t-0", 7, b"")
    for key in (filled, gone):
        write_segment(tmp_path / str(key), 0, batch_bytes(0, [Row()] * 5))
    watch = LogEndTracker([tmp_path])
    ends = watch.look().offsets
    assert watch.seen_empty(empty, ends[empty]) == watch.start_of(empty) == LogStart(7, 7)
    assert watch.seen_empty(filled, ends[filled]) is None
    shutil.rmtree(tmp_path / "t-2")
    watch.look()
    assert watch.seen_empty(gone, ends[gone]) is None
    for ask in (watch.seen_start, watch.start_of, watch.standing):
        with pytest.raises(UnknownTopicOrPartitionError, match="t-2 is in none of"):
            ask(gone)


def rows_of_table(rule: Callable[..., object]) -> Iterator[list[str]]:
    """Read the table in a rule's docstring; the last column says why and is left out."""
    lines = [line.strip() for line in (rule.__doc__ or "").splitlines()]
    _, head, end = [at for at, line in enumerate(lines) if line.startswith("===")]
    starts = [at for at, sign in enumerate(lines[head]) if lines[head][at - 1 : at + 1] != "=="]
    edges = sorted({0, *(at for at in starts if lines[head][at] == "=")})
    for line in lines[head + 1 : end]:
        yield [line[a:b].strip() for a, b in pairwise(edges)]


def shown(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{value[0]}, {value[1]})"
    return "-" if value is None else str(value)


def test_the_tables_in_the_docstrings_have_just_these_lines() -> None:
    assert list(rows_of_table(committed_end)) == [[*map(shown, line)] for line in COMMITTED]
    kinds = {WHOLE: "whole", TORN: "torn", DAMAGED: "damaged"}
    for row, (said, log, *expected) in zip(rows_of_table(end_of), SEEN, strict=True):
        committed = shown(committed_end(said))
        if said.committed is not None and said.committed > 10:
            partly = f", {said.committed}" if said.high_watermark else ""
            committed += f"{partly} ours"
        assert row == [committed, kinds[log], *map(shown, expected)]
