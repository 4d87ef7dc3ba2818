"""Encode a consumer group's positions as a broker's group coordinator writes them.

Key, version 1:

====  =====  =============  ==========================================
byte  size   field          meaning
====  =====  =============  ==========================================
0     2      version        1
2     2 + n  group          int16 length, UTF-8
      2 + n  topic          int16 length, UTF-8
      4      partition
====  =====  =============  ==========================================

Value, version 3:

====  =====  ===============  ====================================================
byte  size   field            meaning
====  =====  ===============  ====================================================
0     2      version          3
2     8      offset           the next offset to consume
10    4      leaderEpoch      -1 for none
14    2 + n  metadata         int16 length, UTF-8; for people
      8      commitTimestamp  in ms
====  =====  ===============  ====================================================

All integers are big-endian. The position 5 of group ``g`` in partition 0 of topic ``t`` has the key
``0001 0001 67 0001 74 00000000``.

Source: Kafka ``OffsetCommitKey.json``, ``OffsetCommitValue.json``. Brokers read it since 2.1.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from kafkalog.errors import OptionError

if TYPE_CHECKING:
    from kafkalog.model import TopicPartition

__all__ = ["encode_group_id", "encode_position", "encode_position_key"]

_KEY_VERSION: Final = 1
_VALUE_VERSION: Final = 3
_NO_LEADER_EPOCH: Final = -1
_LONGEST: Final = 2**15 - 1


def encode_group_id(group: str) -> bytes:
    """Encode a group's id as keys have it.

    Raises:
        OptionError: UTF-8 cannot hold it. Java would write "?", the id of another group.
    """
    try:
        return group.encode()
    except UnicodeEncodeError:
        raise OptionError(
            f"a group's id is {group!r}, which is no text that UTF-8 can hold: bytes of another "
            "encoding were taken for it, from the command line or the environment"
        ) from None


def encode_position_key(group: str, topic_partition: TopicPartition) -> bytes:
    """Encode the key under which a group's position in a partition is kept.

    Raises:
        OptionError: the group's id is empty, longer than 32767 bytes, or no UTF-8.
    """
    topic, partition = topic_partition
    name = encode_group_id(group)
    if not 0 < len(name) <= _LONGEST:
        raise OptionError(
            f"a group's id has 1 to {_LONGEST} bytes in UTF-8, this one has {len(name)}"
        )
    return (
        struct.pack(">h", _KEY_VERSION)
        + _string(name)
        + _string(topic.encode())
        + struct.pack(">i", partition)
    )


def encode_position(offset: int, *, timestamp_ms: int, metadata: str = "") -> bytes:
    """Encode a position: the next ``offset`` to consume, committed at ``timestamp_ms``."""
    return (
        struct.pack(">hqi", _VALUE_VERSION, offset, _NO_LEADER_EPOCH)
        + _string(metadata.encode())
        + struct.pack(">q", timestamp_ms)
    )


def _string(data: bytes) -> bytes:
    return struct.pack(">h", len(data)) + data
