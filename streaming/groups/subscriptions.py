"""What the members of a group subscribe to and own, as an assignor sees it.

Names are ordered as Java orders strings: by UTF-16 code units.

Source: ``ConsumerPartitionAssignor.Subscription``, ``AbstractPartitionAssignor.MemberInfo``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from kafkalog.errors import OptionError
from kafkalog.model import TopicPartition

__all__ = [
    "NO_GENERATION",
    "Assignment",
    "Claims",
    "Subscription",
    "java_order",
    "parse_members",
    "parse_topics",
    "static_members_first",
]

NO_GENERATION: Final = -1
"""Of a member that has not been in any generation of the group."""

Assignment: TypeAlias = dict[str, list[TopicPartition]]
"""The partitions of each member; every member is there."""

_KNOWN: Final = frozenset({"topics", "owned", "generation", "instance"})


@dataclass(frozen=True, slots=True)
class Subscription:
    """One member: what it wants, and what it had.

    Attributes:
        topics: the topics it subscribes to; some may not exist.
        owned: the partitions that it claims to own, as of ``generation``.
        generation: the last generation that it was in.
        instance: its ``group.instance.id``, if it is a static member.
    """

    topics: frozenset[str]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    instance: str | None = None


def java_order(text: str) -> bytes:
    """Return what a string is sorted by, as in Java (``String.compareTo``)."""
    return text.encode("utf-16-be", "surrogatepass")


def static_members_first(members: Mapping[str, Subscription]) -> list[str]:
    """Order members as ``range`` and ``roundrobin`` do.

    Static members come first, by their instance ids, so that a restart, which gives them another
    member id, does not move their partitions. The others follow by their member ids.
    """

    def key(member: str) -> tuple[bool, bytes]:
        instance = members[member].instance
        return (instance is None, java_order(member if instance is None else instance))

    return sorted(members, key=key)


def parse_topics(topics: Mapping[str, int]) -> dict[str, int]:
    """Check the numbers of partitions by topic; a topic without partitions is left out.

    Raises:
        OptionError: a number is none, or below 0.
    """
    _check_dict("topics", topics, '{"t": 3}')
    for name, partitions in topics.items():
        if not isinstance(name, str):
            raise OptionError(f"topics has the name {name!r}, expected text")
        if type(partitions) is not int or partitions < 0:
            raise OptionError(
                f"topics has {partitions!r} for {name!r}, expected its number of partitions"
            )
    return {name: partitions for name, partitions in topics.items() if partitions}


def parse_members(members: Mapping[str, Mapping[str, Any]]) -> dict[str, Subscription]:
    """Make subscriptions of what a caller gave for each member id.

    Raises:
        OptionError: what was given for a member cannot be used; the message names it.
    """
    _check_dict("members", members, '{"a": {"topics": ["t"]}}')
    return {member: _subscription(member, given) for member, given in members.items()}


def _check_dict(argument: str, given: object, example: str) -> None:
    if not isinstance(given, Mapping):
        raise OptionError(f"{argument} is {given!r}, expected a dict such as {example}")


def _subscription(member: str, given: Mapping[str, Any]) -> Subscription:
    if not isinstance(member, str) or not isinstance(given, Mapping):
        raise OptionError(f"members has {member!r}: {given!r}, expected a member id and a mapping")
    unknown = sorted(map(str, given.keys() - _KNOWN))
    if unknown:
        raise OptionError(
            f"member {member!r} has {unknown[0]!r}, expected some of {', '.join(sorted(_KNOWN))}"
        )
    generation = given.get("generation", NO_GENERATION)
    if type(generation) is not int:
        raise OptionError(f"member {member!r} has the generation {generation!r}, expected a number")
    instance = given.get("instance")
    if not (instance is None or isinstance(instance, str)):
        raise OptionError(f"member {member!r} has the instance {instance!r}, expected text or None")
    return Subscription(
        topics=_topics(member, given.get("topics", ())),
        owned=tuple(_partition(member, each) for each in _listed(given.get("owned", ()), member)),
        generation=generation,
        instance=instance,
    )


def _topics(member: str, given: object) -> frozenset[str]:
    topics = _listed(given, member)
    for topic in topics:
        if not isinstance(topic, str):
            raise OptionError(f"member {member!r} has the topic {topic!r}, expected a name")
    return frozenset(topics)


def _partition(member: str, given: object) -> TopicPartition:
    match given:
        case (str() as topic, int() as partition) if type(partition) is int:
            return TopicPartition(topic, partition)
    raise OptionError(f"member {member!r} owns {given!r}, expected a pair (topic, partition)")


def _listed(given: object, member: str) -> list[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise OptionError(f"member {member!r} has {given!r}, expected a list")
    return list(given)


# ----------------------------------------------------------------------------------------------
# Which member owned a partition before a rebalance, where several may say that they did.
#
# Example: A says that it owned ``t-0`` in generation 7, B that it did in generation 5. A did: B
# was away for a while. If both name generation 7, one of them is wrong, and nothing tells which.
# Then neither keeps the partition.


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims of all members.

    Attributes:
        owner: whose a partition was; of those that exist.
        claimants: everybody who claims a partition.
    """

    owner: dict[TopicPartition, str]
    claimants: dict[TopicPartition, list[str]]

    @classmethod
    def of(cls, topics: Mapping[str, int], members: Mapping[str, Subscription]) -> Claims:
        """Compare what the members say."""
        claimants: dict[TopicPartition, list[str]] = {}
        for member, subscription in members.items():
            for partition in dict.fromkeys(subscription.owned):
                claimants.setdefault(partition, []).append(member)
        owner = {}
        for partition, names in claimants.items():
            if not 0 <= partition.partition < topics.get(partition.topic, 0):
                continue
            newest, *older = sorted(names, key=lambda name: -members[name].generation)
            if not older or members[newest].generation > members[older[0]].generation:
                owner[partition] = newest
        return cls(owner, claimants)

    def is_held_by_other(self, partition: TopicPartition, member: str) -> bool:
        """Whether somebody else has to give the partition up before ``member`` gets it."""
        if self.owner.get(partition) == member:
            return False
        return any(name != member for name in self.claimants.get(partition, ()))
