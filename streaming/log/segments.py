"""The segments of a partition, in the order of their base offsets.

A cleaner replaces segments by renames: it writes ``.cleaned`` files, renames them to ``.swap`` once
they are whole, the highest base offset first, renames the old ones to ``.deleted``, and the
``.swap`` files to their final names. A broker that was killed on the way finishes that when it
starts: a ``.swap`` file that no ``.cleaned`` one, of a log or an index, lies at or below is the
truth for its range of offsets. So it is for readers; otherwise what it replaced would be missing,
or there twice. The files of a segment are renamed one by one, its log first.

Source: Kafka ``LogSegments``, ``LocalLog.replaceSegments``,
``LogLoader.removeTempFilesAndCollectSwapFiles``.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self, TypeVar, overload

from kafkalog.errors import LogDirectoryError, UnknownTopicOrPartitionError
from kafkalog.files.remote_path import RemotePath
from kafkalog.files.system import system
from kafkalog.files.watch import stamp_from, stamp_of
from kafkalog.model import MAX_OFFSET
from kafkalog.streaming.log.files import (
    CLEANED,
    LOG,
    OFFSET_INDEX,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    parse_base_offset,
)
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.valid_batches import find_valid_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from kafkalog.files.watch import Stamp
    from kafkalog.streaming.records.batch import BatchTable


__all__ = [
    "CLEANED_KINDS",
    "LogSegments",
    "SegmentListing",
    "base_offsets_of",
    "has_segments",
    "leaps_into_higher",
    "list_base_offsets",
    "next_offset",
    "retrying",
    "segment_names",
]


# ----------------------------------------------------------------------------------------------
# The names of the segments in a partition's folder, at one moment, though others rename them.


CLEANED_KINDS: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX)
"""The files that a cleaner writes of a segment, in the order in which a swap renames them."""

_KINDS: Final = (LOG, LOG + SWAP, *(kind + CLEANED for kind in CLEANED_KINDS))

_SETTLED_NS: Final = 100_000_000
"""A folder that has not changed for so long did not change while it was listed: its clock may tick
in steps of 10 ms, and on another machine."""

_KEPT_NS: Final = 3_000_000_000
"""For so long, for the listing to be kept: some file systems count in steps of two seconds."""

_MOST_KEPT: Final = 100
"""So many segments of a partition are kept, for who opens the log again."""

_RESTS_SECONDS: Final = (0.0, 0.0, 0.001, 0.0, 0.005, 0.0, 0.02, 0.0, *[0.05, 0.0] * 200)
"""How long to wait before each further listing of a folder that changes while it is listed.

After a rest it is listed twice in a row: two listings with a rest between them would never agree
where a cleaner renames more often than that.
"""


def list_base_offsets(directory: Path) -> list[int]:
    """List the base offsets of the ``.log`` files of a partition's folder, ascending.

    Raises:
        UnknownTopicOrPartitionError: the folder is gone.
    """
    return base_offsets_of(segment_names(directory), "")


def base_offsets_of(names: list[str], suffix: str, kind: str = LOG) -> list[int]:
    """Collect the base offsets of the files of a kind with a suffix, ascending."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(base for stem in stems if (base := parse_base_offset(stem, kind)) is not None)


def segment_names(directory: Path) -> list[str]:
    """List the ``.log`` files of a folder at one moment, and the files of an unfinished swap.

    A file that is renamed meanwhile may be in no listing at all: list until two agree.

    Raises:
        UnknownTopicOrPartitionError: the folder is gone.
        LogDirectoryError: no two listings agree.
    """
    return _names_and_stamp(directory)[0]


