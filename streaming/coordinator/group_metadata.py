"""Records of a group's positions and metadata as a broker's group coordinator writes them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafkalog.errors import CorruptRecordError, OptionError
from kafkalog.model import NO_TIMESTAMP, TopicPartition
from kafkalog.streaming.coordinator.schemas import (
    CONSUMER_PROTOCOL_TYPE,
    GROUP_METADATA_VALUE,
    decode_value,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kafkalog.streaming.coordinator.message_schema import Fields


__all__ = [
    "GroupMetadata",
    "MemberMetadata",
    "decode_group_metadata",
    "encode_assignment",
    "encode_group_id",
    "encode_group_key",
    "encode_group_metadata",
    "encode_position",
    "encode_position_key",
    "encode_subscription",
    "listed_partitions",
]


# ----------------------------------------------------------------------------------------------
# Encode a consumer group's positions as a broker's group coordinator writes them.
#
# Key, version 1:
#
# ====  =====  =============  ==========================================
# byte  size   field          meaning
# ====  =====  =============  ==========================================
# 0     2      version        1
# 2     2 + n  group          int16 length, UTF-8
#       2 + n  topic          int16 length, UTF-8
#       4      partition
# ====  =====  =============  ==========================================
#
# Value, version 3:
#
# ====  =====  ===============  ====================================================
# byte  size   field            meaning
# ====  =====  ===============  ====================================================
# 0     2      version          3
# 2     8      offset           the next offset to consume
# 10    4      leaderEpoch      -1 for none
# 14    2 + n  metadata         int16 length, UTF-8; for people
#       8      commitTimestamp  in ms
# ====  =====  ===============  ====================================================
#
# All integers are big-endian. The position 5 of group ``g`` in partition 0 of topic ``t`` has the
# key ``0001 0001 67 0001 74 00000000``.
#
# Source: Kafka ``OffsetCommitKey.json``, ``OffsetCommitValue.json``. Brokers read it since 2.1.


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


# ----------------------------------------------------------------------------------------------
# A group's metadata as a broker's group coordinator keeps it: who is in it, and who has what.
#
# Key, type 2: int16 2, group (int16 length, UTF-8). Value, version 3, big-endian:
#
# =======  ======================  ===================================================
# size     field                   meaning
# =======  ======================  ===================================================
# 2        version                 3
# 2 + n    protocolType            ``consumer``; empty if the group never had members
# 4        generation
# 2 + n    protocol                the strategy of assignment; length -1 for none
# 2 + n    leader                  a member id; length -1 for none
# 8        currentStateTimestamp   in ms
# 4        number of members       0: the group is empty
# =======  ======================  ===================================================
#
# and of each member:
#
# =======  ======================  ===================================================
# 2 + n    memberId
# 2 + n    groupInstanceId         of a static member; length -1 for others
# 2 + n    clientId
# 2 + n    clientHost
# 4        rebalanceTimeout        in ms
# 4        sessionTimeout          in ms
# 4 + n    subscription            see :func:`encode_subscription`
# 4 + n    assignment              see :func:`encode_assignment`
# =======  ======================  ===================================================
#
# Subscription and assignment are bytes of the consumer protocol, which brokers hand on as they
# are. They are written as version 3. A client that knows an earlier one reads what it knows of
# it.
#
# Source: Kafka ``GroupMetadataKey.json``, ``GroupMetadataValue.json``,
# ``ConsumerProtocolSubscription.json``, ``ConsumerProtocolAssignment.json``. Brokers read version
# 3 since 2.3.


_KEY_TYPE: Final = 2
_PROTOCOL_VERSION: Final = 3
_NO_GENERATION: Final = -1


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """A member as the coordinator keeps it; times in ms."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A group as of one generation; without members it is empty."""

    generation: int
    protocol: str | None
    leader: str | None
    members: tuple[MemberMetadata, ...]
    protocol_type: str = CONSUMER_PROTOCOL_TYPE
    timestamp_ms: int = NO_TIMESTAMP


