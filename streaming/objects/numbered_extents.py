"""Read extents of a log in an object store: their batches get offsets and epochs when they come.

Batches are stored before their commit has a number, so without offsets. Small extents that lie
beside each other, and are wanted, come in one range. A large one comes in pieces, one after the
other: a piece is whole batches, and says with which offset the next one begins.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, TypeVar

from kafkalog.checkpoints.bucket_state import object_path
from kafkalog.errors import CorruptRecordError, DataLossError
from kafkalog.files.system import system
from kafkalog.streaming.objects.bucket_log import is_void
from kafkalog.streaming.records.batch_layout import (
    HEADER_SIZE,
    LAST_OFFSET_DELTA_POSITION,
    LEADER_EPOCH_POSITION,
    MAGIC_POSITION,
    OVERHEAD,
    SIZE_POSITION,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from threading import Lock

    from kafkalog.checkpoints.bucket_state import Extent
    from kafkalog.files.objects import Objects

_K = TypeVar("_K")
_T = TypeVar("_T")

__all__ = ["NumberedExtents", "gone_error", "joined", "number_batches"]

_CACHE_BYTES: Final = 64 << 20
_ONE_RANGE_BYTES: Final = 8 << 20
_GAP_BYTES: Final = 64 << 10
"""The most bytes between two extents that are fetched together: they are thrown away."""
_WANTED_EXTENTS: Final = 1 << 19
_RECENT: Final = 256
"""How many large extents, and how many objects, are remembered: those that were read last."""


class _Pieces:
    """Where the pieces of a large extent begin, as far as it was read."""

    def __init__(self, extent: Extent) -> None:
        self.using = system.lock()
        self.starts = [0]
        """Positions in the extent; the last one is that of what comes next, or of its end."""
        self.offsets = [extent.base_offset]
        self.rest = b""
        """What has come of the batch that the next piece begins with."""


class NumberedExtents:
    """Fetches extents, numbers their batches, and keeps what came last; for all threads."""

    def __init__(self, objects: Objects, place: str) -> None:
        """Make one that has read nothing.

        Args:
            objects: the store.
            place: the URI of the log, for errors.
        """
        self._objects = objects
        self._place = place
        self._using = system.lock()
        self._wanted: dict[tuple[str, str], dict[int, Extent]] = {}
        """The extents that are read soon, by log and object, and by their positions there."""
        self._wanted_count = 0
        self._kept: OrderedDict[_Place, memoryview] = OrderedDict()
        self._kept_bytes = 0
        self._pieces: OrderedDict[_Place, _Pieces] = OrderedDict()
        self._fetching: OrderedDict[tuple[str, str], Lock] = OrderedDict()
        """Held while extents of an object come, so that none comes twice."""

    def want(self, log_id: str, extents: Iterable[Extent]) -> None:
        """Take note of extents that are read soon: they come together where they lie together."""
        with self._using:
            if self._wanted_count > _WANTED_EXTENTS:
                self._wanted, self._wanted_count = {}, 0
            for extent in extents:
                there = self._wanted.setdefault((log_id, extent.object), {})
                self._wanted_count += extent.position not in there
                there[extent.position] = extent

    def read(
        self, log_id: str, extent: Extent, start: int, end: int, *, seen_s: float
    ) -> bytes | memoryview:
        """Return the bytes from ``start`` to ``end`` of an extent, its batches numbered.

        Args:
            log_id: the log.
            extent: where the batches lie; not of a sealed segment, whose bytes are final.
            start: a position in it.
            end: the position after the last byte.
            seen_s: when the log was seen to name it, in s since 1970.

        Raises:
            CorruptRecordError: it holds other batches than the log says.
            DataLossError: the object is gone.
        """
        if extent.size <= _ONE_RANGE_BYTES:
            return self._whole(log_id, extent, seen_s)[start:end]
        key = _place_of(log_id, extent)
        with self._using:
            pieces = _recent(self._pieces, key, lambda: _Pieces(extent))
        parts: list[bytes | memoryview] = []
        with pieces.using:
            slot = bisect_right(pieces.starts, start) - 1
            while start < end:
                piece = self._piece(pieces, log_id, extent, slot, seen_s)
                within = start - pieces.starts[slot]
                parts.append(piece[within : within + end - start])
                start, slot = start + len(parts[-1]), slot + 1
        return joined(parts)

    def is_coming(self, log_id: str, extent: Extent) -> bool:
        """Whether a thread fetches it just now, or something that lies beside it."""
        fetching = self._fetching.get((log_id, extent.object))
        pieces = self._pieces.get(_place_of(log_id, extent))
        held = (fetching, None if pieces is None else pieces.using)
        return any(lock is not None and lock.locked() for lock in held)

    # An extent in one range, with what lies beside it

    def _whole(self, log_id: str, extent: Extent, seen_s: float) -> memoryview:
        with self._using:
            found = self._find(_place_of(log_id, extent))
            if found is not None:
                return found
            fetching = _recent(self._fetching, (log_id, extent.object), system.lock)
        with fetching:
            return self._fetched_together(log_id, extent, seen_s)

    def _fetched_together(self, log_id: str, extent: Extent, seen_s: float) -> memoryview:
        with self._using:
            found = self._find(_place_of(log_id, extent))
            if found is not None:
                return found
            together = self._together(log_id, extent)
        first = together[0].position
        size = together[-1].position + together[-1].size - first
        stored = memoryview(self._fetch(log_id, extent, first, size, seen_s))
        for each in together:
            data = stored[each.position - first : each.position - first + each.size]
            try:
                numbered = number_batches(data, each, self._name(log_id, each))
            except CorruptRecordError:
                if each == extent:
                    raise
                continue  # the read of that extent raises it
            kept = self._keep(_place_of(log_id, each), numbered)
            if each == extent:
                found = kept
        assert found is not None  # noqa: S101 - it is among them
        return found

    def _together(self, log_id: str, extent: Extent) -> list[Extent]:
        """Take the extents to fetch with one that is fetched: those beside it that are wanted.

        All that is wanted, of all objects, is to fit what is kept: else it would come twice.
        """
        place = (log_id, extent.object)
        wanted = self._wanted.get(place, {})
        self._wanted_count += extent.position not in wanted
        wanted[extent.position] = extent
        most = min(_ONE_RANGE_BYTES, _CACHE_BYTES * 3 // 4 // max(len(self._wanted), 1))
        run = sorted(wanted.values(), key=lambda each: each.position)
        first = last = run.index(extent)
        while last + 1 < len(run) and _are_near(run[first], run[last], run[last + 1], most):
            last += 1
        while first and _are_near(run[first - 1], run[first - 1], run[first], 1 << 62):
            if run[last].position + run[last].size - run[first - 1].position > most:
                break
            first -= 1
        for each in run[first : last + 1]:
            del wanted[each.position]
            self._wanted_count -= 1
        if not wanted:
            self._wanted.pop(place, None)
        return run[first : last + 1]

    # An extent piece by piece

    def _piece(
        self, pieces: _Pieces, log_id: str, extent: Extent, slot: int, seen_s: float
    ) -> memoryview:
        """Return a piece, and know where the next one begins."""
        begin = pieces.starts[slot]
        key = _place_of(log_id, extent, begin)
        with self._using:
            found = self._find(key)
        if found is not None:
            return found
        is_next = slot + 1 == len(pieces.starts)
        data = bytearray(pieces.rest if is_next else b"")
        end = min(begin + _ONE_RANGE_BYTES, extent.size) if is_next else pieces.starts[slot + 1]
        while True:
            fetched = begin + len(data)
            data += self._fetch(log_id, extent, extent.position + fetched, end - fetched, seen_s)
            size, offset = _number(data, extent, pieces.offsets[slot])
            needed = begin + _size_at(data, 0)
            if size or not end < needed <= extent.size:
                break
            end = needed  # not even one batch is whole
        is_whole = begin + size == end if not is_next or end == extent.size else size > 0
        if not is_whole or (end == extent.size and offset != extent.end_offset):
            raise _other_batches(extent, self._name(log_id, extent), begin + size, offset)
        if is_next:
            pieces.starts.append(begin + size)
            pieces.offsets.append(offset)
            pieces.rest = bytes(data[size:])
        return self._keep(key, memoryview(data)[:size].toreadonly())

    # What both do

    def _fetch(
        self, log_id: str, extent: Extent, position: int, size: int, seen_s: float
    ) -> bytes | memoryview:
        name = object_path(log_id, extent.object)
        stored = self._objects.get_range(name, position, size)
        if stored is None or is_void(self._objects, log_id, extent.object, seen_s):
            raise gone_error(extent, self._name(log_id, extent))
        return stored

    def _name(self, log_id: str, extent: Extent) -> str:
        return f"{self._place}/{object_path(log_id, extent.object)}"

    def _find(self, key: _Place) -> memoryview | None:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def _keep(self, key: _Place, numbered: memoryview) -> memoryview:
        with self._using:
            if self._kept.setdefault(key, numbered) is numbered:
                self._kept_bytes += len(numbered)
            while self._kept_bytes > _CACHE_BYTES and len(self._kept) > 1:
                self._kept_bytes -= len(self._kept.popitem(last=False)[1])
        return numbered


_Place = tuple[str, str, int, int, int, int]


def _place_of(log_id: str, extent: Extent, begin: int = 0) -> _Place:
    """Return where bytes lie, and what they are: a log that was set back has its numbers again."""
    what = extent.size, extent.base_offset, extent.max_timestamp
    return (log_id, extent.object, extent.position + begin, *what)


def _recent(things: OrderedDict[_K, _T], key: _K, make: Callable[[], _T]) -> _T:
    """Return a thing of those that were used last, or a new one."""
    if key not in things:
        things[key] = make()
        if len(things) > _RECENT:
            things.popitem(last=False)
    things.move_to_end(key)
    return things[key]


def _are_near(first: Extent, last: Extent, following: Extent, most: int) -> bool:
    """Whether one range may hold extents from the first one to the one after the last."""
    end = last.position + last.size
    size = following.position + following.size - first.position
    return end <= following.position <= end + _GAP_BYTES and size <= most


def joined(parts: list[bytes | memoryview]) -> bytes | memoryview:
    """Return parts as one, without a copy where there is only one."""
    return parts[0] if len(parts) == 1 else b"".join(parts)


def gone_error(extent: Extent, name: str) -> DataLossError:
    """Return the error that says that the object of an extent is gone."""
    return DataLossError(
        f"{name}, which holds offsets {extent.base_offset} to {extent.end_offset} of a partition, "
        "is gone"
    )


def number_batches(stored: bytes | memoryview, extent: Extent, name: str) -> memoryview:
    """Return the batches of an extent with their offsets, or those that they keep, and their epoch.

    Raises:
        CorruptRecordError: they are not as many records, or not whole batches.
    """
    data = bytearray(stored)
    position, offset = _number(data, extent, extent.base_offset)
    if (position, offset) != (len(data), extent.end_offset):
        raise _other_batches(extent, name, position, offset)
    return memoryview(data).toreadonly()


def _number(data: bytearray, extent: Extent, offset: int) -> tuple[int, int]:
    """Number the whole batches at the start of some bytes; return where they end, and the offset.

    A batch that is not whole, or keeps a lower offset than it can have, ends them.
    """
    position = 0
    epoch = extent.leader_epoch.to_bytes(4, "big")
    while (size := _size_at(data, position)) >= HEADER_SIZE and position + size <= len(data):
        if extent.has_offsets:
            kept = int.from_bytes(data[position : position + SIZE_POSITION], "big")
            if kept < offset:
                break
            offset = kept
        delta_at = position + LAST_OFFSET_DELTA_POSITION
        delta = int.from_bytes(data[delta_at : delta_at + 4], "big")
        data[position : position + SIZE_POSITION] = offset.to_bytes(8, "big")
        data[position + LEADER_EPOCH_POSITION : position + MAGIC_POSITION] = epoch
        position, offset = position + size, offset + delta + 1
    return position, offset


def _size_at(data: bytearray, position: int) -> int:
    """Return the size in bytes that a batch says that it has; 0 where no header is."""
    if position + HEADER_SIZE > len(data):
        return 0
    return OVERHEAD + int.from_bytes(data[position + SIZE_POSITION : position + OVERHEAD], "big")


def _other_batches(extent: Extent, name: str, position: int, offset: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"{name}: the batches from byte {extent.position} on end at byte "
        f"{extent.position + position} with offset {offset}, expected byte "
        f"{extent.position + extent.size} and offset {extent.end_offset}",
        path=name,
        position=extent.position + position,
        offset=offset,
    )