def _names_and_stamp(directory: Path) -> tuple[list[str], Stamp | None]:
    """List as :func:`segment_names`; also return the folder's stamp.

    As long as the folder has it, the names are those in it. None where a change after the listing
    may have left the folder with the same one.
    """
    try:
        if isinstance(directory, RemotePath):  # a listing of a store is of one moment
            return [e.name for e in directory.entries() if e.name.endswith(_KINDS)], None
        folder = str(directory)
        before = os.stat(folder)  # noqa: PTH116 - twice as fast as Path.stat()
        names = _list(directory)
        unchanged_ns = system.time_ns() - before.st_mtime_ns
        after = os.stat(folder)  # noqa: PTH116
        if after.st_mtime_ns == before.st_mtime_ns and unchanged_ns > _SETTLED_NS:
            return names, stamp_from(before) if unchanged_ns > _KEPT_NS else None
        for rest in _RESTS_SECONDS:
            system.sleep(rest)
            again = _list(directory)
            if set(again) == set(names):
                return names, None
            names = again
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UnknownTopicOrPartitionError(f"{directory}: there is no such folder") from error
    raise LogDirectoryError(
        f"{directory} changes so fast that {len(_RESTS_SECONDS)} listings of it, over "
        f"{sum(_RESTS_SECONDS):.0f} s, all differed; read it when less is renamed in it"
    )


def _list(directory: Path) -> list[str]:
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries if entry.name.endswith(_KINDS)]


# ----------------------------------------------------------------------------------------------

_T = TypeVar("_T")

_ATTEMPTS: Final = 5


def retrying(action: Callable[[], _T], again: Callable[[], object] = lambda: None) -> _T:
    """Act on a listing of segments, and again on a new one where a file in it is gone.

    Cleaners and retention rename and delete files between a listing and the moment at which one is
    opened. ``action`` lists, or ``again`` is called before each further attempt and does.

    Raises:
        FileNotFoundError: files go so fast that each attempt met one that was gone.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return action()
        except FileNotFoundError:
            again()
    return action()


class LogSegments(Sequence[LogSegment]):
    """Segments ascending by base offset, none of them open at first; the last is the active one.

    The listing is of one moment and never changes. Not thread safe: the segments are shared.
    """

    def __init__(self, segments: Iterable[LogSegment] = ()) -> None:
        self._segments = sorted(segments, key=lambda segment: segment.base_offset)

    @classmethod
    def of(cls, directory: Path) -> Self:
        """List a partition's folder.

        Raises:
            UnknownTopicOrPartitionError: the folder is gone.
            FileNotFoundError: cleaners swap so often that each listing was outdated at once.
        """
        return retrying(lambda: cls(_segments_of(directory, segment_names(directory))))

    @overload
    def __getitem__(self, slot: int) -> LogSegment: ...
    @overload
    def __getitem__(self, slot: slice) -> Self: ...
    def __getitem__(self, slot: int | slice) -> LogSegment | Self:
        if isinstance(slot, slice):
            part = type(self)()
            part._segments = self._segments[slot]  # noqa: SLF001 - in order as they are
            return part
        return self._segments[slot]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[LogSegment]:
        return iter(self._segments)

    @property
    def start(self) -> int:
        """The base offset of the first segment; 0 without any."""
        return self._segments[0].base_offset if self._segments else 0

    @property
    def active(self) -> LogSegment | None:
        """The segment that is appended to; None without any."""
        return self._segments[-1] if self._segments else None

    def floor(self, offset: int) -> LogSegment | None:
        """Return the segment that holds ``offset``; None if it lies before all of them."""
        slot = self._after(offset) - 1
        return self._segments[slot] if slot >= 0 else None

    def from_floor(self, offset: int, most: int | None = None) -> Self:
        """Return the segment that holds ``offset``, and those after; all if it lies before them.

        At most so many: who walks through a log asks at each segment.
        """
        if len(self._segments) <= 1:
            return self
        first = max(0, self._after(offset) - 1)
        return self[first : None if most is None else first + most]

    def between(self, start: int, end: int) -> Self:
        """Return the segment that holds ``start``, and those after it that begin below ``end``.

        Nothing where ``start`` is not below ``end``.
        """
        below = self._after(end - 1) if start < end else 0
        return self[max(0, self._after(start) - 1) : below]

    def higher(self, offset: int) -> LogSegment | None:
        """Return the first segment whose base offset is above ``offset``; None without one."""
        slot = self._after(offset)
        return self._segments[slot] if slot < len(self) else None

    def has(self, segment: LogSegment) -> bool:
        """Return whether the file of an open segment is the one that has its name here."""
        named = self.floor(segment.base_offset)
        if named is None or named.base_offset != segment.base_offset:
            return False
        with suppress(FileNotFoundError), named.unopened() as opened:
            return segment.identity == opened.identity
        return False

    def unopened(self) -> Self:
        """Return the same segments, none of which is open."""
        others = type(self)()
        others._segments = [segment.unopened() for segment in self._segments]  # noqa: SLF001
        return others

    def close(self) -> None:
        """Close the files of all segments."""
        for segment in self._segments:
            segment.close()

    def _after(self, offset: int) -> int:
        return bisect_right(self._segments, offset, key=lambda segment: segment.base_offset)


_NO_SEGMENTS: Final = LogSegments()


class SegmentListing:
    """The segments of a folder for a walk through them: listed again where the folder changed.

    A folder that is as it was when it was listed costs one ``stat``, however many files it has.
    """

    def __init__(self, directory: Path) -> None:
        """Take a partition's folder; nothing is listed yet."""
        self._directory = directory
        self._listed = _NO_SEGMENTS
        self._stamp: Stamp | None = None
        """Of the folder, where a later change shows in it."""

    def segments(self) -> LogSegments:
        """Return the segments as they are now.

        Raises:
            UnknownTopicOrPartitionError: the folder is gone.
            FileNotFoundError: cleaners swap so often that each listing was outdated at once.
        """
        if self._stamp is None or self._stamp != self._stamp_now():
            self._listed = retrying(self._list)
        return self._listed

    def unopened(self) -> LogSegments:
        """Return the segments as they are now for somebody who opens and closes them by himself.

        Raises:
            UnknownTopicOrPartitionError, FileNotFoundError: as :meth:`segments`.
        """
        segments = self.segments()
        if len(segments) > _MOST_KEPT:  # memory is to follow partitions, not segments
            self.refresh()
            self._listed = _NO_SEGMENTS
            return segments
        return segments.unopened()

    def refresh(self) -> None:
        """List again when next asked: a file of the listing is gone."""
        self._stamp = None

    def _stamp_now(self) -> Stamp | None:
        return None if isinstance(self._directory, RemotePath) else stamp_of(str(self._directory))

    def _list(self) -> LogSegments:
        names, self._stamp = _names_and_stamp(self._directory)
        return LogSegments(_segments_of(self._directory, names))


