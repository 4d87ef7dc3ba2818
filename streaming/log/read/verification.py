"""Check a segment whole: every batch, and every entry of its indexes against the batches.

Readers verify what an index entry leads them to, and scan where it misleads them. Here everything
is looked at, and everything is reported that would cost a reader a scan or an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.errors import CorruptIndexError
from kafkalog.streaming.log.files import OFFSET_INDEX, TIME_INDEX
from kafkalog.streaming.log.index.offset import OffsetIndex
from kafkalog.streaming.log.index.sparse import REBUILD
from kafkalog.streaming.log.index.time import TimeIndex
from kafkalog.streaming.log.log_end import ValidBatches, ends_in_zeros

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from kafkalog.streaming.log.segment import LogSegment
    from kafkalog.streaming.records.batch import BatchTable

__all__ = ["SegmentCheck", "check_segment"]

_WITH_BASE_OFFSET: Final = 2
"""The magic of batches whose headers have it."""


class SegmentCheck(NamedTuple):
    """What a check of a segment came to; batches and bytes are those of its valid batches.

    ``is_broken`` says that batches are wrong, and not only what an index says of them.
    """

    problems: list[str]
    batches: int
    bytes: int
    is_broken: bool = False


def check_segment(segment: LogSegment, next_base_offset: int | None) -> SegmentCheck:
    """Say what is wrong with a segment; ``next_base_offset`` is that of the one after it.

    Bytes that are no valid batch end the check: what follows them is not looked at. Zeros up to the
    end of the file are right if no offsets are missing after them: a broker preallocates its active
    segment, and a copy of a running broker's log has it so.

    Raises:
        FileNotFoundError: the segment is gone.
    """
    problems: list[str] = []
    with segment:
        checks = [
            check
            for kind in (_OffsetCheck, _TimeCheck)
            if (check := _opened(kind, segment, problems)) is not None
        ]
        valid, batches = ValidBatches(segment), 0
        for table in valid:
            batches += len(table)
            for check in checks:
                check.compare(table)
        next_offset, size, broken = valid.end
        is_whole = next_base_offset in {None, next_offset}
        if broken is not None and not (is_whole and ends_in_zeros(segment, size)):
            return SegmentCheck([str(broken)], batches, size, is_broken=True)
    overlaps = next_base_offset is not None and next_offset > next_base_offset
    if overlaps:
        problems.append(
            f"{segment.path} ends at offset {next_offset}, but the next segment begins at "
            f"{next_base_offset}"
        )
    problems += [problem for check in checks if (problem := check.problem(next_offset)) is not None]
    return SegmentCheck(problems, batches, size, is_broken=overlaps)


class _Entries(NamedTuple):
    """All entries of an index: absolute offsets, and the other field; int64[n] each."""

    path: Path
    offsets: npt.NDArray[np.int64]
    others: npt.NDArray[np.int64]


class _Check:
    """Holds the entries of one index against batches that come in order."""

    INDEX: type[OffsetIndex | TimeIndex]
    SUFFIX: str
    OTHER: str

    def __init__(self, entries: _Entries) -> None:
        self._entries = entries
        self._next = 0
        self._wrong: int | None = None

    def compare(self, table: BatchTable) -> None:
        """Check the entries that lead into these batches."""
        end = self._next + self._count(table, self._next)
        mine = slice(self._next, end)
        wrong = ~self._fit(table, self._entries.offsets[mine], self._entries.others[mine])
        if self._wrong is None and wrong.any():
            self._wrong = self._next + int(wrong.argmax())
        self._next = end

    def problem(self, next_offset: int) -> str | None:
        """Return which entry is wrong first, if any; the last batch ends before ``next_offset``."""
        path, offsets, others = self._entries
        wrong = self._wrong
        if wrong is None:
            wrong = min(self._next, int(np.searchsorted(offsets, next_offset)))
        if wrong == len(offsets):
            return None
        return (
            f"{path}: entry {wrong} of {len(offsets)} (offset {offsets[wrong]}, {self.OTHER} "
            f"{others[wrong]}) does not fit the batches in the log; {REBUILD}"
        )

    def _count(self, table: BatchTable, first: int) -> int:
        raise NotImplementedError

    def _fit(
        self,
        table: BatchTable,
        offsets: npt.NDArray[np.int64],
        others: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        raise NotImplementedError


class _OffsetCheck(_Check):
    """A batch begins at the position, and all before it end below the offset.

    It has the offset, or later ones of its append do; up to Kafka 1.1 it was the append's first.
    Of a wrapper the header has the last one only: where it begins, the batch before tells.
    """

    INDEX, SUFFIX, OTHER = OffsetIndex, OFFSET_INDEX, "position"
    _ended = -1

    def _count(self, table: BatchTable, first: int) -> int:
        end = int(table.end_position[-1])
        return int(np.searchsorted(self._entries.others[first:], end))

    def _fit(
        self,
        table: BatchTable,
        offsets: npt.NDArray[np.int64],
        others: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        slots = np.searchsorted(table.position, others, side="right") - 1
        earliest = np.concatenate(([self._ended], table.last_offset[:-1])) + 1
        self._ended = int(table.last_offset[-1])
        first = np.where(table.magic == _WITH_BASE_OFFSET, table.base_offset, earliest)
        fits: npt.NDArray[np.bool_] = (
            (slots >= 0) & (table.position[slots] == others) & (first[slots] <= offsets)
        )
        return fits


class _TimeCheck(_Check):
    """The batch that holds the offset has the timestamp as its largest, or is of magic 0.

    Brokers index when they append messages that have no timestamps, with LogAppendTime.
    """

    INDEX, SUFFIX, OTHER = TimeIndex, TIME_INDEX, "timestamp"

    def _count(self, table: BatchTable, first: int) -> int:
        last = table.last_offset[-1]
        return int(np.searchsorted(self._entries.offsets[first:], last, side="right"))

    def _fit(
        self,
        table: BatchTable,
        offsets: npt.NDArray[np.int64],
        others: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        slots = np.searchsorted(table.last_offset, offsets)
        fits: npt.NDArray[np.bool_] = (table.max_timestamp[slots] == others) | (
            table.magic[slots] == 0
        )
        return fits


def _opened(kind: type[_Check], segment: LogSegment, problems: list[str]) -> _Check | None:
    """Read an index whole; what keeps it from being read joins the problems."""
    path = segment.file(kind.SUFFIX)
    try:
        with kind.INDEX(path, segment.base_offset) as index:
            entries = index.read(0, len(index))
    except FileNotFoundError:
        problems.append(f"{path} is missing; {REBUILD}")
        return None
    except CorruptIndexError as error:
        problems.append(str(error))
        return None
    offsets = entries["offset"].astype(np.int64) + segment.base_offset
    others = entries[kind.OTHER].astype(np.int64)
    back = np.flatnonzero((offsets[1:] <= offsets[:-1]) | (others[1:] <= others[:-1]))
    if len(back):
        problems.append(
            f"{path}: entry {back[0] + 1} of {len(offsets)} does not follow the one before; "
            f"{REBUILD}"
        )
        return None
    return kind(_Entries(path, offsets, others))
