"""Rows of records whose offsets are known: what was spilled, and is read from the log at last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kafkalog.streaming.log.read.slice_reader import NarrowedDecoder
from kafkalog.streaming.records.columns import RecordDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from kafkalog.streaming.records.arrow_buffers import Integers
    from kafkalog.streaming.records.batch import BatchTable
    from kafkalog.streaming.records.row_buffers import FoundRecords, RowBuffers

__all__ = ["ChosenRows"]


class ChosenRows:
    """Takes the chosen rows of what ``decoder`` is fed, which passes over batches without any.

    ``offsets`` are those that are chosen of what is fed next, ascending, int64[n]. ``found`` counts
    the rows. Not shared between threads.
    """

    rows = 0

    def __init__(
        self,
        buffers: RowBuffers,
        pick: Callable[[FoundRecords], FoundRecords],
        *,
        max_decompressed_bytes: int,
    ) -> None:
        """Prepare.

        Args:
            buffers: take the rows; those of an output batch that is not full stay there.
            pick: leaves of chosen records those that are wanted.
            max_decompressed_bytes: bound on what one batch may decompress to.
        """
        self._buffers = buffers
        self._pick = pick
        every = RecordDecoder(max_decompressed_bytes=max_decompressed_bytes, taker=self)
        self.decoder = NarrowedDecoder(every, self._chosen)
        self.offsets: Integers = np.empty(0, np.int64)
        self.found = 0

    def _chosen(self, table: BatchTable) -> BatchTable:
        """Return the batches that have chosen offsets."""
        # the first offset of a compressed message set is not known, and counts as -1
        first = np.searchsorted(self.offsets, table.base_offset)
        return table[first < np.searchsorted(self.offsets, table.last_offset, side="right")]

    def append(self, found: FoundRecords) -> Iterator[pa.RecordBatch]:
        """Take the chosen ones of the records that the decoder has found."""
        places = np.searchsorted(self.offsets, found.offsets)
        places[places == len(self.offsets)] = 0
        rows = found.take(np.flatnonzero(self.offsets[places] == found.offsets))
        self.found += len(rows.offsets)
        rows = self._pick(rows)
        if len(rows.offsets):
            yield from self._buffers.append(rows)

    def take(self) -> pa.RecordBatch:
        """Give nothing: what was chosen lies in ``buffers``."""
        raise AssertionError("chosen rows lie in the buffers")
