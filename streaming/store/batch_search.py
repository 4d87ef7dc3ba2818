"""Find valid batches after bytes that are none, and how far damaged ones reached."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.files.local_file import next_data_at, read_at
from kafkalog.files.regular import open_regular
from kafkalog.model import MAX_OFFSET
from kafkalog.streaming.log.log_end import ends_in_zeros
from kafkalog.streaming.records.batch_layout import (
    MAGIC,
    MAGIC_POSITION,
    OVERHEAD,
    PREFIX_SIZE,
    PREFIX_WITH_DELTA,
    SIZE_POSITION,
)
from kafkalog.streaming.store.proof import is_valid_batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kafkalog.streaming.log.log_end import ValidEnd
    from kafkalog.streaming.log.segment import LogSegment
    from kafkalog.streaming.records.arrow_buffers import Bytes

__all__ = ["find_valid_batch", "reach_of"]

_PIECE_BYTES: Final = 1 << 20
_SMALLEST_SIZE: Final = 14
_MAX_RELATIVE_OFFSET: Final = 2**31 - 1


def find_valid_batch(path: Path, position: int, next_offset: int) -> int | None:
    """Search a segment from a position on for a valid batch that starts at an offset or above it.

    Returns:
        its position; None if there is none.
    """
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        start = _next_piece(descriptor, position, position)
        while start is not None and start < size:
            data = read_at(descriptor, start, _PIECE_BYTES + PREFIX_SIZE)
            for candidate in _candidates(data, next_offset):
                if is_valid_batch(descriptor, start + candidate):
                    return start + candidate
            start = _next_piece(descriptor, start + _PIECE_BYTES, position)
    finally:
        os.close(descriptor)
    return None


def _next_piece(descriptor: int, start: int, least: int) -> int | None:
    """Pass over a hole: of what it reads as, zeros, a batch begins with its offset at most."""
    found = next_data_at(descriptor, start)
    if found is None or found == start:
        return found
    return max(start, found - SIZE_POSITION, least)


def reach_of(segment: LogSegment, end: ValidEnd) -> int:
    """Return where the log ended before the damage, as the headers of damaged batches say.

    It is the largest possible offset if there are bytes that say nothing. Zeros, and bytes that are
    too few for a header, are no batch.
    """
    position, reach = end.position, end.next_offset
    while segment.size - position >= PREFIX_WITH_DELTA.size and not ends_in_zeros(
        segment, position
    ):
        data = segment.opened.peek(position, PREFIX_WITH_DELTA.size)
        if not any(True for _ in _candidates(np.frombuffer(data[:PREFIX_SIZE], np.uint8), reach)):
            return MAX_OFFSET
        offset, size, magic, delta = PREFIX_WITH_DELTA.unpack(data)
        last = offset + delta if magic == MAGIC else offset
        if last < reach:
            return MAX_OFFSET
        position, reach = position + OVERHEAD + size, last + 1
    return reach


def _candidates(data: Bytes, next_offset: int) -> Iterator[int]:
    """Yield the places where magic, size and offset are those of a batch that could follow."""
    magics = data[MAGIC_POSITION:]
    sizes = np.zeros(len(magics), np.int64)
    for position in range(SIZE_POSITION, OVERHEAD):
        sizes = sizes << 8 | data[position : position + len(magics)]
    places = np.flatnonzero((magics <= MAGIC) & (sizes >= _SMALLEST_SIZE) & (sizes < 1 << 31))
    words = np.ascontiguousarray(data[places[:, None] + np.arange(8)]).view(">i8")[:, 0]
    offsets = words.astype(np.int64)
    fits = (offsets >= next_offset) & (offsets - next_offset <= _MAX_RELATIVE_OFFSET)
    yield from places[fits].tolist()
