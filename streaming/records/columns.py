"""Batches in, Arrow columns out: the hot path of reading.

For a group of adjacent batches: check the checksums, decompress them into one buffer, and let one
kernel walk the records and write Arrow's buffers. Groups are cut by decompressed bytes, output by
rows and bytes, so memory is bounded whatever the input; only a batch or record that is larger than
those bounds by itself takes what it needs.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.errors import (
    ChecksumMismatchError,
    CorruptRecordError,
    DecompressedTooLargeError,
    TimestampOutOfRangeError,
    UnsupportedCodecError,
    UnsupportedFormatError,
)
from kafkalog.streaming.records import decode_kernels as kernels
from kafkalog.streaming.records.batch import HEADER_SIZE, BatchTable, invalid_checksums
from kafkalog.streaming.records.compression import DEFAULT_LIMIT, Codec, decompress
from kafkalog.streaming.records.row_buffers import ALL_COLUMNS, Columns, RowBuffers

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

__all__ = ["ALL_COLUMNS", "Columns", "RecordDecoder"]

DEFAULT_MAX_ROWS: Final = 8192
DEFAULT_MAX_BATCH_BYTES: Final = 1 << 20
"""Rows and bytes of an output batch: what Spark's pipe to Python takes best."""

_GROUP_BYTES: Final = 1 << 20

_REASONS: Final = {
    kernels.BAD_VARINT: "a variable-length number does not end",
    kernels.BAD_RECORD_LENGTH: "a record's length lies beyond its batch",
    kernels.BAD_KEY_LENGTH: "a key's length lies beyond its record",
    kernels.BAD_VALUE_LENGTH: "a value's length lies beyond its record",
    kernels.BAD_HEADER: "a header's length or count lies beyond its record",
    kernels.BAD_OFFSET_DELTA: "a record's offset delta is negative",
    kernels.LEFT_OVER_BYTES: "a record or batch has bytes behind its last field",
}


class RecordDecoder:
    """Decodes batches to the wanted columns. Not shared between threads, not picklable.

    The output's fields are, as far as they are wanted and in this order: ``key: binary``,
    ``value: binary``, ``offset: int64``, ``timestamp: timestamp[us, UTC]``, ``timestampType:
    int32``, ``headers: list<struct<key: string, value: binary>>`` (null for none).
    """

    def __init__(
        self,
        columns: Columns = ALL_COLUMNS,
        *,
        max_decompressed_bytes: int = DEFAULT_LIMIT,
        check_crcs: bool = True,
        max_rows: int = DEFAULT_MAX_ROWS,
        max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES,
        null_bad_timestamps: bool = False,
    ) -> None:
        """Prepare.

        Args:
            columns: what to build.
            max_decompressed_bytes: bound on what one batch may decompress to.
            check_crcs: whether to check the checksum of each batch that is decoded.
            max_rows: rows of an output batch at most.
            max_batch_bytes: bytes of keys, of values, and of headers in an output batch, unless a
                single record has more.
            null_bad_timestamps: give null for a timestamp that µs in 64 bits cannot hold, instead
                of raising.
        """
        self._limit = max_decompressed_bytes
        self._check_crcs = check_crcs
        self._buffers = RowBuffers(
            columns, max_rows, max_batch_bytes, null_bad_timestamps=null_bad_timestamps
        )

    def decode(
        self,
        data: Bytes,
        table: BatchTable,
        *,
        file_position: int = 0,
        path: str = "",
        start_offset: int = 0,
        end_offset: int = 2**63 - 1,
    ) -> Iterator[pa.RecordBatch]:
        """Decode batches and give their rows in order, in record batches of bounded size.

        Args:
            data: uint8[n], in which the batches lie.
            table: m batches of ``data``, as ``scan_batches`` gives them.
            file_position: where in the file ``data`` starts.
            path: the file, for messages.
            start_offset: rows below it are left out.
            end_offset: rows from it on are left out.

        Raises:
            ChecksumMismatchError: a batch does not match its checksum.
            CorruptRecordError: a batch cannot be decompressed or its records cannot be decoded.
            DecompressedTooLargeError: a batch exceeds ``max_decompressed_bytes``.
            UnsupportedCodecError: a batch names no known codec.
            TimestampOutOfRangeError: a timestamp that µs cannot hold.
        """
        yield from self.feed(
            data,
            table,
            file_position=file_position,
            path=path,
            start_offset=start_offset,
            end_offset=end_offset,
        )
        yield from self.flush()

    def feed(
        self,
        data: Bytes,
        table: BatchTable,
        *,
        file_position: int = 0,
        path: str = "",
        start_offset: int = 0,
        end_offset: int = 2**63 - 1,
    ) -> Iterator[pa.RecordBatch]:
        """Decode like ``decode``, but keep the rows of an output batch that is not full yet."""
        wanted = (
            ~table.is_control
            & (table.last_offset >= start_offset)
            & (table.base_offset < end_offset)
            & (table.count != 0)
        )
        table = table[wanted]
        where = _Place(path, file_position, data)
        if self._check_crcs:
            where.check(table)
        for run in _runs(table):
            yield from self._decode_run(where, run, start_offset, end_offset)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Give the rows that ``feed`` kept, if there are any."""
        if self._buffers.rows:
            yield self._buffers.take()

    def _decode_run(
        self, where: _Place, run: BatchTable, start_offset: int, end_offset: int
    ) -> Iterator[pa.RecordBatch]:
        """Decode adjacent batches that are of one magic and compressed all or not at all."""
        if int(run.magic[0]) != 2:
            raise UnsupportedFormatError(f"magic {int(run.magic[0])} in {where.path}")
        if int(run.codec[0]) == Codec.NONE:
            starts = run.position - where.file_position + HEADER_SIZE
            ends = run.end_position - where.file_position
            sections = _sections(run, starts, ends)
            yield from self._decode_sections(
                where, run, where.data, sections, start_offset, end_offset
            )
            return
        first = 0
        while first < len(run):
            source, ends_list = self._decompress(where, run, first)
            last = first + len(ends_list)
            part = run[first:last]
            ends = np.array(ends_list, np.int64)
            starts = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
            sections = _sections(part, starts, ends)
            yield from self._decode_sections(
                where, part, source, sections, start_offset, end_offset
            )
            first = last

    def _decompress(self, where: _Place, run: BatchTable, first: int) -> tuple[Bytes, list[int]]:
        """Decompress batches from ``first`` on, up to a group's bytes, into one buffer."""
        pieces: list[bytes] = []
        ends: list[int] = []
        total = 0
        for row in range(first, len(run)):
            piece = where.decompress(run, row, self._limit)
            total += len(piece)
            pieces.append(piece)
            ends.append(total)
            if total >= _GROUP_BYTES:
                break
        joined = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return np.frombuffer(joined, np.uint8), ends

    def _decode_sections(
        self,
        where: _Place,
        table: BatchTable,
        source: Bytes,
        sections: Integers,
        start_offset: int,
        end_offset: int,
    ) -> Iterator[pa.RecordBatch]:
        buffers = self._buffers
        cursor = buffers.cursor
        cursor[: kernels.ROWS] = 0
        while True:
            reason = kernels.decode_records(
                source,
                sections,
                start_offset,
                end_offset,
                *buffers.wants,
                cursor,
                *buffers.arrays,
            )
            if reason == kernels.DONE:
                return
            if reason == kernels.FULL:
                yield self._take(where)
            elif reason <= kernels.NEEDS_HEADER_VALUE:
                buffers.grow(reason)
            else:
                row, record = int(cursor[kernels.SECTION]), int(cursor[kernels.RECORD])
                buffers.cursor[kernels.ROWS :] = 0
                raise where.corrupt(table, row, f"{_REASONS[reason]} (record {record} of it)")

    def _take(self, where: _Place) -> pa.RecordBatch:
        try:
            return self._buffers.take()
        except TimestampOutOfRangeError as error:
            raise TimestampOutOfRangeError(f"{where.path}: {error}") from error


