"""The decision about a group: generation, members, and who has which partitions."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.coordinator.group_metadata import (
    GroupMetadata,
    MemberMetadata,
    encode_assignment,
    encode_subscription,
    listed_partitions,
)
from kafkalog.streaming.coordinator.schemas import (
    CONSUMER_PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
)
from kafkalog.streaming.groups.assignors import NO_GENERATION, Subscription, assign

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kafkalog.model import TopicPartition


__all__ = ["GroupRecord", "Member", "MemberSettings", "Presence", "next_record"]


# ----------------------------------------------------------------------------------------------
# What is decided about a group: its generation, its members, and who has which partitions.
#
# This is the group's metadata in ``__consumer_offsets``. Each member has
#
# ``assigned``
#     the partitions that it reads;
# ``revoked``
#     those that it has to give up, and has not yet. Nobody else gets them until then.
#
# and of each partition the generation since which the member has it without a break. That is
# ours. It lies in the user data of the member's subscription, where brokers and tools do not
# look.
#
# Example: in generation 7 member A has ``t-0`` since 5, and ``t-1`` is revoked, which it had
# since 3. Its subscription owns both, with the user data ``00 00000005 00000003``; its assignment
# is ``t-0``.


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


def _encoded(name: str, member: Member, generation: int) -> MemberMetadata:
    held = sorted(member.held.items())
    settings = member.settings
    return MemberMetadata(
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


def _decoded(member: MemberMetadata, generation: int) -> Member:
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


# ----------------------------------------------------------------------------------------------
# The decision about a group: what is known of its members now, and what follows from that.
#
# Pure: it knows no files, no locks and no time. Whoever holds the group's lock asks it, and
# commits the answer.
#
# A partition moves in two generations. In the first it is revoked: its owner ends what it is
# doing, commits that, and says so. In the second it is assigned to somebody else. Until then
# nobody else has it, and the owner may still commit what it has read. Partitions that do not move
# are read on meanwhile, whatever the strategy. Owners that are gone, or say nothing for too long,
# are not waited for: what they commit late is refused, since the group's metadata no longer names
# them.
#
# Example: A has t-0, t-1 and t-2 in generation 4, and B joins.
#
# ==========  ================  ======================  ======================================
# generation  A                 B                       why
# ==========  ================  ======================  ======================================
# 4           t-0 t-1 t-2
# 5           t-0 t-1, not t-2  nothing yet             B has joined; A still works on t-2
# 6           t-0 t-1           t-2                     A has said that it gave t-2 up
# ==========  ================  ======================  ======================================


_TARGET_OF: Final = {"cooperative-sticky": "sticky"}
"""Nobody gets here what others hold, so that the cooperative strategy aims where sticky does."""


@dataclass(frozen=True, slots=True)
class Presence:
    """What a member says of itself now.

    Attributes:
        settings: as it joined, or wants to; its topics as it wants them now.
        strategy: how it wants partitions to be assigned.
        generation: the last one that it has taken note of; none yet if it wants to join.
        owned: what it holds as of then.
        leaving: whether it wants to be a member no more.
    """

    settings: MemberSettings
    strategy: str
    generation: int = NO_GENERATION
    owned: frozenset[TopicPartition] = frozenset()
    leaving: bool = False


def next_record(
    record: GroupRecord,
    present: Mapping[str, Presence],
    topics: Mapping[str, int],
    *,
    recreated: Collection[TopicPartition] = (),
    decider: str | None = None,
) -> GroupRecord | None:
    """Return the group's next generation, or None if nothing has changed.

    Args:
        record: what was decided last.
        present: those that live, by member id. Who was lost, or did not give a partition up in
            time, is not among them.
        topics: the number of partitions of each topic that exists.
        recreated: partitions without a position of the present topic: they are given anew.
        decider: who asks.
    """
    generation = record.generation + 1
    live = {name: each for name, each in present.items() if not each.leaving}
    members = _staying(record, live)
    strategy = record.strategy if members else None
    for name, inherited in _joining(record, live).items():
        strategy = strategy or live[name].strategy
        if live[name].strategy == strategy:
            members = _without_instance(members, live[name].settings.instance)
            members[name] = Member(live[name].settings, dict.fromkeys(inherited, generation))
    held = {
        name: _lasting(_held(name, member, record, live), topics, recreated)
        for name, member in members.items()
    }
    assigned = _assigned(strategy, members, held, topics)
    following = {
        name: _following(member, held[name], assigned[name], generation)
        for name, member in members.items()
    }
    if following == record.members:
        return None
    leader = decider if decider in following else min(following, default=None)
    return GroupRecord(generation, strategy if following else None, leader, following)


def _staying(record: GroupRecord, live: Mapping[str, Presence]) -> dict[str, Member]:
    return {
        name: replace(member, settings=live[name].settings)
        for name, member in record.members.items()
        if name in live
    }


def _joining(
    record: GroupRecord, live: Mapping[str, Presence]
) -> dict[str, frozenset[TopicPartition]]:
    """Return who joins, and what it takes over from a member of the same instance.

    Who has been in a generation and is in the group no more was fenced: it does not come back under
    the same id.
    """
    of_instance = {
        member.settings.instance: frozenset(member.assigned) for member in record.members.values()
    }
    of_instance[None] = frozenset()
    return {
        name: of_instance.get(each.settings.instance, frozenset())
        for name, each in sorted(live.items())
        if name not in record.members and each.generation == NO_GENERATION
    }


def _without_instance(members: dict[str, Member], instance: str | None) -> dict[str, Member]:
    if instance is None:
        return members
    return {
        name: member for name, member in members.items() if member.settings.instance != instance
    }


def _is_told(name: str, record: GroupRecord, live: Mapping[str, Presence]) -> bool:
    """Whether a member knows the present generation, so that it holds what it says."""
    return name in record.members and live[name].generation == record.generation


def _held(
    name: str, member: Member, record: GroupRecord, live: Mapping[str, Presence]
) -> dict[TopicPartition, int]:
    """Return what a member may be working on, and since when it has that."""
    is_told, owned = _is_told(name, record, live), live[name].owned
    held = dict(member.assigned)
    held |= {each: since for each, since in member.revoked.items() if not is_told or each in owned}
    return held


def _lasting(
    held: Mapping[TopicPartition, int],
    topics: Mapping[str, int],
    recreated: Collection[TopicPartition],
) -> dict[TopicPartition, int]:
    """Return what of it still exists, and is what it was."""
    return {
        each: since
        for each, since in held.items()
        if each.partition < topics.get(each.topic, 0) and each not in recreated
    }


def _assigned(
    strategy: str | None,
    members: Mapping[str, Member],
    held: Mapping[str, Mapping[TopicPartition, int]],
    topics: Mapping[str, int],
) -> dict[str, list[TopicPartition]]:
    """Aim where the strategy says, without what somebody else holds."""
    if strategy is None:
        return {}
    wishes = {
        name: Subscription(
            member.settings.topics, tuple(sorted(held[name])), 0, member.settings.instance
        )
        for name, member in members.items()
    }
    holder = {each: name for name, own in held.items() for each in own}
    target = assign(_TARGET_OF.get(strategy, strategy), topics, wishes)
    return {
        name: [each for each in own if holder.get(each, name) == name]
        for name, own in target.items()
    }


def _following(
    member: Member,
    held: Mapping[TopicPartition, int],
    assigned: list[TopicPartition],
    generation: int,
) -> Member:
    revoked = held.keys() - assigned
    return Member(
        member.settings,
        {each: held.get(each, generation) for each in assigned},
        {each: since for each, since in held.items() if each in revoked},
    )
