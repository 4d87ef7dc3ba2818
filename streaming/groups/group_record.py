"""What is decided about a group: its generation, its members, and who has which partitions.

This is the group's metadata in ``__consumer_offsets``. Each member has

``assigned``
    the partitions that it reads;
``revoked``
    those that it has to give up, and has not yet. Nobody else gets them until then.

and of each partition the generation since which the member has it without a break. That is ours. It
lies in the user data of the member's subscription, where brokers and tools do not look.

Example: in generation 7 member A has ``t-0`` since 5, and ``t-1`` is revoked, which it had since 3.
Its subscription owns both, with the user data ``00 00000005 00000003``; its assignment is ``t-0``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.coordinator.group_metadata import (
    GroupMember,
    GroupMetadata,
    encode_assignment,
    encode_subscription,
    listed_partitions,
)
from kafkalog.streaming.coordinator.records import (
    CONSUMER_PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafkalog.model import TopicPartition

__all__ = ["GroupRecord", "Member", "MemberSettings"]

_USER_DATA_VERSION: Final = b"\x00"


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """What a member says of itself when it joins; times in ms.

    ``topics`` may change later, the rest does not.
    """

    topics: frozenset[str]
    instance: str | None = None
    client_id: str = ""
    host: str = ""
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000


@dataclass(frozen=True, slots=True)
class Member:
    """A member as of one generation; partitions with the generation since which it has them."""

    settings: MemberSettings
    assigned: Mapping[TopicPartition, int] = field(default_factory=dict)
    revoked: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def held(self) -> Mapping[TopicPartition, int]:
        """What it may be working on."""
        return {**self.assigned, **self.revoked}


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group as of one generation; without members it is empty."""

    generation: int = 0
    strategy: str | None = None
    leader: str | None = None
    """The member that decided this generation, or one that is in it."""
    members: Mapping[str, Member] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, metadata: GroupMetadata) -> GroupRecord:
        """Read a group's metadata; what a broker wrote, too.

        A group whose members speak no consumer protocol (Kafka Connect's) has none here.

        Raises:
            CorruptRecordError: a member's bytes cannot be read.
        """
        members = metadata.members if metadata.protocol_type == CONSUMER_PROTOCOL_TYPE else ()
        return cls(
            metadata.generation,
            metadata.protocol if members else None,
            metadata.leader if members else None,
            {each.member_id: _decoded(each, metadata.generation) for each in members},
        )

    def metadata(self, timestamp_ms: int) -> GroupMetadata:
        """Return what is written, at a time in ms."""
        return GroupMetadata(
            generation=self.generation,
            protocol=self.strategy,
            leader=self.leader,
            members=tuple(
                _encoded(name, member, self.generation)
                for name, member in sorted(self.members.items())
            ),
            timestamp_ms=timestamp_ms,
        )


def _encoded(name: str, member: Member, generation: int) -> GroupMember:
    held = sorted(member.held.items())
    settings = member.settings
    return GroupMember(
        member_id=name,
        instance_id=settings.instance,
        client_id=settings.client_id,
        client_host=settings.host,
        rebalance_timeout_ms=settings.rebalance_timeout_ms,
        session_timeout_ms=settings.session_timeout_ms,
        subscription=encode_subscription(
            sorted(settings.topics),
            owned=[partition for partition, _ in held],
            generation=generation,
            user_data=_USER_DATA_VERSION + struct.pack(f">{len(held)}i", *(s for _, s in held)),
        ),
        assignment=encode_assignment(sorted(member.assigned)),
    )


def _decoded(member: GroupMember, generation: int) -> Member:
    # A broker keeps empty bytes of a member that has not been assigned anything yet.
    wish = decode_subscription(member.subscription)
    got = decode_assignment(member.assignment)["assignedPartitions"] if member.assignment else []
    assigned = listed_partitions(got)
    owned = listed_partitions(wish["ownedPartitions"] or [])
    since = _since(owned, wish["userData"])
    revoked = since.keys() - assigned
    settings = MemberSettings(
        topics=frozenset(wish["topics"]),
        instance=member.instance_id,
        client_id=member.client_id,
        host=member.client_host,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
    )
    return Member(
        settings,
        {each: since.get(each, generation) for each in assigned},
        {each: since[each] for each in owned if each in revoked},
    )


def _since(owned: Sequence[TopicPartition], user_data: bytes | None) -> dict[TopicPartition, int]:
    """Read since when each partition is owned; nothing of a member that is not ours."""
    if not user_data or user_data[:1] != _USER_DATA_VERSION or len(user_data) != 1 + 4 * len(owned):
        return {}
    generations = struct.unpack(f">{len(owned)}i", user_data[1:])
    if any(each < 0 for each in generations):
        raise CorruptRecordError("a group's member has a partition since a negative generation")
    return dict(zip(owned, generations, strict=True))