def encode_group_key(group: str) -> bytes:
    """Encode the key under which a group's metadata is kept.

    Raises:
        OptionError: the group's id is empty, longer than 32767 bytes, or no UTF-8.
    """
    if not group:
        raise OptionError("a group's id is empty, expected at least one character")
    encode_group_id(group)
    return struct.pack(">h", _KEY_TYPE) + _nullable_string(group)


def encode_group_metadata(group: GroupMetadata) -> bytes:
    """Encode a group.

    Raises:
        OptionError: a name is longer than 32767 bytes.
    """
    parts = [
        struct.pack(">h", _VALUE_VERSION),
        _nullable_string(group.protocol_type),
        struct.pack(">i", group.generation),
        _nullable_string(group.protocol),
        _nullable_string(group.leader),
        struct.pack(">qi", group.timestamp_ms, len(group.members)),
        *(_member(member) for member in group.members),
    ]
    return b"".join(parts)


def _member(member: MemberMetadata) -> bytes:
    return b"".join(
        (
            _nullable_string(member.member_id),
            _nullable_string(member.instance_id),
            _nullable_string(member.client_id),
            _nullable_string(member.client_host),
            struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        )
    )


def decode_group_metadata(data: bytes) -> GroupMetadata:
    """Decode a group from a value of any version.

    Raises:
        UnsupportedFormatError: a version that is not known.
        CorruptRecordError: the bytes are not of the version they name; the message says where.
    """
    fields = decode_value(GROUP_METADATA_VALUE, data).fields
    return GroupMetadata(
        generation=fields["generation"],
        protocol=fields["protocol"],
        leader=fields["leader"],
        members=tuple(_decoded_member(member) for member in fields["members"]),
        protocol_type=fields["protocolType"],
        timestamp_ms=fields["currentStateTimestamp"],
    )


def _decoded_member(fields: Fields) -> MemberMetadata:
    session, rebalance = fields["sessionTimeout"], fields["rebalanceTimeout"]
    return MemberMetadata(
        member_id=fields["memberId"],
        instance_id=fields["groupInstanceId"],
        client_id=fields["clientId"],
        client_host=fields["clientHost"],
        # Version 0 had one time for both, as brokers take it.
        rebalance_timeout_ms=session if rebalance is None else rebalance,
        session_timeout_ms=session,
        subscription=fields["subscription"],
        assignment=fields["assignment"],
    )


def encode_subscription(
    topics: Sequence[str],
    *,
    owned: Iterable[TopicPartition] = (),
    generation: int = _NO_GENERATION,
    user_data: bytes | None = None,
) -> bytes:
    """Encode what a member subscribes to, and which partitions it owned since which generation."""
    return b"".join(
        (
            struct.pack(">hi", _PROTOCOL_VERSION, len(topics)),
            *map(_nullable_string, topics),
            _bytes(user_data),
            _partitions(owned),
            struct.pack(">i", generation),
            _nullable_string(None),  # no rack
        )
    )


def encode_assignment(
    partitions: Iterable[TopicPartition], *, user_data: bytes | None = None
) -> bytes:
    """Encode the partitions that a member is assigned."""
    version = struct.pack(">h", _PROTOCOL_VERSION)
    return version + _partitions(partitions) + _bytes(user_data)


def listed_partitions(topics: Iterable[Fields]) -> list[TopicPartition]:
    """Return the partitions of a decoded subscription's or assignment's list.

    Raises:
        CorruptRecordError: a partition's number is negative.
    """
    found = [
        TopicPartition(each["topic"], number) for each in topics for number in each["partitions"]
    ]
    for each in found:
        if each.partition < 0:
            raise CorruptRecordError(f"a group's member has the partition {each}")
    return found


def _partitions(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    parts = [struct.pack(">i", len(by_topic))]
    for topic, numbers in by_topic.items():
        parts += [
            _nullable_string(topic),
            struct.pack(f">i{len(numbers)}i", len(numbers), *numbers),
        ]
    return b"".join(parts)


def _nullable_string(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">h", -1)
    data = text.encode("utf-8", "replace")  # as in Java, for a lone surrogate
    if len(data) > _LONGEST:
        raise OptionError(f"{text[:40]!r}… has {len(data)} bytes in UTF-8, at most {_LONGEST} fit")
    return struct.pack(">h", len(data)) + data


def _bytes(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
