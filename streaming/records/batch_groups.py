"""Compressed batches, decompressed side by side until there is enough to be worth a kernel's call.

A kernel decompresses all batches of a group and a codec in one call. Batches that it leaves, and
codecs whose library exports nothing to kernels, take a call of Python each; what is wrong with a
batch is found there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.records.compression import Codec, decompress_pieces
from kafkalog.streaming.records.compression.by_kernel import Bodies, KernelDecompressor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers
    from kafkalog.streaming.records.compression.codec import Data

__all__ = ["GROUP_BYTES", "BatchGroups"]

GROUP_BYTES: Final = 1 << 20
"""Decompressed bytes that are worth a call of the kernels; they still fit a core's cache."""

_ROOM: Final = 2 * GROUP_BYTES
"""Where a group is decompressed to; a batch that it cannot hold is one by itself."""


class BatchGroups:
    """Decompresses batches of magic 2, group by group. Not shared between threads."""

    def __init__(self, limit: int, *, are_kept: bool) -> None:
        """Prepare.

        Args:
            limit: bytes that one batch may decompress to.
            are_kept: whether a group is used after the next one was asked for.
        """
        self._limit = limit
        self._kernels = KernelDecompressor(min(limit, _ROOM), GROUP_BYTES)
        self._are_kept = are_kept
        self._out: Bytes = np.empty(0, np.uint8)

    def groups(
        self, data: Bytes, starts: Integers, sizes: Integers, codecs: Integers
    ) -> Iterator[tuple[Bytes, Integers]]:
        """Decompress batches, whose records lie in ``data[starts[i] : starts[i] + sizes[i]]``.

        Args:
            data: uint8[n].
            starts: int64[m].
            sizes: int64[m].
            codecs: int64[m], as the attributes name them.

        Yields:
            The records of the next batches, uint8, and where each one ends there, int64.

        Raises:
            CorruptRecordError: the batch after those that came cannot be decompressed; or one of
                its kinds, as ``decompress_pieces`` raises them.
        """
        of_kernels = {
            codec: Bodies(data, starts, sizes, (codecs == codec).view(np.uint8))
            for codec in np.unique(codecs).tolist()
            if self._kernels.can(codec)
        }
        bodies = Bodies(data, starts, sizes, np.zeros(len(codecs), np.uint8))
        yield from self._groups(bodies, codecs.tolist(), of_kernels)

    def _groups(
        self, bodies: Bodies, codecs: list[int], of_kernels: dict[int, Bodies]
    ) -> Iterator[tuple[Bytes, Integers]]:
        ends = np.empty(len(codecs), np.int64)
        first = row = size = 0
        while row < len(codecs):
            codec = codecs[row]
            rest = of_kernels[codec].after(row) if codec in of_kernels else None
            done = self._by_kernel(codec, rest, size, ends[row:])
            row += done
            size = int(ends[row - 1]) if done else size
            if done and row < len(codecs) and codecs[row] != codec and size < GROUP_BYTES:
                continue
            is_left = row < len(codecs) and codecs[row] in of_kernels
            if row > first and (is_left or size >= GROUP_BYTES):
                yield self._group(size), ends[first:row]
                first, size = row, 0  # what is left may fit the next group
                continue
            if row == len(codecs):
                break
            try:
                pieces = self._pieces(codecs[row], bodies, row)
            except CorruptRecordError:
                if row > first:
                    yield self._group(size), ends[first:row]
                raise
            more = sum(map(len, pieces))
            if row > first and size + more > _ROOM:
                yield self._group(size), ends[first:row]
                first, size = row, 0
            row += 1
            if row == first + 1 and more >= GROUP_BYTES:
                yield _joined(pieces), np.array([more])
                first = row
                continue
            size = self._copy(pieces, size)
            ends[row - 1] = size
        if row > first:
            yield self._group(size), ends[first:row]

    def _by_kernel(self, codec: int, bodies: Bodies | None, size: int, ends: Integers) -> int:
        """Let a kernel put batches after the ``size`` bytes there are; return how many it did."""
        if bodies is None:
            return 0
        return self._kernels.decompress(codec, bodies, self._room(), size, ends)

    def _pieces(self, bits: int, bodies: Bodies, row: int) -> list[Data]:
        start = bodies.starts[row]
        body = bodies.data.data[start : start + bodies.sizes[row]]
        return decompress_pieces(Codec.from_attributes(bits), body, limit=self._limit)

    def _room(self) -> Bytes:
        if not len(self._out):
            self._out = np.empty(_ROOM, np.uint8)
        return self._out

    def _copy(self, pieces: list[Data], size: int) -> int:
        """Put a batch after the ``size`` bytes that are there; return where it ends."""
        out = self._room().data
        for piece in pieces:
            end = size + len(piece)
            out[size:end] = piece
            size = end
        return size

    def _group(self, size: int) -> Bytes:
        found = self._room()[:size]
        return found.copy() if self._are_kept else found


def _joined(pieces: list[Data]) -> Bytes:
    return np.frombuffer(pieces[0] if len(pieces) == 1 else b"".join(pieces), np.uint8)
