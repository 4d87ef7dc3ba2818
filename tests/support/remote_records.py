"""Records of ``__remote_log_metadata``, as a broker writes them."""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["partition_deleted", "segment_added", "segment_updated"]

FINISHED, DELETING, DELETED = 1, 2, 3


def _uuid(text: str) -> bytes:
    return base64.urlsafe_b64decode(f"{text}==")


def _compact(data: bytes) -> bytes:
    assert len(data) < 127
    return bytes([len(data) + 1]) + data


def _partition(topic: str, topic_id: str, partition: int) -> bytes:
    return _compact(topic.encode()) + _uuid(topic_id) + struct.pack(">i", partition) + b"\0"


def _segment(topic: str, topic_id: str, partition: int, segment_id: str) -> bytes:
    return _partition(topic, topic_id, partition) + _uuid(segment_id) + b"\0"


def segment_added(
    topic: str,
    topic_id: str,
    partition: int,
    segment_id: str,
    offsets: tuple[int, int],
    *,
    size: int = 1000,
    epochs: Sequence[tuple[int, int]] = ((0, 0),),
    txn_index_empty: bool = True,
    state: int = 0,
    max_timestamp: int = 1_700_000_000_000,
) -> bytes:
    """Return the record of a copy that was started; ``offsets`` are the first and the last one."""
    body = struct.pack(">qqiqq", *offsets, 1, max_timestamp, 1_700_000_000_001)
    body += bytes([len(epochs) + 1])
    body += b"".join(struct.pack(">iq", *epoch) + b"\0" for epoch in epochs)
    body += struct.pack(">i", size) + b"\0" + bytes([state])
    tags = b"\x01\x00\x01\x01" if txn_index_empty else b"\0"
    return b"\x01\x00\x00" + _segment(topic, topic_id, partition, segment_id) + body + tags


def segment_updated(
    topic: str,
    topic_id: str,
    partition: int,
    segment_id: str,
    state: int = FINISHED,
    custom_metadata: bytes | None = None,
) -> bytes:
    """Return the record that says that a copy has finished, or that a segment is deleted."""
    custom = b"\0" if custom_metadata is None else _compact(custom_metadata)
    body = struct.pack(">iq", 1, 1_700_000_000_002) + custom + bytes([state])
    return b"\x01\x01\x00" + _segment(topic, topic_id, partition, segment_id) + body + b"\0"


def partition_deleted(topic: str, topic_id: str, partition: int, state: int = 0) -> bytes:
    """Return the record that says that all segments of a partition are to be deleted."""
    body = struct.pack(">iq", 1, 1_700_000_000_003) + bytes([state])
    return b"\x01\x02\x00" + _partition(topic, topic_id, partition) + body + b"\0"
