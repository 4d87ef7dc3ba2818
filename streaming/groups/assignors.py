"""Which member of a group reads which partitions: Kafka's four assignors.

Example: ten partitions of one topic and three members, A, B and C. ``range`` gives A 0 to 3, B 4 to
6 and C 7 to 9. ``roundrobin`` gives A 0, 3, 6, 9, B 1, 4, 7 and C 2, 5, 8. When D joins, both deal
anew. ``sticky`` takes away as few partitions as it can: A gives up one or two, and so on.
``cooperative-sticky`` decides the same, and leaves a partition that has to move out of the
assignment until its owner has given it up. The next round assigns it.

Racks are not known here.

Source: ``RangeAssignor``, ``RoundRobinAssignor``, ``StickyAssignor``, ``CooperativeStickyAssignor``
of Kafka 4.1.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

from kafkalog.errors import OptionError
from kafkalog.model import TopicPartition
from kafkalog.streaming.groups.sticky import assign_sticky
from kafkalog.streaming.groups.subscriptions import (
    Claims,
    java_order,
    parse_members,
    parse_topics,
    static_members_first,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kafkalog.streaming.groups.subscriptions import Assignment, Subscription

__all__ = ["STRATEGIES", "assign", "assign_partitions"]


def assign_partitions(
    strategy: str,
    topics: Mapping[str, int],
    members: Mapping[str, Mapping[str, Any]],
) -> dict[str, list[tuple[str, int]]]:
    """Assign partitions to the members of a group, as Kafka's consumers do.

    Args:
        strategy: ``range``, ``roundrobin``, ``sticky`` or ``cooperative-sticky``.
        topics: the number of partitions of each topic that exists.
        members: by member id: ``topics``, what it subscribes to; ``owned``, the pairs (topic,
            partition) that it had, and ``generation``, since when (both only matter to the sticky
            strategies); ``instance``, its ``group.instance.id``, if it has one.

    Returns:
        the pairs (topic, partition) of every member, sorted. With ``cooperative-sticky`` a
        partition that moves is nobody's until its owner no longer claims it.

    Raises:
        OptionError: a strategy, a topic or a member that cannot be used.
    """
    assignment = assign(strategy, parse_topics(topics), parse_members(members))
    return {
        member: [(topic, number) for topic, number in own] for member, own in assignment.items()
    }


def assign(
    strategy: str, topics: Mapping[str, int], members: Mapping[str, Subscription]
) -> Assignment:
    """Do as :func:`assign_partitions`, for subscriptions that are checked.

    Raises:
        OptionError: there is no such strategy.
    """
    if strategy not in STRATEGIES:
        raise OptionError(
            f"no assignment strategy {strategy!r}, expected one of {', '.join(STRATEGIES)}"
        )
    assignment = STRATEGIES[strategy](topics, members)
    return {
        member: sorted(assignment[member], key=lambda each: (java_order(each.topic), each[1]))
        for member in members
    }


def _range(topics: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
    """Deal each topic by itself, in runs: the first members get one partition more."""
    assignment: Assignment = {member: [] for member in members}
    ordered = static_members_first(members)
    for topic, partitions in topics.items():
        subscribed = [member for member in ordered if topic in members[member].topics]
        if not subscribed:
            continue
        each, longer = divmod(partitions, len(subscribed))
        begin = 0
        for index, member in enumerate(subscribed):
            end = begin + each + (index < longer)
            assignment[member] += [TopicPartition(topic, number) for number in range(begin, end)]
            begin = end
    return assignment


def _round_robin(topics: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
    """Deal the partitions of all topics, sorted, to one member after the other."""
    assignment: Assignment = {member: [] for member in members}
    turns = itertools.cycle(static_members_first(members))
    wanted = frozenset[str]().union(*(member.topics for member in members.values()))
    for topic in sorted(wanted & topics.keys(), key=java_order):
        for number in range(topics[topic]):
            member = next(turns)
            while topic not in members[member].topics:
                member = next(turns)
            assignment[member].append(TopicPartition(topic, number))
    return assignment


def _sticky(topics: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
    return assign_sticky(topics, members, Claims.of(topics, members))


def _cooperative_sticky(
    topics: Mapping[str, int], members: Mapping[str, Subscription]
) -> Assignment:
    """Assign as ``sticky``, without the partitions that somebody has to give up first."""
    claims = Claims.of(topics, members)
    return {
        member: [each for each in own if not claims.is_held_by_other(each, member)]
        for member, own in assign_sticky(topics, members, claims).items()
    }


STRATEGIES: Final[
    Mapping[str, Callable[[Mapping[str, int], Mapping[str, Subscription]], Assignment]]
] = {
    "range": _range,
    "roundrobin": _round_robin,
    "sticky": _sticky,
    "cooperative-sticky": _cooperative_sticky,
}
"""The assignors by the names that ``partition.assignment.strategy`` has for them."""