def has_segments(directory: Path) -> bool:
    """Whether a partition's folder has any segment, which one listing tells.

    Raises:
        UnknownTopicOrPartitionError: the folder is gone.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        if not isinstance(directory, RemotePath) and base_offsets_of(_list(directory), ""):
            return True
    return bool(LogSegments.of(directory))


def leaps_into_higher(segment: LogSegment, batch: BatchTable) -> bool:
    """Return whether the last batch of an open file, a table of one, has offsets of later segments.

    False if the segment of these offsets has the batch as well: a slow copy may contain a segment
    that a cleaner has merged, and those it was merged from. False too if the file was replaced.
    """
    first, last = int(batch.base_offset[0]), int(batch.last_offset[0])
    listed = LogSegments.of(segment.directory)
    other = listed.floor(last)
    if other is not None and other.base_offset > segment.base_offset and listed.has(segment):
        with suppress(FileNotFoundError), other:
            return not other.holds(first, last)
    return False


def _segments_of(directory: Path, names: list[str]) -> list[LogSegment]:
    if all(name.endswith(LOG) for name in names):  # no swap is under way
        return [LogSegment(directory, base) for base in base_offsets_of(names, "")]
    cleaned = [base for kind in CLEANED_KINDS for base in base_offsets_of(names, CLEANED, kind)]
    swaps = [
        base for base in base_offsets_of(names, SWAP) if base < min(cleaned, default=MAX_OFFSET)
    ]
    swapped = [LogSegment(directory, base, SWAP) for base in swaps]
    end = max((next_offset(segment) for segment in swapped), default=0)
    live = [
        LogSegment(directory, base)
        for base in base_offsets_of(names, "")
        if not swaps or not (swaps[0] <= base < end or base in swaps)
    ]
    return live + swapped


def next_offset(segment: LogSegment) -> int:
    """Return the offset after the last valid batch of a segment, its base offset without any."""
    with segment:
        return find_valid_end(segment, segment.floor_position(MAX_OFFSET)).next_offset
