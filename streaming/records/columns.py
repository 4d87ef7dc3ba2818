"""Batches in, Arrow columns out: the hot path of reading.

One kernel walks the records of a group of batches, checks every length, and copies what is wanted
to Arrow's buffers, once. With headers, and for older message sets, it takes two: one notes where
keys, values and headers lie, the other copies. A group is a run of adjacent batches: in the bytes
of the file themselves if they are not compressed, else decompressed side by side until there is
enough to be worth a call.

Memory is bounded whatever the input: groups are cut by decompressed bytes, output by rows and
bytes. Only a batch or record that is larger than those bounds by itself takes what it needs.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.errors import (
    ChecksumMismatchError,
    CorruptRecordError,
    DecompressedTooLargeError,
    TimestampOutOfRangeError,
    UnsupportedCodecError,
)
from kafkalog.streaming.records import batch_kernels
from kafkalog.streaming.records import decode_kernels as kernels
from kafkalog.streaming.records.batch import BatchTable, invalid_checksums
from kafkalog.streaming.records.batch_layout import HEADER_SIZE, LOG_APPEND_TIME_MASK
from kafkalog.streaming.records.compression import (
    DEFAULT_LIMIT,
    Codec,
    decompress_pieces,
    gzip_kernels,
    lz4_kernels,
    zstd_kernels,
)
from kafkalog.streaming.records.compression.gzip_kernels import decompress_gzip_by_library
from kafkalog.streaming.records.compression.lz4_kernels import decompress_frames_by_library
from kafkalog.streaming.records.compression.snappy_kernels import decompress_snappy
from kafkalog.streaming.records.compression.zstd_kernels import decompress_zstd_by_library
from kafkalog.streaming.records.message_sets import layout as message_set
from kafkalog.streaming.records.message_sets.decode_kernels import find_messages
from kafkalog.streaming.records.message_sets.reader import MessageSetReader
from kafkalog.streaming.records.row_buffers import ALL_COLUMNS, Columns, FoundRecords, RowBuffers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers
    from kafkalog.streaming.records.compression.codec import Data
    from kafkalog.streaming.records.jit.inline import Context
    from kafkalog.streaming.records.row_buffers import Assemble, RowTaker

__all__ = [
    "ALL_COLUMNS",
    "FAULTS",
    "GROUP_BYTES",
    "BatchGroups",
    "Bodies",
    "Columns",
    "KernelDecompressor",
    "RecordDecoder",
    "sections_of",
]

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


# ----------------------------------------------------------------------------------------------

DEFAULT_MAX_ROWS: Final = 8192
DEFAULT_MAX_BATCH_BYTES: Final = 1 << 20
"""Rows and bytes of an output batch: what Spark's pipe to Python takes best."""

_MAX_OFFSET: Final = 2**63 - 1

_OF_SECTIONS: Final = [
    batch_kernels.BASE_OFFSET,
    batch_kernels.BASE_TIMESTAMP,
    batch_kernels.MAX_TIMESTAMP,
    batch_kernels.ATTRIBUTES,
    batch_kernels.COUNT,
]
"""What sections have of the headers of batches, in their order."""

FAULTS: Final = {
    kernels.BAD_VARINT: "a variable-length number does not end",
    kernels.BAD_RECORD_LENGTH: "a record's length lies beyond its batch",
    kernels.BAD_KEY_LENGTH: "a key's length lies beyond its record",
    kernels.BAD_VALUE_LENGTH: "a value's length lies beyond its record",
    kernels.BAD_HEADER: "a header's length or count lies beyond its record",
    kernels.LEFT_OVER_BYTES: "a record or batch has bytes after its last field",
    kernels.BAD_SECTION: "its records lie outside of its bytes",
} | message_set.FAULTS
"""What is wrong with a record, by the answers of kernels."""


