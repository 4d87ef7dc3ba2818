"""Directories that were copied file by file while a broker wrote: no two files of the same moment.

They are read to the log end as a broker recovers them, which cuts a log at the first bytes behind
its recovery point that are no valid batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.log_files import cut, flip, grow_with_zeros
from tests.support.logs import Row, batch_bytes, write_checkpoint, write_segment
from tests.support.reading import read_batch

from kafkalog.checkpoints.broker import HIGH_WATERMARK, RECOVERY_POINT
from kafkalog.errors import CorruptRecordError

if TYPE_CHECKING:
    from pathlib import Path

BATCH = batch_bytes(0, [Row()] * 5)


def _segment(root: Path, base: int, batches: int = 4) -> Path:
    data = b"".join(batch_bytes(base + 5 * number, [Row()] * 5) for number in range(batches))
    return write_segment(root / "t-0", base, data, index=True)


def _offsets(root: Path, **given: str) -> list[int]:
    options = {"path": str(root), "subscribe": "t", "readUpTo": "logEnd"} | given
    return [row["offset"] for row in read_batch(**options)]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Three segments of twenty records; the second one was copied when it had half of them."""
    _segment(tmp_path, 0)
    early = _segment(tmp_path, 20, batches=2)
    grow_with_zeros(early, 3_000_000)  # preallocated
    _segment(tmp_path, 40)
    write_checkpoint(tmp_path, RECOVERY_POINT, {"t-0": 20})
    write_checkpoint(tmp_path, HIGH_WATERMARK, {"t-0": 60})
    return tmp_path


def test_a_preallocated_segment_that_was_copied_early_ends_the_log(
    copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for level in ("read_uncommitted", "read_committed"):
        assert _offsets(copy, **{"kafka.isolation.level": level}) == list(range(30))
    assert (
        "30 offsets of 1 partition are said to be committed and are not in the log" in caplog.text
    )
    assert "t-0 [30, 60)" in caplog.text


def test_what_was_flushed_is_not_looked_at_again(copy: Path) -> None:
    write_checkpoint(copy, RECOVERY_POINT, {"t-0": 40})
    with pytest.raises(CorruptRecordError, match="a size of 0"):
        _offsets(copy)


def test_without_reading_to_the_log_end_what_is_said_to_be_committed_has_to_be_there(
    copy: Path,
) -> None:
    with pytest.raises(CorruptRecordError, match="a size of 0"):
        _offsets(copy, readUpTo="highWatermark")


def test_damage_in_place_of_zeros_is_an_error_below_the_committed_end(copy: Path) -> None:
    flip(copy / "t-0" / f"{20:020d}.log", 2_999_999)
    with pytest.raises(CorruptRecordError, match="a size of 0"):
        _offsets(copy)
    write_checkpoint(copy, HIGH_WATERMARK, {"t-0": 30})
    assert _offsets(copy) == list(range(30))


def test_a_segment_that_was_copied_early_and_whole_leaves_a_gap(copy: Path) -> None:
    """For a broker that recovers, too: it may be compaction's."""
    cut(copy / "t-0" / f"{20:020d}.log", 2 * len(BATCH))
    for high_watermark in (10, 35, 60):
        write_checkpoint(copy, HIGH_WATERMARK, {"t-0": high_watermark})
        assert _offsets(copy) == [*range(30), *range(40, 60)]


@pytest.mark.parametrize("skip", [{}, {"onCorruptRecord": "skip"}])
@pytest.mark.parametrize("last", [25, 35, 50])
def test_what_a_cleaner_has_joined_lies_beside_what_it_was_joined_of(
    skip: dict[str, str], last: int, tmp_path: Path
) -> None:
    """The first segment was copied after a swap, those behind it before."""
    joined = [5, 10, 25, last]
    batches = [batch_bytes(base, [Row()] * 5) for base in sorted(set(joined))]
    write_segment(tmp_path / "t-0", 0, b"".join(batches), index=True)
    for base in (20, 40, 60):
        _segment(tmp_path, base)
    write_checkpoint(tmp_path, HIGH_WATERMARK, {"t-0": 80})
    kept = {base + number for base in joined for number in range(5)}
    for more in ({}, {"splitBytes": "100"}, {"minPartitions": "7"}):
        # as a broker that recovers it serves it
        assert _offsets(tmp_path, **skip, **more) == sorted(kept | {*range(last + 5, 80)})
        # else what lies in both is taken from where it was
        rows = _offsets(tmp_path, **skip, **more, readUpTo="highWatermark")
        assert rows == [*range(5, 15), *range(20, 80)]
    starting = {"startingOffsets": '{"t":{"0":30}}'}
    assert _offsets(tmp_path, **skip, **starting) == sorted(
        {each for each in kept if each >= 30} | {*range(max(30, last + 5), 80)}
    )
