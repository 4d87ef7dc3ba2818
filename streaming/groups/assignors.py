"""Kafka's four assignors: what members subscribe to, and who gets which partitions."""

from __future__ import annotations

import bisect
import itertools
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kafkalog.errors import OptionError
from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


__all__ = [
    "NO_GENERATION",
    "STRATEGIES",
    "Assignment",
    "Claims",
    "Subscription",
    "assign",
    "assign_partitions",
    "assign_sticky",
    "java_order",
    "parse_members",
    "parse_topics",
    "static_members_first",
]


# ----------------------------------------------------------------------------------------------
# What the members of a group subscribe to and own, as an assignor sees it.
#
# Names are ordered as Java orders strings: by UTF-16 code units.
#
# Source: ``ConsumerPartitionAssignor.Subscription``, ``AbstractPartitionAssignor.MemberInfo``.


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


# ----------------------------------------------------------------------------------------------
# The assignment that is as balanced as it can be, and moves few partitions.
#
# Where all members subscribe to the same topics, each gets the same number of partitions, or one
# more than others (`_assign_alike`). Example: ten partitions and three members are 4, 3, 3,
# whoever owned what before; a member keeps up to that many of its own.
#
# Where subscriptions differ (`_Balance`), members keep what they have, and partitions that nobody
# has go to the subscriber with the fewest. Then partitions move from one subscriber of a topic to
# another that has at least two fewer. In the end some go home: a partition that was moved is
# exchanged for one that does not mind, where that changes no member's number.
#
# Source: ``AbstractStickyAssignor`` (what is balanced, which partitions are tried first). The
# last step is ours.


def assign_sticky(
    topics: Mapping[str, int], members: Mapping[str, Subscription], claims: Claims
) -> Assignment:
    """Assign the partitions that exist and that somebody subscribes to."""
    wanted = {name: member.topics & topics.keys() for name, member in members.items()}
    subscribed = frozenset[str]().union(*wanted.values())
    partitions = [
        TopicPartition(topic, number)
        for topic in sorted(subscribed, key=java_order)
        for number in range(topics[topic])
    ]
    if not partitions:
        return {member: [] for member in members}
    names = sorted(members, key=java_order)
    owner = {
        each: member
        for each in partitions
        if (member := claims.owner.get(each)) is not None and each.topic in wanted[member]
    }
    if all(topics_of == subscribed for topics_of in wanted.values()):
        return _assign_alike(partitions, names, owner)
    balance = _Balance(partitions, names, wanted, owner)
    balance.level()
    balance.send_home()
    return balance.assignment()


def _assign_alike(
    partitions: Sequence[TopicPartition],
    names: Sequence[str],
    owner: Mapping[TopicPartition, str],
) -> Assignment:
    """Give every member as many partitions as any other, or one more."""
    least, longer = divmod(len(partitions), len(names))
    owned: Assignment = {member: [] for member in names}
    for each in sorted(owner, key=lambda each: (each.partition, java_order(each.topic))):
        owned[owner[each]].append(each)
    assignment: Assignment = {}
    for member, own in owned.items():
        room = least
        if len(own) > least and longer:
            longer -= 1
            room += 1
        assignment[member] = own[:room]
    kept = {each for own in assignment.values() for each in own}
    free = deque(each for each in partitions if each not in kept)
    while free:
        # Each in turn up to the least, then one more to some of those that have no more yet.
        short = [member for member in names if len(assignment[member]) < least]
        turn = short or [member for member in names if len(assignment[member]) == least]
        for member in turn[: len(free)]:
            assignment[member].append(free.popleft())
    return assignment


