"""The segments of a partition as a collection, and what an unfinished swap makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segments import LogSegments, retrying

if TYPE_CHECKING:
    from pathlib import Path


def _touch(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).touch()


def _segments(*bases: int) -> LogSegments:
    from pathlib import Path

    return LogSegments(LogSegment(Path("t-0"), base) for base in bases)


def _base(segment: LogSegment | None) -> int | None:
    return None if segment is None else segment.base_offset


def test_segments_are_in_the_order_of_their_base_offsets() -> None:
    segments = _segments(9, 0, 5)
    assert [segment.base_offset for segment in segments] == [0, 5, 9]
    assert _base(segments.active) == 9
    assert _base(_segments().active) is None


@pytest.mark.parametrize(
    ("offset", "floor", "higher", "from_floor"),
    [
        (-1, None, 2, [2, 5, 9]),
        (1, None, 2, [2, 5, 9]),
        (2, 2, 5, [2, 5, 9]),
        (4, 2, 5, [2, 5, 9]),
        (5, 5, 9, [5, 9]),
        (9, 9, None, [9]),
        (2**63 - 1, 9, None, [9]),
    ],
)
def test_an_offset_lies_in_the_segment_at_or_below_it(
    offset: int, floor: int | None, higher: int | None, from_floor: list[int]
) -> None:
    segments = _segments(2, 5, 9)
    assert _base(segments.floor(offset)) == floor
    assert _base(segments.higher(offset)) == higher
    assert [segment.base_offset for segment in segments.from_floor(offset)] == from_floor
    for most in (1, 2, 3, 4):
        some = segments.from_floor(offset, most)
        assert [segment.base_offset for segment in some] == from_floor[:most]
    for end in (-1, 2, 3, 5, 6, 9, 10):
        below = [segment.base_offset for segment in segments.between(offset, end)]
        assert below == [base for base in from_floor if offset < end and base < end]


def test_without_segments_nothing_is_found() -> None:
    segments = _segments()
    assert segments.floor(0) is None
    assert segments.higher(0) is None
    assert not segments.from_floor(0)


def test_a_segment_is_known_by_its_file_and_not_by_its_name(tmp_path: Path) -> None:
    _touch(tmp_path, f"{0:020d}.log", f"{5:020d}.log")
    with LogSegment(tmp_path, 5) as opened:
        assert opened.size == 0
        assert LogSegments.of(tmp_path).has(opened)
        other = tmp_path / "other"
        other.touch()
        other.rename(opened.path)
        assert not LogSegments.of(tmp_path).has(opened)
        opened.path.unlink()
        assert not LogSegments.of(tmp_path).has(opened)


def test_a_file_that_is_gone_is_looked_for_in_a_new_listing_a_few_times() -> None:
    listings: list[str] = []

    def act() -> list[str]:
        if len(listings) < 3:
            raise FileNotFoundError
        return listings

    assert retrying(act, lambda: listings.append("new")) == ["new"] * 3
    with pytest.raises(FileNotFoundError):
        retrying(lambda: (_ for _ in ()).throw(FileNotFoundError))


def test_an_empty_swap_takes_the_place_of_its_own_base_only(tmp_path: Path) -> None:
    _touch(tmp_path, f"{0:020d}.log", f"{0:020d}.log.swap", f"{5:020d}.log")
    segments = LogSegments.of(tmp_path)
    assert [segment.path.name for segment in segments] == [
        f"{0:020d}.log.swap",
        f"{5:020d}.log",
    ]


@pytest.mark.parametrize("kind", ["log", "index", "timeindex", "txnindex"])
def test_a_swap_counts_once_no_file_at_or_below_it_is_cleaned_only(
    kind: str, tmp_path: Path
) -> None:
    """A broker that is killed while it renames a segment's files goes back to what was before."""
    _touch(tmp_path, *(f"{base:020d}.log" for base in (0, 5, 9)))
    _touch(tmp_path, f"{5:020d}.log.swap", f"{5:020d}.{kind}.cleaned")
    names = [segment.path.name for segment in LogSegments.of(tmp_path)]
    assert names == [f"{base:020d}.log" for base in (0, 5, 9)]
    (tmp_path / f"{5:020d}.{kind}.cleaned").rename(tmp_path / f"{9:020d}.{kind}.cleaned")
    names = [segment.path.name for segment in LogSegments.of(tmp_path)]
    assert names == [f"{0:020d}.log", f"{5:020d}.log.swap", f"{9:020d}.log"]
