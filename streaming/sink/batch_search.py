"""Find valid batches after bytes that are none, at any byte."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.checkpoints.regular_file import open_regular
from kafkalog.streaming.log.page_reader import read_at
from kafkalog.streaming.sink.proof import is_valid_batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kafkalog.streaming.records.arrow_buffers import Bytes

__all__ = ["candidates", "find_valid_batch"]

_PIECE_BYTES: Final = 1 << 20
_PREFIX_BYTES: Final = 17
_MAGIC_POSITION: Final = 16
_SIZE_POSITION: Final = 8
_SMALLEST_SIZE: Final = 14
_LAST_MAGIC: Final = 2
_MAX_RELATIVE_OFFSET: Final = 2**31 - 1


def find_valid_batch(path: Path, position: int, next_offset: int) -> int | None:
    """Search a segment from a position on for a valid batch that starts at an offset or above it.

    Returns:
        its position; None if there is none.
    """
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        for start in range(position, size, _PIECE_BYTES):
            data = read_at(descriptor, start, _PIECE_BYTES + _PREFIX_BYTES)
            for candidate in candidates(data, next_offset):
                if is_valid_batch(descriptor, start + candidate):
                    return start + candidate
    finally:
        os.close(descriptor)
    return None


def candidates(data: Bytes, next_offset: int) -> Iterator[int]:
    """Give the places where magic, size and offset are those of a batch that could follow."""
    magics = data[_MAGIC_POSITION:]
    sizes = np.zeros(len(magics), np.int64)
    for position in range(_SIZE_POSITION, _SIZE_POSITION + 4):
        sizes = sizes << 8 | data[position : position + len(magics)]
    places = np.flatnonzero((magics <= _LAST_MAGIC) & (sizes >= _SMALLEST_SIZE) & (sizes < 1 << 31))
    words = np.ascontiguousarray(data[places[:, None] + np.arange(8)]).view(">i8")[:, 0]
    offsets = words.astype(np.int64)
    fits = (offsets >= next_offset) & (offsets - next_offset <= _MAX_RELATIVE_OFFSET)
    yield from places[fits].tolist()