class RecordDecoder:
    """Decodes batches to the wanted columns. Not shared between threads, not picklable.

    Unless it is assembled otherwise, the output has these fields, as far as they are wanted and in
    this order: ``key: binary``, ``value: binary``, ``offset: int64``, ``timestamp: timestamp[us,
    UTC]``, ``timestampType: int32``, ``headers: list<struct<key: string, value: binary>>`` (null
    for none), ``timestampMs: int64``.
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
        taker: RowTaker | None = None,
        assemble: Assemble | None = None,
    ) -> None:
        """Prepare.

        Args:
            columns: what to build.
            max_decompressed_bytes: bound on what one batch may decompress to.
            check_crcs: whether to check the checksum of each batch that is decoded.
            max_rows: rows of an output batch at most.
            max_batch_bytes: bytes of keys, values and headers in it, unless one record has more.
            null_bad_timestamps: give null for a timestamp that µs cannot hold, instead of raising.
            taker: takes the records that are found, in place of output batches with ``columns``.
            assemble: makes an output batch, of its length and its columns by their names.
        """
        self._limit = max_decompressed_bytes
        self._check_crcs = check_crcs
        buffers = RowBuffers(
            *(columns, max_rows, max_batch_bytes),
            null_bad_timestamps=null_bad_timestamps,
            assemble=assemble,
        )
        self._buffers: RowTaker = taker or buffers
        self._direct = buffers if taker is None and buffers.takes_sections else None
        self._message_sets = MessageSetReader(
            group_bytes=GROUP_BYTES, max_decompressed_bytes=max_decompressed_bytes
        )
        self._groups = BatchGroups(max_decompressed_bytes, are_kept=taker is not None)
        # Where a kernel notes what it finds; overwritten by the next call.
        longs, ints = np.empty((8, max_rows), np.int64), np.empty(max_rows, np.int32)
        self._found = (*longs[:2], ints, *longs[2:])

    def decode(
        self,
        data: Bytes,
        table: BatchTable,
        *,
        file_position: int = 0,
        path: str = "",
        start_offset: int = 0,
        end_offset: int = _MAX_OFFSET,
    ) -> Iterator[pa.RecordBatch]:
        """Decode batches and give their rows in order, in record batches of bounded size.

        Args:
            data: uint8[n], in which the batches lie.
            table: m batches of ``data``, as ``scan_batches`` gives them, of any magic.
            file_position: where in the file ``data`` starts.
            path: the file, for messages.
            start_offset: rows below it are left out.
            end_offset: rows from it on are left out.

        Raises:
            CorruptRecordError: a batch cannot be decompressed, or its records cannot be decoded.
                The error names the batch; the rows of all batches before it come first.
            ChecksumMismatchError, DecompressedTooLargeError, UnsupportedCodecError: likewise.
            TimestampOutOfRangeError: a timestamp that µs cannot hold. The error names the file and
                the record; the rows before it come first.
        """
        try:
            yield from self.feed(
                data,
                table,
                file_position=file_position,
                path=path,
                start_offset=start_offset,
                end_offset=end_offset,
            )
        except (CorruptRecordError, TimestampOutOfRangeError):
            yield from self.flush()
            raise
        yield from self.flush()

    def feed(
        self,
        data: Bytes,
        table: BatchTable,
        *,
        file_position: int = 0,
        path: str = "",
        start_offset: int = 0,
        end_offset: int = _MAX_OFFSET,
    ) -> Iterator[pa.RecordBatch]:
        """Decode like ``decode``, but keep the rows of an output batch that is not full yet.

        What is kept outlives an error: ``flush`` then gives the rows before it.
        """
        wanted = (
            ~table.is_control
            & (table.last_offset >= start_offset)
            & (table.base_offset < end_offset)
            & ~table.is_emptied
        )
        part = _Part(data, table[wanted], file_position, path, start_offset, end_offset)
        sound = part.sound_batches() if self._check_crcs else len(part.table)
        for run in _runs(part.table[:sound]):
            yield from self._decode_run(part, run)
        if sound < len(part.table):
            raise part.checksum_mismatch(sound)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that ``feed`` kept, if there are any."""
        if self._buffers.rows:
            yield self._buffers.take()

    def _decode_run(self, part: _Part, run: BatchTable) -> Iterator[pa.RecordBatch]:
        """Decode adjacent batches that are of one kind: see ``_runs``."""
        if int(run.magic[0]) < 2:
            yield from self._decode_messages(part, run)
        elif int(run.codec[0]) == Codec.NONE:
            starts = run.position - part.file_position + HEADER_SIZE
            ends = run.end_position - part.file_position
            yield from self._decode_records(part, run, part.data, starts, ends)
        else:
            yield from self._decode_compressed(part, run)

    def _decode_messages(self, part: _Part, run: BatchTable) -> Iterator[pa.RecordBatch]:
        for table, source, sections in self._message_sets.groups(
            part.data, run, file_position=part.file_position, path=part.path
        ):
            yield from self._take_found(part, table, source, sections, find_messages, 7)

    def _decode_compressed(self, part: _Part, run: BatchTable) -> Iterator[pa.RecordBatch]:
        """Decompress batches side by side, up to a group's bytes, and decode group by group."""
        starts = run.position - part.file_position + HEADER_SIZE
        groups = self._groups.groups(part.data, starts, run.size - HEADER_SIZE, run.codec)
        first = 0
        while True:
            try:
                group = next(groups, None)
            except CorruptRecordError as error:
                raise part.not_decompressed(run, first, error) from error
            if group is None:
                return
            source, ends = group
            starts = np.concatenate((np.zeros(1, np.int64), ends))[:-1]
            table = run[first : first + len(ends)]
            yield from self._decode_records(part, table, source, starts, ends)
            first += len(ends)

    def _decode_records(
        self, part: _Part, table: BatchTable, source: Bytes, starts: Integers, ends: Integers
    ) -> Iterator[pa.RecordBatch]:
        """Decode batches whose records lie in ``source[starts[i]:ends[i]]``."""
        sections = sections_of(table, starts, ends)
        if self._direct is None:
            yield from self._take_found(part, table, source, sections, kernels.find_records, 9)
            return
        cursor = np.zeros(kernels.CURSOR_SIZE, np.int64)
        bounds = part.start_offset, part.end_offset
        try:
            reason = yield from self._direct.append_sections(source, sections, *bounds, cursor)
        except TimestampOutOfRangeError as error:
            raise TimestampOutOfRangeError(f"{part.where}: {error}") from error
        if reason != kernels.DONE:
            raise part.faulty(table, cursor, reason)

    def _take_found(
        self,
        part: _Part,
        table: BatchTable,
        source: Bytes,
        sections: Integers,
        find: Callable[..., int],
        columns: int,
    ) -> Iterator[pa.RecordBatch]:
        """Let ``find``, which notes so many columns, find records, and take them."""
        cursor = np.zeros(kernels.CURSOR_SIZE, np.int64)
        columns_of = self._found[:columns]
        reason = kernels.FULL
        while reason == kernels.FULL:
            reason = find(source, sections, part.start_offset, part.end_offset, cursor, *columns_of)
            found = FoundRecords(source, *columns_of).rows(0, int(cursor[kernels.ROWS]))
            try:
                yield from self._buffers.append(found)
            except TimestampOutOfRangeError as error:
                raise TimestampOutOfRangeError(f"{part.where}: {error}") from error
        if reason != kernels.DONE:
            raise part.faulty(table, cursor, reason)