class _Balance:
    """An assignment to members that subscribe to different topics, while it is being balanced."""

    def __init__(
        self,
        partitions: Iterable[TopicPartition],
        names: Sequence[str],
        wanted: Mapping[str, frozenset[str]],
        owner: Mapping[TopicPartition, str],
    ) -> None:
        self._names = names
        rank = {member: index for index, member in enumerate(names)}
        self._subscribers: dict[str, set[int]] = {}
        for member, topics in wanted.items():
            for topic in topics:
                self._subscribers.setdefault(topic, set()).add(rank[member])
        # Those that few could have come first.
        self._partitions = sorted(
            partitions,
            key=lambda each: (
                len(self._subscribers[each.topic]),
                java_order(each.topic),
                each.partition,
            ),
        )
        self._home = {each: rank[member] for each, member in owner.items()}
        self._at = dict(self._home)
        # Per member and topic, in the order in which they came: what it has and did not own.
        self._strange: list[dict[str, dict[TopicPartition, None]]] = [{} for _ in names]
        self._load = [0] * len(names)
        for at_home in self._home.values():
            self._load[at_home] += 1
        self._ranking = sorted((load, member) for member, load in enumerate(self._load))

    def assignment(self) -> Assignment:
        """Return what each member has."""
        found: Assignment = {member: [] for member in self._names}
        for each, member in self._at.items():
            found[self._names[member]].append(each)
        return found

    def level(self) -> None:
        """Assign what nobody has, and move partitions until no move makes it more balanced."""
        new = [each for each in self._partitions if each not in self._at]
        for each in new:
            self._place(each, self._least_loaded(each.topic))
        self._move_until_level(new)
        self._move_until_level(self._partitions)

    def send_home(self) -> None:
        """Give partitions back to their owners where that leaves it as balanced as it is."""
        improved = True
        while improved:
            improved = False
            for each in self._partitions:
                home = self._home.get(each)
                if home is not None and home != self._at[each] and self._exchange(each, home):
                    improved = True

    def _move_until_level(self, partitions: Iterable[TopicPartition]) -> None:
        moved = True
        while moved:
            moved = False
            for each in partitions:
                giver, taker = self._at[each], self._least_loaded(each.topic)
                if self._load[giver] > self._load[taker] + 1:
                    self._place(self._best_to_move(each, giver, taker), taker)
                    moved = True

    def _best_to_move(self, proposed: TopicPartition, giver: int, taker: int) -> TopicPartition:
        """Choose, of the same topic, one that goes home, or that is not at home where it is."""
        strange = self._strange[giver].get(proposed.topic, {})
        if proposed in strange and self._home.get(proposed) == taker:
            return proposed
        going_home = (each for each in strange if self._home.get(each) == taker)
        return next(going_home, proposed if proposed in strange else next(iter(strange), proposed))

    def _exchange(self, partition: TopicPartition, home: int) -> bool:
        """Bring a partition home, and let others that are not at home make room for it."""
        giver = self._at[partition]
        if self._load[giver] > self._load[home]:
            self._place(partition, home)
            return True
        moves = self._way(home, giver)
        if not moves:
            return False
        for each, taker in moves:
            self._place(each, taker)
        self._place(partition, home)
        return True

    def _way(self, begin: int, end: int) -> list[tuple[TopicPartition, int]]:
        """Find moves that take one partition from ``begin`` and leave one more at ``end``."""
        came: dict[int, tuple[TopicPartition, int]] = {}
        seen: set[str] = set()
        ahead = deque([begin])
        while ahead and end not in came:
            giver = ahead.popleft()
            for topic, strange in self._strange[giver].items():
                if not strange or topic in seen:
                    continue
                seen.add(topic)  # all its subscribers are reached now
                for taker in self._subscribers[topic]:
                    if taker != begin and taker not in came:
                        came[taker] = (next(iter(strange)), giver)
                        ahead.append(taker)
        moves = []
        taker = end
        while taker in came:
            each, giver = came[taker]
            moves.append((each, taker))
            taker = giver
        return moves

    def _least_loaded(self, topic: str) -> int:
        subscribers = self._subscribers[topic]
        return next(member for _, member in self._ranking if member in subscribers)

    def _place(self, partition: TopicPartition, member: int) -> None:
        giver = self._at.get(partition)
        if giver is not None:
            self._strange[giver].get(partition.topic, {}).pop(partition, None)
            self._count(giver, -1)
        if self._home.get(partition) != member:
            self._strange[member].setdefault(partition.topic, {})[partition] = None
        self._at[partition] = member
        self._count(member, 1)

    def _count(self, member: int, change: int) -> None:
        index = bisect.bisect_left(self._ranking, (self._load[member], member))
        del self._ranking[index]
        self._load[member] += change
        bisect.insort(self._ranking, (self._load[member], member))


# ----------------------------------------------------------------------------------------------
# Which member of a group reads which partitions: Kafka's four assignors.
#
# Example: ten partitions of one topic and three members, A, B and C. ``range`` gives A 0 to 3, B
# 4 to 6 and C 7 to 9. ``roundrobin`` gives A 0, 3, 6, 9, B 1, 4, 7 and C 2, 5, 8. When D joins,
# both deal anew. ``sticky`` takes away as few partitions as it can: A gives up one or two, and so
# on. ``cooperative-sticky`` decides the same, and leaves a partition that has to move out of the
# assignment until its owner has given it up. The next round assigns it.
#
# Racks are not known here.
#
# Source: ``RangeAssignor``, ``RoundRobinAssignor``, ``StickyAssignor``,
# ``CooperativeStickyAssignor`` of Kafka 4.1.


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