class _Place:
    """Where the batches lie, so that an error can say it."""

    def __init__(self, path: str, file_position: int, data: Bytes) -> None:
        self.path = path or "the buffer"
        self.file_position = file_position
        self.data = data
        self._view = data.data

    def check(self, table: BatchTable) -> None:
        bad = invalid_checksums(self.data, table, file_position=self.file_position)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            stored = int(table.crc[row])
            raise self.corrupt(
                table, row, f"its bytes do not match its checksum {stored}", ChecksumMismatchError
            )

    def decompress(self, table: BatchTable, row: int, limit: int) -> bytes:
        start = int(table.position[row]) - self.file_position
        body = self._view[start + HEADER_SIZE : start + int(table.size[row])]
        try:
            codec = Codec.from_attributes(int(table.attributes[row]))
            return decompress(codec, body, limit=limit)
        except (UnsupportedCodecError, DecompressedTooLargeError) as error:
            raise self.corrupt(table, row, str(error), type(error)) from error
        except CorruptRecordError as error:
            raise self.corrupt(table, row, str(error)) from error

    def corrupt(
        self,
        table: BatchTable,
        row: int,
        reason: str,
        kind: type[CorruptRecordError] = CorruptRecordError,
    ) -> CorruptRecordError:
        position, offset = int(table.position[row]), int(table.base_offset[row])
        last = int(table.last_offset[row])
        return kind(
            f"{self.path}: the batch at byte {position} (offsets {offset} to {last}, "
            f"{int(table.size[row])} bytes) is damaged: {reason}",
            path=self.path,
            position=position,
            offset=offset,
        )


def _runs(table: BatchTable) -> Iterator[BatchTable]:
    """Cut where the magic changes, or whether batches are compressed."""
    if not len(table):
        return
    kind = table.magic * 2 + (table.codec != Codec.NONE)
    cuts = np.flatnonzero(np.diff(kind)) + 1
    bounds = [0, *cuts.tolist(), len(table)]
    for first, last in itertools.pairwise(bounds):
        yield table[first:last]


def _sections(table: BatchTable, starts: Integers, ends: Integers) -> Integers:
    sections = np.empty((len(table), kernels.SECTION_FIELDS), np.int64)
    sections[:, kernels.START] = starts
    sections[:, kernels.END] = ends
    sections[:, kernels.BASE_OFFSET] = table.base_offset
    sections[:, kernels.BASE_TIMESTAMP] = table.base_timestamp
    sections[:, kernels.STAMP] = table.max_timestamp
    sections[:, kernels.IS_STAMPED] = table.is_log_append_time
    sections[:, kernels.COUNT] = table.count
    return sections
