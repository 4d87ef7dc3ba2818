"""Slices: byte ranges of segments that a reader is to read, and how they are split.

A slice carries offsets *and* positions. The offsets are the contract; the positions say where to
start and how much to read at most, and hold only for the very file that the slice names by device
and inode. Everything here comes from listings and offset indexes: no log is scanned.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from kafkalog.errors import CorruptIndexError
from kafkalog.files.paths import as_path
from kafkalog.files.remote_path import RemotePath
from kafkalog.streaming.log.files import SWAP
from kafkalog.streaming.log.segment import LogSegment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from kafkalog.files.watch import Stamp

__all__ = [
    "FIRST_PIECE",
    "PIECE",
    "SegmentSlice",
    "cut_slice",
    "open_planned",
    "pieces_backwards",
    "slice_segment",
    "split_slice",
]

_BEFORE_CUT: Final = 1 << 20
"""How far before the first cut entries of an index are looked at: a batch is rarely larger."""
PIECE: Final = 1 << 20
"""Bytes of a piece: what is worth a look at a file, and is decompressed within a core's reach."""
FIRST_PIECE: Final = 64 << 10
"""Bytes of the piece at the end, where what is looked for often lies."""
_WINDOW: Final = 8 << 20
"""The bytes for which an index is looked at in one go, from the end backwards."""


class SegmentSlice(NamedTuple):
    """The offsets ``[start_offset, end_offset)`` of one segment, and the bytes they lie in.

    ``end_position`` bounds the bytes from above by less than an index interval and one batch.
    ``replica`` is the stamp of a replica in sync: with another one, it may not be any more. Plain
    numbers and text: it travels to tasks.
    """

    path: str | RemotePath
    base_offset: int
    device: int
    inode: int
    start_position: int
    end_position: int
    start_offset: int
    end_offset: int
    replica: Stamp | None = None

    @property
    def size(self) -> int:
        """Bytes to read, at most."""
        return self.end_position - self.start_position

    @property
    def folder(self) -> Path:
        """The partition's folder. To make a path takes longer than to open a file: ask once."""
        return as_path(self.path).parent

    def announce(self) -> None:
        """Let the store know that it is read soon, after others or before them."""
        if isinstance(self.path, RemotePath):
            self.path.store.will_read(self.path.key, self.start_position, self.end_position)

    def __reduce__(self) -> tuple[Callable[..., SegmentSlice], tuple[object, ...]]:
        path, carried = self.path, None
        if isinstance(path, RemotePath):
            carried = path.store.carried(path.key, self.start_position, self.end_position)
        return _carried_slice, (carried, *self)


def _carried_slice(carried: object, *fields: Any) -> SegmentSlice:  # noqa: ANN401
    """Return a slice that was planned in another process, which has told its store of it."""
    arrived = SegmentSlice(*fields)
    if isinstance(arrived.path, RemotePath):
        arrived.path.store.carry(arrived.path.key, carried)
    return arrived


def slice_segment(segment: LogSegment, start: int, end: int, *, sealed_end: bool) -> SegmentSlice:
    """Find the bytes of the offsets ``[start, end)`` of a segment.

    ``sealed_end`` says that the segment holds nothing at or above ``end``: its size is the bound.

    Raises:
        FileNotFoundError: the segment is gone.
    """
    identity = segment.identity
    start_position = segment.floor_position(start) if start > segment.base_offset else 0
    end_position = segment.size if sealed_end else segment.end_position(end)
    return SegmentSlice(
        segment.place(),
        segment.base_offset,
        identity.device,
        identity.inode,
        start_position,
        max(start_position, end_position),
        start,
        end,
    )


def open_planned(planned: SegmentSlice, folder: Path | None = None) -> LogSegment | None:
    """Open the file that a slice was planned for; None if there is no such file any more.

    ``folder`` is the slice's, of who knows it. A file that was planned under its ``.swap`` name has
    its final one by now.
    """
    directory = folder or planned.folder
    for suffix in ("", SWAP):
        segment = LogSegment(directory, planned.base_offset, suffix)
        with suppress(FileNotFoundError):
            if segment.identity == (planned.device, planned.inode) and _begins(segment, planned):
                return segment
        segment.close()
    return None


def _begins(segment: LogSegment, planned: SegmentSlice) -> bool:
    """Return whether nothing of a slice lies before its start position.

    File systems give the inode of a deleted file to the next one, which may be the same segment
    compacted once more.
    """
    if planned.start_position == 0:
        return True
    return segment.begins_by(planned.start_offset, planned.start_position)


def split_slice(whole: SegmentSlice, pieces: int) -> list[SegmentSlice]:
    """Cut a slice into at most ``pieces`` of about equal bytes, at batch boundaries.

    The boundaries are those that the offset index knows, so that there may be fewer pieces, down to
    the slice itself. Together they hold its offsets exactly once.
    """
    return cut_slice(whole, [part * whole.size / pieces for part in range(1, pieces)])


def cut_slice(whole: SegmentSlice, after: Sequence[float]) -> list[SegmentSlice]:
    """Cut a slice near places, given in bytes from its start and ascending; see above."""
    segment = open_planned(whole) if after else None
    if segment is None:
        return [whole]
    with segment:
        index = segment.offset_index()
        if index is None:
            return [whole]
        first = whole.start_position + int(after[0]) - _BEFORE_CUT
        try:
            entries = index.between(max(whole.start_position, first), whole.end_position)
        except CorruptIndexError:  # a hint that does not help; whoever seeks by it says so
            return [whole]
    # An entry's offset is the last one of its batch: the boundary lies after it.
    inside = (entries[:, 0] >= whole.start_offset) & (entries[:, 0] < whole.end_offset - 1)
    entries = entries[inside]
    if not len(entries) or (np.diff(entries[:, 0]) <= 0).any():
        return [whole]
    wanted = whole.start_position + np.array(after)
    # ... which is where the next entry points to, if that is not too far on.
    cuts = np.unique(np.maximum(np.searchsorted(entries[:, 1], wanted) - 1, 0))
    return list(_pieces(whole, entries, cuts.tolist()))


def _pieces(
    whole: SegmentSlice, entries: np.ndarray[tuple[int, int], np.dtype[np.int64]], cuts: list[int]
) -> Iterator[SegmentSlice]:
    start_offset, start_position = whole.start_offset, whole.start_position
    for cut in cuts:
        end_offset = int(entries[cut, 0]) + 1
        # The batch at the entry belongs to the piece before the cut, so that piece ends, at most,
        # where the next entry's begins.
        after = int(entries[cut + 1, 1]) if cut + 1 < len(entries) else whole.end_position
        yield whole._replace(
            start_offset=start_offset,
            start_position=start_position,
            end_offset=end_offset,
            end_position=after,
        )
        start_offset, start_position = end_offset, int(entries[cut, 1])
    yield whole._replace(start_offset=start_offset, start_position=start_position)


def pieces_backwards(whole: SegmentSlice, smallest: int, largest: int) -> Iterator[SegmentSlice]:
    """Cut a slice as its index allows, the last piece first: of ``smallest`` bytes, then doubling.

    Pieces end near multiples of their size in the file, so that they are the same when the file has
    grown.
    """
    rest, size = whole, smallest
    while True:
        places: list[int] = []
        place = rest.end_position
        while rest.end_position - place < _WINDOW:
            place = (place - 1) // size * size
            if place <= rest.start_position:
                break
            places.append(place - rest.start_position)
            size = min(2 * size, largest)
        rest, *pieces = cut_slice(rest, places[::-1])
        yield from reversed(pieces)
        if not pieces:
            yield rest
            return
