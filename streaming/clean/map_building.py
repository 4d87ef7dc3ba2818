"""Fill the map of offsets from the dirty part of a log.

Source: Kafka ``Cleaner.buildOffsetMap``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kafkalog.streaming.clean.checked import checked_chunks
from kafkalog.streaming.clean.records import Scratch, find_records
from kafkalog.streaming.log.read.aborted_transactions import AbortedTransactions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kafkalog.streaming.clean.offset_map import OffsetMap
    from kafkalog.streaming.clean.records import Records
    from kafkalog.streaming.log.segment import Chunk, LogSegment
    from kafkalog.streaming.records.arrow_buffers import Integers

__all__ = ["build_offset_map"]


def build_offset_map(
    directory: Path,
    dirty: Sequence[LogSegment],
    start: int,
    end: int,
    offsets: OffsetMap,
    progress: Callable[[int], object] = lambda _: None,
) -> None:
    """Let a map have the last offset of each key from ``start`` on, until it is full.

    Control batches and those of aborted transactions are left out. ``offsets.latest_offset``
    becomes how far the map speaks of the log: ``end - 1``, or less if it is full.

    Args:
        directory: the partition's folder.
        dirty: its segments from the one that holds ``start`` on, all of them below ``end``.
        start: the first offset wanted.
        end: where the last segment ends.
        offsets: is cleared first.
        progress: see :func:`~kafkalog.streaming.clean.checked.checked_chunks`.

    Raises:
        CorruptRecordError: bytes that are no sound batch.
    """
    offsets.clear()
    builder = _Builder(directory, start, offsets)
    ends = [*(segment.base_offset for segment in dirty[1:]), end]
    for segment, segment_end in zip(dirty, ends, strict=True):
        with segment:
            for chunk in checked_chunks(segment, segment.floor_position(start), progress):
                if not builder.add(segment, chunk):
                    return
        # There may be a gap before the next segment.
        offsets.pass_to(segment_end - 1)


class _Builder:
    def __init__(self, directory: Path, start: int, offsets: OffsetMap) -> None:
        self._aborted = AbortedTransactions(directory)
        self._start = start
        self._offsets = offsets
        self._scratch = Scratch()

    def add(self, segment: LogSegment, chunk: Chunk) -> bool:
        """Add the next batches; False if the map is full."""
        chunk = chunk._replace(table=chunk.table[chunk.table.last_offset >= self._start])
        table = chunk.table
        if not len(table):
            return True
        data = ~table.is_control & (table.count != 0) & ~self._aborted.mask(segment, table)
        rows = np.flatnonzero(data)
        done = 0
        for records in find_records(
            *(chunk.data, table[rows], self._scratch),
            file_position=chunk.file_position,
            path=str(segment.path),
        ):
            self._note_odd(records)
            first = int(np.searchsorted(records.offsets, self._start))
            columns = (records.key_starts, records.key_lengths, records.offsets)
            taken = first + self._offsets.put(
                records.source, *(np.ascontiguousarray(column[first:]) for column in columns)
            )
            if taken < len(records.offsets):
                batch = int(np.searchsorted(records.firsts, taken, side="right")) - 1
                self._pass_before(table.last_offset, int(rows[done + batch]))
                return False
            done += len(records.table)
        self._offsets.pass_to(int(table.last_offset[-1]))
        return True

    def _note_odd(self, records: Records) -> None:
        """Say of which batches the map alone cannot tell that nothing stays of them.

        They have records without a key, which are to be counted, or at offsets that are not between
        the batch's own.
        """
        table, firsts, offsets = records.table, records.firsts, records.offsets
        lasts = np.append(firsts[1:], len(offsets)) - 1
        odd = (offsets[firsts] < table.base_offset) | (offsets[lasts] > table.last_offset)
        if (records.key_lengths < 0).any():
            odd |= np.logical_or.reduceat(records.key_lengths < 0, firsts)
        if not (np.diff(offsets) > 0).all():
            odd[:] = True
        if odd.any():
            rows = np.flatnonzero(odd)
            first, last = table.base_offset[rows[0]], table.last_offset[rows[-1]]
            self._offsets.leave_to_keys(int(first), int(last))

    def _pass_before(self, last_offsets: Integers, row: int) -> None:
        """Say that all batches before the one in a row were looked at."""
        if row and last_offsets[row - 1] > self._offsets.latest_offset:
            self._offsets.pass_to(int(last_offsets[row - 1]))
