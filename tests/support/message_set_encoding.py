"""Message sets of magic 0 and 1 with their final offsets, as a commit makes them in two steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kafkalog.model import NO_EPOCH
from kafkalog.streaming.records.builder import assign_offsets
from kafkalog.streaming.records.compression import Codec
from kafkalog.streaming.records.message_sets.builder import MessageSetBuilder, wrap_messages

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Integers
    from kafkalog.streaming.records.builder import RecordColumns

__all__ = ["encode_message_set"]


def encode_message_set(
    records: RecordColumns,
    rows: Integers,
    magic: int,
    codec: Codec,
    first_offset: int,
    **options: Any,
) -> bytes:
    """Encode rows from an offset on; offsets to keep, and options of ``MessageSetBuilder``, count.

    Args:
        records: the columns.
        rows: int64[m], indexes into them.
        magic: 0 or 1.
        codec: none to lz4.
        first_offset: offset of the first row, unless ``records`` has offsets.
        options: of ``MessageSetBuilder``.
    """
    builder = MessageSetBuilder(magic, codec, **options)
    encoded_sets = builder.append(records, rows)
    if (last := builder.finish()) is not None:
        encoded_sets.append(last)
    parts = []
    for encoded in encoded_sets:
        part = np.frombuffer(bytearray(encoded.data), np.uint8)
        offset = first_offset if encoded.first_offset < 0 else encoded.first_offset
        first_offset = assign_offsets(part, offset, NO_EPOCH)
        parts.append(part)
    messages = np.concatenate(parts) if parts else np.empty(0, np.uint8)
    if magic == 0 and codec is not Codec.NONE:
        sizes = {name: value for name, value in options.items() if name in _OF_WRAPPERS}
        return wrap_messages(messages, codec, **sizes)
    return messages.tobytes()


_OF_WRAPPERS = frozenset({"level", "target_bytes", "max_message_bytes"})
