"""The newest rows of keys, from pieces of a log that are read from the end of the log on.

A piece is read forward as any other, and its records are kept where they lie, decompressed. Then
they are looked at from the last one on. What is the first of its key is copied to Arrow columns.
So a log is decompressed once, and rows that are not the newest are never copied.

A piece that decompresses to more than :data:`KEPT_BYTES` is not kept. The rest of it is only looked
through, and it is read again in smaller pieces, down to one batch.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kafkalog.streaming.records.columns import RecordDecoder
from kafkalog.streaming.records.row_buffers import FoundRecords, RowBuffers

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from kafkalog.streaming.log.read.slices import SegmentSlice
    from kafkalog.streaming.lookup.seen_keys import SeenKeys
    from kafkalog.streaming.lookup.spilled_keys import SpilledKeys
    from kafkalog.streaming.lookup.wanted_keys import WantedKeys
    from kafkalog.streaming.records.arrow_buffers import Bytes
    from kafkalog.streaming.records.batch import BatchTable

__all__ = ["KEPT_BYTES", "NewestRows"]

KEPT_BYTES: Final = 32 << 20
"""Decompressed bytes of a piece, unless it is a single batch."""

_BYTES_PER_ROW: Final = 72


class NewestRows:
    """Takes batches as a decoder of slices does, and then gives the newest rows of a piece.

    Not shared between threads. ``keyless`` counts the records without a key.
    """

    def __init__(
        self,
        seen: SeenKeys,
        spilled: SpilledKeys,
        buffers: RowBuffers,
        *,
        tombstones: bool,
        max_decompressed_bytes: int,
        wanted: WantedKeys | None = None,
    ) -> None:
        """Prepare.

        Args:
            seen: the keys of the records after the first piece.
            spilled: takes records with keys that ``seen`` has no room for.
            buffers: take the rows; those of an output batch that is not full stay there.
            tombstones: whether rows whose value is null are given too.
            max_decompressed_bytes: bound on what one batch may decompress to.
            wanted: the keys to look for; None for all.
        """
        self._seen = seen
        self._spilled = spilled
        self._buffers = buffers
        self._tombstones = tombstones
        self._wanted = wanted
        self._kept = _KeptRecords()
        self._decoder = RecordDecoder(
            max_decompressed_bytes=max_decompressed_bytes, taker=self._kept
        )
        self._fed: list[BatchTable] = []
        self._too_much = 0
        self.keyless = 0

    def feed(
        self,
        data: Bytes,
        table: BatchTable,
        *,
        file_position: int,
        path: str,
        start_offset: int,
        end_offset: int,
    ) -> Iterator[pa.RecordBatch]:
        """Keep the records of the next batches of a piece; gives nothing."""
        self._fed.append(table)
        if self._too_much:
            return
        self._kept.is_single = sum(map(len, self._fed)) == 1
        try:
            yield from self._decoder.feed(
                data,
                table,
                file_position=file_position,
                path=path,
                start_offset=start_offset,
                end_offset=end_offset,
            )
        except _TooMuchError:
            self._kept.clear()
            self._too_much = sum(int(fed.size.sum()) for fed in self._fed)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Give nothing: a piece has ended when :meth:`take` is called."""
        return iter(())

    def smaller(self, piece: SegmentSlice) -> list[SegmentSlice]:
        """Return in which pieces the one that was read is to be read again; none if it was kept."""
        fed, most = self._fed, self._too_much // 2
        self._fed, self._too_much = [], 0
        return _cut(piece, fed, most) if most else []

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield output batches that are full of newest rows of the piece that was read."""
        for found in reversed(self._kept.take_all()):
            self.keyless += int((found.key_lengths < 0).sum())
            rows = self._newest(found)
            if not self._tombstones:
                rows = rows.take(np.flatnonzero(rows.value_lengths >= 0))
            if len(rows.offsets):
                yield from self._buffers.append(rows)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the output batch that is not full, if there are any."""
        if self._buffers.rows:
            yield self._buffers.take()

    def _newest(self, found: FoundRecords) -> FoundRecords:
        keys = (found.source, found.key_starts, found.key_lengths)
        hashes = self._seen.hashes(*keys)
        if self._wanted is not None:
            hashes = np.where(self._wanted.mask(found, hashes), hashes, -1)
        newest = self._seen.add(*keys, found.offsets, hashes)
        if self._seen.left:
            self._spilled.add(found, hashes, self._seen.unknown(*keys, hashes))
        return self.pick(found.take(np.flatnonzero(newest)))

    def pick(self, newest: FoundRecords) -> FoundRecords:
        """Leave of the newest records of their keys those that are looked for."""
        return newest if self._wanted is None else self._wanted.pick(newest)


class _TooMuchError(Exception):
    """A piece is too large to be kept."""


class _KeptRecords:
    """Keeps what a decoder finds, where it lies."""

    rows = 0

    def __init__(self) -> None:
        self._found: list[FoundRecords] = []
        self._bytes = 0
        self.is_single = False

    def append(self, found: FoundRecords) -> Iterator[pa.RecordBatch]:
        """Keep records.

        Raises:
            _TooMuchError: they are too many, and not of a single batch.
        """
        if not self._found or self._found[-1].source is not found.source:
            self._bytes += len(found.source)
        self._bytes += len(found.offsets) * _BYTES_PER_ROW
        if self._bytes > KEPT_BYTES and not self.is_single:
            raise _TooMuchError
        columns: Any = (column.copy() for column in found[1:])
        self._found.append(FoundRecords(found.source, *columns))
        return iter(())

    def take(self) -> pa.RecordBatch:
        raise AssertionError("kept records are no output batch")

    def take_all(self) -> list[FoundRecords]:
        """Return what was kept, in order, and start over."""
        found = self._found
        self.clear()
        return found

    def clear(self) -> None:
        self._found, self._bytes = [], 0


def _cut(piece: SegmentSlice, fed: list[BatchTable], most: int) -> list[SegmentSlice]:
    """Cut a piece between batches into pieces of at most ``most`` bytes or one batch."""
    pieces: list[SegmentSlice] = []
    rest, size, next_offset = piece, 0, piece.start_offset
    batches = (zip(t.position, t.last_offset, t.size, strict=True) for t in fed)
    for position, last, length in itertools.chain.from_iterable(batches):
        if size and size + int(length) > most:
            pieces.append(rest._replace(end_offset=next_offset, end_position=int(position)))
            rest = rest._replace(start_offset=next_offset, start_position=int(position))
            size = 0
        size += int(length)
        next_offset = int(last) + 1
    return [*pieces, rest]
