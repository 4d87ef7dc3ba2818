"""Give encoded batches their offsets: the work of a commit, per batch and not per row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.records.batch_layout import MAGIC, MAGIC_POSITION
from kafkalog.streaming.records.encode_kernels import number_batches
from kafkalog.streaming.records.message_sets.encode_kernels import number_messages

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes

__all__ = ["assign_offsets"]


def assign_offsets(data: Bytes, first_offset: int, leader_epoch: int) -> int:
    """Write offsets and leader epoch into everything that was encoded in ``data``, in place.

    They lie outside of the checksums (Kafka ``DefaultRecordBatch.setLastOffset``,
    ``AbstractLegacyRecordBatch.setLastOffset``), so nothing else changes. Sets of magic 0 and 1 are
    numbered message by message, wrappers of magic 1 as a whole; they know no leader epoch.

    Args:
        data: uint8[n], writable, whole batches or message sets of one magic, back to back. The
            first set may be the rest of one.
        first_offset: offset of the first record.
        leader_epoch: int32, >= 0 for a broker to take a batch of magic 2.

    Returns:
        The offset after the last record.

    Raises:
        CorruptRecordError: something in ``data`` is no whole batch or message, or is a wrapper of
            magic 0, whose offsets lie under its checksum; ``position`` says where in ``data``. What
            lies before it is numbered already.
    """
    if len(data) > MAGIC_POSITION and data[MAGIC_POSITION] < MAGIC:
        end = number_messages(data, first_offset)
    else:
        end = number_batches(data, first_offset, leader_epoch)
    if end < 0:
        position = -1 - end
        raise CorruptRecordError(
            f"no whole batch or message without offset at byte {position} of {len(data)} staged "
            "bytes",
            position=position,
        )
    return end