class _Part:
    """A stretch of a file with the batches in it, and what is wanted of them."""

    def __init__(
        self,
        data: Bytes,
        table: BatchTable,
        file_position: int,
        path: str,
        start_offset: int,
        end_offset: int,
    ) -> None:
        self.data = data
        self.table = table
        self.file_position = file_position
        self.path = path
        self.where = path or "the buffer"
        self.start_offset = start_offset
        self.end_offset = end_offset

    def sound_batches(self) -> int:
        """Return how many batches from the first on match their checksums."""
        bad = invalid_checksums(self.data, self.table, file_position=self.file_position)
        return int(bad.argmax()) if bad.any() else len(bad)

    def checksum_mismatch(self, row: int) -> CorruptRecordError:
        """Make the error about a batch that does not match its checksum."""
        stored = int(self.table.crc[row])
        reason = f"its bytes do not match its checksum {stored:08x}"
        return self.corrupt(self.table, row, reason, ChecksumMismatchError)

    def not_decompressed(
        self, table: BatchTable, row: int, error: CorruptRecordError
    ) -> CorruptRecordError:
        """Make the error about a batch of which a codec says what is wrong."""
        kind = type(error)
        if kind not in {UnsupportedCodecError, DecompressedTooLargeError}:
            kind = CorruptRecordError
        return self.corrupt(table, row, str(error), kind)

    def faulty(self, table: BatchTable, cursor: Integers, reason: int) -> CorruptRecordError:
        """Make the error about the record of a batch at which a kernel has stopped."""
        row, record = int(cursor[kernels.SECTION]), int(cursor[kernels.RECORD])
        return self.corrupt(table, row, f"{FAULTS[reason]} (record {record} of it)")

    def corrupt(
        self,
        table: BatchTable,
        row: int,
        reason: str,
        kind: type[CorruptRecordError] = CorruptRecordError,
    ) -> CorruptRecordError:
        """Make an error that says which batch of ``table`` it is about."""
        position, offset = int(table.position[row]), int(table.base_offset[row])
        last = int(table.last_offset[row])
        return kind(
            f"{self.where}: the batch at byte {position} (offsets {offset} to {last}, "
            f"{int(table.size[row])} bytes) is damaged: {reason}",
            path=self.path,
            position=position,
            offset=offset,
        )


