"""The records of batches, found but not copied: where keys lie, which values are null.

Batches are decompressed side by side, about a mebibyte at a time, as the decoder of columns does.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.records import decode_kernels as kernels
from kafkalog.streaming.records.batch_groups import GROUP_BYTES, BatchGroups
from kafkalog.streaming.records.batch_layout import HEADER_SIZE
from kafkalog.streaming.records.columns import sections_of
from kafkalog.streaming.records.compression import Codec
from kafkalog.streaming.records.compression.codec import DEFAULT_LIMIT
from kafkalog.streaming.records.message_sets import layout as message_set
from kafkalog.streaming.records.message_sets.decode_kernels import find_messages
from kafkalog.streaming.records.message_sets.reader import MessageSetReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers
    from kafkalog.streaming.records.batch import BatchTable

__all__ = ["Records", "Scratch", "find_records"]

_SMALLEST_RECORD: Final = 7
_SMALLEST_MESSAGE: Final = 26
_MAX_OFFSET: Final = 2**63 - 1
_COLUMNS: Final = 8
_KEPT_ROWS: Final = 1 << 17


class Records(NamedTuple):
    """The records of m batches, n in all.

    ``source`` (uint8) holds them, and ``sections`` (int64[m, ...]) says where in it each batch's
    begin and end. ``firsts``, int64[m], is the first record of each batch. The rest is int64[n]:
    timestamps in ms, negative lengths for null.
    """

    table: BatchTable
    source: Bytes
    sections: Integers
    firsts: Integers
    offsets: Integers
    timestamps: Integers
    key_starts: Integers
    key_lengths: Integers
    value_starts: Integers
    value_lengths: Integers


class Scratch:
    """Memory that is used again for each group of batches: what is new, the system must clear."""

    def __init__(self) -> None:
        self.groups = BatchGroups(DEFAULT_LIMIT, are_kept=False)
        self._columns = np.empty((_COLUMNS, 0), np.int64)

    def columns(self, rows: int) -> Integers:
        """Return int64[columns, rows], of which each column is contiguous, until the next call."""
        if rows > _KEPT_ROWS:
            return np.empty((_COLUMNS, rows), np.int64)
        if rows > self._columns.shape[1]:
            self._columns = np.empty((_COLUMNS, 2 * rows), np.int64)
        return self._columns[:, :rows]


def find_records(
    data: Bytes, table: BatchTable, scratch: Scratch, *, file_position: int, path: str
) -> Iterator[Records]:
    """Find the records of batches that have some, in order; checksums are the caller's.

    What is found lasts until the next is asked for.

    Args:
        data: uint8[n], in which the batches lie.
        table: batches of any magic, none of them empty.
        scratch: memory to work in.
        file_position: where in the file ``data`` starts.
        path: the file, for messages.

    Raises:
        CorruptRecordError: a batch that cannot be decompressed or decoded, with its place.
    """
    kind = 2 * (table.magic == 2) + (table.codec != Codec.NONE)
    cuts = [0, *(np.flatnonzero(np.diff(kind)) + 1).tolist(), len(table)]
    for first, end in itertools.pairwise(cuts):
        run = table[first:end]
        if not len(run):
            continue
        if int(run.magic[0]) < 2:
            reader = MessageSetReader(group_bytes=GROUP_BYTES)
            for group in reader.groups(data, run, file_position=file_position, path=path):
                yield _found(*group, scratch, path)
        elif int(run.codec[0]) == Codec.NONE:
            starts = run.position - file_position + HEADER_SIZE
            sections = sections_of(run, starts, run.end_position - file_position)
            yield _found(run, data, sections, scratch, path)
        else:
            yield from _decompressed(data, run, scratch, file_position, path)


def _decompressed(
    data: Bytes, table: BatchTable, scratch: Scratch, file_position: int, path: str
) -> Iterator[Records]:
    starts = table.position - file_position + HEADER_SIZE
    sizes = table.size - HEADER_SIZE
    groups = scratch.groups.groups(data, starts, sizes, table.codec)
    first = 0
    while first < len(table):
        try:
            source, ends = next(groups)
        except CorruptRecordError as error:
            raise _damaged(table, first, path, str(error)) from error
        group = table[first : first + len(ends)]
        sections = sections_of(group, np.concatenate(([0], ends[:-1])), ends)
        yield _found(group, source, sections, scratch, path)
        first += len(ends)


def _found(
    table: BatchTable, source: Bytes, sections: Integers, scratch: Scratch, path: str
) -> Records:
    is_old = int(table.magic[0]) < 2
    used = int((sections[:, kernels.END] - sections[:, kernels.START]).sum())
    # One more than there can be, so that a batch that claims more is found to be damaged.
    room = used // (_SMALLEST_MESSAGE if is_old else _SMALLEST_RECORD) + 1
    if not is_old:
        room = min(room, int(table.count.sum()) + 1)
    columns = scratch.columns(room)
    types = np.empty(room, np.int32)
    cursor = np.zeros(kernels.CURSOR_SIZE, np.int64)
    arguments = (source, sections, 0, _MAX_OFFSET, cursor, columns[0], columns[1], types)
    if is_old:
        reason = find_messages(*arguments, *columns[2:6])
    else:
        reason = kernels.find_records(*arguments, *columns[2:8])
    if reason != kernels.DONE:
        what = message_set.FAULTS.get(reason, "its records contradict their lengths")
        raise _damaged(table, int(cursor[kernels.SECTION]), path, what)
    rows = int(cursor[kernels.ROWS])
    key_starts = columns[2, :rows]
    firsts = np.searchsorted(key_starts, sections[:, kernels.START])
    return Records(table, source, sections, firsts, *(column[:rows] for column in columns[:6]))


def _damaged(table: BatchTable, row: int, path: str, reason: str) -> CorruptRecordError:
    position, last = int(table.position[row]), int(table.last_offset[row])
    return CorruptRecordError(
        f"{path}: the batch at byte {position} (up to offset {last}, {table.size[row]} bytes) is "
        f"damaged, so that the log cannot be cleaned: {reason}",
        path=path,
        position=position,
        offset=int(table.base_offset[row]),
    )
