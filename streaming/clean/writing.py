"""Cleaned segments, as they are written into a folder that nobody else looks at.

A log gets its indexes when it is complete, from its batches as they lie on the disk: what was
written is read again, checksums and all, before anything is replaced by it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.files.atomic import write_new
from kafkalog.files.closing import Closing
from kafkalog.files.regular import create_exclusive, sync, write_all
from kafkalog.streaming.log.append.index_rebuild import build_indexes
from kafkalog.streaming.log.files import LOG, TXN_INDEX, file_name
from kafkalog.streaming.log.index.txn import TXN_ENTRY, AbortedTransaction
from kafkalog.streaming.log.log_end import ValidBatches
from kafkalog.streaming.log.segment import LogSegment

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.clean.batch_filter import Piece

__all__ = ["CleanedSegment", "SegmentWriter"]

_INT_MAX: Final = 2**31 - 1
"""What a segment may have of bytes, and its last offset above its base offset."""


class CleanedSegment(NamedTuple):
    """A segment that is complete and durable."""

    base_offset: int
    size: int
    files: tuple[Path, ...]
    """Its log, its offset and time index, and where it has one its index of aborted transactions;
    all of them have their final names, with the writer's prefix."""


class SegmentWriter(Closing):
    """Writes what a group of segments becomes: one segment, or more if offsets leave no choice.

    Use it as a context manager; what is open then is closed. Not thread safe.
    """

    def __init__(
        self,
        folder: Path,
        base_offset: int,
        *,
        index_interval_bytes: int,
        modified_ns: int,
        prefix: str = "",
    ) -> None:
        """Create the log of the first segment.

        Args:
            folder: where the files go.
            base_offset: of the first segment.
            index_interval_bytes: as the topic's settings say.
            modified_ns: the time of change that the logs get; retention may go by it.
            prefix: what the names of the files begin with.

        Raises:
            FileExistsError: there is one already.
        """
        self._folder = folder
        self._prefix = prefix
        self._interval = index_interval_bytes
        self._modified_ns = modified_ns
        self._done: list[CleanedSegment] = []
        self._entries: list[AbortedTransaction] = []
        self._next_offset = base_offset
        self._descriptor = -1
        self._open(base_offset)

    def append(self, piece: Piece) -> None:
        """Add batches; a new segment begins where the offsets of these do not fit the open one."""
        too_wide = piece.last_offset - self._base_offset > _INT_MAX
        if self._size and (too_wide or self._size + len(piece.data) > _INT_MAX):
            first = max(piece.first_offset, self._next_offset)
            self._complete()
            self._open(first)
        write_all(self._descriptor, piece.data, self._size)
        self._size += len(piece.data)
        self._next_offset = piece.last_offset + 1

    def add_aborted(self, entries: list[AbortedTransaction]) -> None:
        """Note aborted transactions whose markers were added last."""
        self._entries += entries

    def finish(self) -> tuple[CleanedSegment, ...]:
        """Complete the open segment and return all of them.

        Raises:
            CorruptRecordError: what was written cannot be read.
        """
        self._complete()
        return tuple(self._done)

    def _open(self, base_offset: int) -> None:
        self._base_offset, self._size = base_offset, 0
        name = self._prefix + file_name(base_offset, LOG)
        self._descriptor = create_exclusive(self._folder / name)

    def _complete(self) -> None:
        os.utime(self._descriptor, ns=(self._modified_ns, self._modified_ns))
        sync(self._descriptor)
        self.close()
        with LogSegment(self._folder, self._base_offset, prefix=self._prefix) as segment:
            batches = ValidBatches(segment)
            beside = build_indexes(segment, batches, self._interval)
            if batches.end.problem is not None:
                raise batches.end.problem
            path = segment.path
        end = self._next_offset
        entries = [entry for entry in self._entries if entry.last_offset < end]
        self._entries = [entry for entry in self._entries if entry.last_offset >= end]
        if entries:
            content = np.array([(0, *entry) for entry in entries], TXN_ENTRY).tobytes()
            beside[path.with_suffix(TXN_INDEX)] = content
        for file, content in beside.items():
            write_new(file, content)
        self._done.append(CleanedSegment(self._base_offset, self._size, (path, *beside)))

    def close(self) -> None:
        """Close the log that is open; closing twice does no harm."""
        descriptor, self._descriptor = self._descriptor, -1  # forgotten before it is closed
        if descriptor >= 0:
            os.close(descriptor)
