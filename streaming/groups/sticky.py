"""The assignment that is as balanced as it can be, and moves few partitions.

Where all members subscribe to the same topics, each gets the same number of partitions, or one more
than others (`_assign_alike`). Example: ten partitions and three members are 4, 3, 3, whoever owned
what before; a member keeps up to that many of its own.

Where subscriptions differ (`_Balance`), members keep what they have, and partitions that nobody has
go to the subscriber with the fewest. Then partitions move from one subscriber of a topic to another
that has at least two fewer. In the end some go home: a partition that was moved is exchanged for
one that does not mind, where that changes no member's number.

Source: ``AbstractStickyAssignor`` (what is balanced, which partitions are tried first). The last
step is ours.
"""

from __future__ import annotations

import bisect
from collections import deque
from typing import TYPE_CHECKING

from kafkalog.model import TopicPartition
from kafkalog.streaming.groups.subscriptions import java_order

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kafkalog.streaming.groups.subscriptions import Assignment, Claims, Subscription

__all__ = ["assign_sticky"]


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