def _runs(table: BatchTable) -> Iterator[BatchTable]:
    """Cut where batches follow older message sets, or compressed ones plain ones, or reverse."""
    if not len(table):
        return
    kind = 2 * (table.magic == 2) + (table.codec != Codec.NONE)
    if (kind == kind[0]).all():
        yield table
        return
    cuts = np.flatnonzero(np.diff(kind)) + 1
    for first, last in itertools.pairwise([0, *cuts.tolist(), len(table)]):
        yield table[first:last]


def sections_of(table: BatchTable, starts: Integers, ends: Integers) -> Integers:
    """Return where the records of batches lie, and what their headers say of them.

    Args:
        table: the batches, of magic 2.
        starts: int64[n], where each batch's records start in the bytes to decode.
        ends: int64[n], where they end.

    Returns:
        int64[n, SECTION_FIELDS], as :mod:`~kafkalog.streaming.records.decode_kernels` takes it.
    """
    sections = np.empty((len(table), kernels.SECTION_FIELDS), np.int64)
    sections[:, kernels.START] = starts
    sections[:, kernels.END] = ends
    sections[:, kernels.BASE_OFFSET :] = table.facts[:, _OF_SECTIONS]
    sections[:, kernels.IS_STAMPED] &= LOG_APPEND_TIME_MASK
    return sections


# ----------------------------------------------------------------------------------------------
# Which kernel decompresses the batches of a codec, where its library is exported to kernels.


class Bodies(NamedTuple):
    """Compressed records of batches: ``data[starts[i] : starts[i] + sizes[i]]``.

    ``data`` is uint8[n], ``starts`` and ``sizes`` are int64[m]. ``wanted``, uint8[m], is 1 for
    those of the codec that is asked for.
    """

    data: Bytes
    starts: Integers
    sizes: Integers
    wanted: Bytes

    def after(self, rows: int) -> Bodies:
        """Return all but the first ``rows``."""
        return Bodies(self.data, self.starts[rows:], self.sizes[rows:], self.wanted[rows:])


class KernelDecompressor:
    """Decompresses batches that follow each other, by kernels. Not shared between threads."""

    def __init__(self, limit: int, enough: int) -> None:
        """Prepare; no library is loaded before it is needed.

        Args:
            limit: bytes that one batch may decompress to here.
            enough: bytes after which a call ends.
        """
        self._limit = limit
        self._enough = enough
        self._contexts: dict[int, Context] = {}

    def can(self, codec: int) -> bool:
        """Whether there is a kernel for a codec, as the attributes name it."""
        if codec == Codec.LZ4:
            return lz4_kernels.is_exported()
        if codec == Codec.ZSTD:
            return zstd_kernels.is_exported()
        if codec == Codec.GZIP:
            return gzip_kernels.is_exported()
        return codec == Codec.SNAPPY

    def decompress(
        self, codec: int, bodies: Bodies, out: Bytes, written: int, ends: Integers
    ) -> int:
        """Decompress batches of a codec into ``out``. REQUIRES: there is a kernel for it.

        Args:
            codec: as the attributes name it.
            bodies: the batches, m of them.
            out: uint8[k], of which the first ``written`` bytes are kept.
            written: where the first one goes.
            ends: int64[m]; of what was done it becomes where each one ends in ``out``.

        Returns:
            How many were done: none after the first that is not wanted, is not sound, is of an
            unusual form, or does not fit, nor once ``out`` has enough.
        """
        limit, enough = self._limit, self._enough
        if codec == Codec.LZ4:
            return decompress_frames_by_library(*bodies, limit, enough, out, written, ends)
        if codec == Codec.SNAPPY:
            return decompress_snappy(*bodies, limit, enough, out, written, ends)
        if codec not in self._contexts:
            library = zstd_kernels if codec == Codec.ZSTD else gzip_kernels
            self._contexts[codec] = library.new_context()
        context = self._contexts[codec].address
        if codec == Codec.ZSTD:
            return decompress_zstd_by_library(*bodies, context, limit, enough, out, written, ends)
        return decompress_gzip_by_library(*bodies, context, limit, enough, out, written, ends)
