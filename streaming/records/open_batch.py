"""The open batch of one partition, of whatever magic: rows go in, finished batches come out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.errors import RecordTooLargeError, RowError
from kafkalog.streaming.records import encode_kernels as kernels

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers
    from kafkalog.streaming.records.record_columns import RecordColumns

__all__ = ["DEFAULT_MAX_MESSAGE_BYTES", "DEFAULT_TARGET_BYTES", "EncodedBatch", "OpenBatch"]

DEFAULT_TARGET_BYTES: Final = 256 * 1024
"""Uncompressed size at which a batch is closed: large enough that the work per batch does not show,
small enough that a seek, which decompresses a whole batch, stays cheap."""

DEFAULT_MAX_MESSAGE_BYTES: Final = 1_048_588
"""Kafka's default of ``max.message.bytes``: the largest batch, its header included."""

_FIRST_ROOM: Final = 8 * 1024
_MAX_BATCH_BYTES: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A complete record batch, or message set of magic 0 or 1, that has no offsets yet.

    ``first_offset`` is -1, or the offset its first record is to keep. Timestamps are in ms.
    """

    data: bytes
    count: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    first_offset: int = -1


class OpenBatch(ABC):
    """The open batch of one partition. Not shared between threads, not picklable.

    A batch takes rows until it would exceed its limit, and one row at least.
    """

    def __init__(self, limit: int, *, header_size: int, state_size: int) -> None:
        """Open an empty batch.

        Args:
            limit: size, uncompressed and with header, that closes a batch.
            header_size: bytes to leave free before the records.
            state_size: how many numbers the kernel keeps about the open batch.
        """
        self._limit = limit
        self._header_size = header_size
        self._out = self._first_room()
        self._state: Integers = np.zeros(state_size, np.int64)
        self._state[kernels.USED] = header_size
        self._stopped: Integers = np.zeros(2, np.int64)

    @property
    def open_bytes(self) -> int:
        """Bytes of memory that the open batch holds."""
        return len(self._out)

    @property
    def count(self) -> int:
        """Records in the open batch."""
        return int(self._state[kernels.COUNT])

    def append(self, records: RecordColumns, rows: Integers) -> list[EncodedBatch]:
        """Append the given rows in the given order; return the batches that got full.

        Args:
            records: the columns.
            rows: int64[m], indexes into them.

        Raises:
            RecordTooLargeError: a record does not fit ``max_message_bytes`` even alone.
            RowError: offsets to keep that do not increase; a column that contradicts itself; a row
                that this magic cannot hold.
        """
        full: list[EncodedBatch] = []
        done = 0
        while done < len(rows):
            done = self._append_some(records, rows, done)
            reason, row = (int(number) for number in self._stopped)
            if reason == kernels.FULL:
                full.append(self._close())
            elif reason == kernels.GROW:
                self._grow(int(self._state[kernels.REQUIRED]))
            elif reason == kernels.BAD_OFFSET:
                raise RowError(
                    f"row {row} is to keep offset {records.offsets[row]}, which does not lie above "
                    "the offset before it in its partition: sort by offset first"
                )
            elif reason == kernels.BAD_COLUMN:
                raise RowError(f"row {row} lies outside of its column's data")
        return full

    def finish(self) -> EncodedBatch | None:
        """Close the open batch and return it, or None if it is empty.

        The builder gives up its memory. It can be used again.

        Raises:
            RecordTooLargeError: a record does not fit ``max_message_bytes`` even alone.
        """
        last = self._close() if self.count else None
        self._out = self._first_room()
        return last

    def _first_room(self) -> Bytes:
        return np.empty(min(_FIRST_ROOM, self._limit), np.uint8)

    @abstractmethod
    def _append_some(self, records: RecordColumns, rows: Integers, first: int) -> int:
        """Let the kernel append from ``rows[first]`` on; return the first one that is not in."""

    @abstractmethod
    def _seal(self, records: memoryview, state: list[int]) -> bytes:
        """Make a batch of the encoded records; ``state`` is what the kernel kept."""

    def _close(self) -> EncodedBatch:
        state = self._state.tolist()
        data = self._seal(self._out.data[self._header_size : state[kernels.USED]], state)
        batch = EncodedBatch(
            data=data,
            count=state[kernels.COUNT],
            last_offset_delta=state[kernels.LAST_DELTA],
            base_timestamp=state[kernels.BASE_TIMESTAMP],
            max_timestamp=state[kernels.MAX_TIMESTAMP],
            first_offset=state[kernels.FIRST_OFFSET],
        )
        self._state[:] = 0
        self._state[kernels.USED] = self._header_size
        if len(self._out) > self._limit:
            self._out = np.empty(self._limit, np.uint8)
        return batch

    def _grow(self, required: int) -> None:
        if required > _MAX_BATCH_BYTES:
            raise RecordTooLargeError(
                f"a record of about {required} bytes fits no batch: its size is an int32"
            )
        doubled = min(2 * len(self._out), self._limit)
        grown = np.empty(max(required, doubled), np.uint8)
        used = int(self._state[kernels.USED])
        grown[:used] = self._out[:used]
        self._out = grown
