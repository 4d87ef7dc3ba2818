"""Give encoded batches their offsets: the work of a commit, per batch and not per row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.records.encode_kernels import number_batches

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes

__all__ = ["assign_offsets"]


def assign_offsets(data: Bytes, first_offset: int, leader_epoch: int) -> int:
    """Write base offset and leader epoch into every batch of magic 2 in ``data``, in place.

    Both lie outside of the batch's CRC (Kafka ``DefaultRecordBatch.setLastOffset``), so nothing
    else changes.

    Args:
        data: uint8[n], writable, whole batches back to back.
        first_offset: offset of the first batch's first record.
        leader_epoch: int32, >= 0 for a broker to take the batch.

    Returns:
        The offset after the last batch.

    Raises:
        CorruptRecordError: something in ``data`` is no whole batch of magic 2; ``position`` says
            where in ``data``. Batches before it are numbered already.
    """
    end = number_batches(data, first_offset, leader_epoch)
    if end < 0:
        position = -1 - end
        raise CorruptRecordError(
            f"no whole record batch of magic 2 at byte {position} of {len(data)} staged bytes",
            position=position,
        )
    return end
