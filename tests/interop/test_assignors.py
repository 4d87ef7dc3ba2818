"""Kafka's assignors are asked about random groups, and ours beside them.

``KAFKALOG_ASSIGNOR_GROUPS`` says how many groups; ``make assignors`` takes 2000.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.kafka_assignors import KafkaAssignors, kafka_assignors

from kafkalog.streaming.groups.assignors import Subscription, assign

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.groups.assignors import Assignment

pytestmark = pytest.mark.interop

GROUPS: Final = int(os.environ.get("KAFKALOG_ASSIGNOR_GROUPS", "20"))
ROUNDS: Final = 3
SETTLING: Final = 4
"""How many rounds Kafka's tests give a cooperative group to settle."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaAssignors]:
    with kafka_assignors() as assignors:
        yield assignors


class Group:
    """A group whose members and topics change from round to round."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._alike = self._random.random() < 0.3
        self.topics = {f"t{n}": self._below(9) for n in range(self._below(6))}
        self._most = dict(self.topics)  # a topic never comes back with fewer partitions
        self.members = {f"m{n}": self._newcomer() for n in range(self._below(8))}

    def go_on(self, assignment: Assignment, generation: int) -> None:
        """Let the members own what they were assigned; some leave, join or subscribe anew."""
        for name, member in list(self.members.items()):
            stays = self._random.random() < 0.8
            topics = member.topics if stays else self._topics()
            own = tuple(assignment[name])
            self.members[name] = Subscription(topics, own, generation, member.instance)
            if self._random.random() < 0.15 and len(self.members) > 1:
                del self.members[name]
        while self._random.random() < 0.4:
            self.members[f"n{self._below(99)}"] = self._newcomer()
        if self._random.random() < 0.3:
            topic = f"t{self._below(8)}"
            self.topics[topic] = self._most[topic] = self._most.get(topic, 0) + self._below(4)
        if self._random.random() < 0.1 and len(self.topics) > 1:
            del self.topics[self._random.choice(sorted(self.topics))]

    def _newcomer(self) -> Subscription:
        static = self._random.random() < 0.2
        instance = f"i{self._below(99)}-{self._random.random()}" if static else None
        return Subscription(self._topics(), instance=instance)

    def _topics(self) -> frozenset[str]:
        count = len(self.topics) if self._alike else self._below(len(self.topics))
        return frozenset(self._random.sample(sorted(self.topics), count))

    def _below(self, most: int) -> int:
        return self._random.randint(1, most)


def moved(group: Group, assignment: Assignment) -> int:
    """Count the partitions that somebody owned and no longer has."""
    owned = {(name, each) for name, member in group.members.items() for each in member.owned}
    return len(owned - {(name, each) for name, own in assignment.items() for each in own})


def imbalance(assignment: Assignment) -> int:
    """Sum how far the numbers of partitions of any two members differ (Kafka's score)."""
    sizes = [len(own) for own in assignment.values()]
    return sum(abs(one - other) for index, one in enumerate(sizes) for other in sizes[:index])


def assert_valid(group: Group, assignment: Assignment) -> None:
    """Each partition that somebody wants is assigned, once, to somebody who wants it."""
    wanted = frozenset[str]().union(*(member.topics for member in group.members.values()))
    expected = [
        (topic, number)
        for topic in sorted(wanted & group.topics.keys())
        for number in range(group.topics[topic])
    ]
    assert sorted(each for own in assignment.values() for each in own) == expected
    for name, own in assignment.items():
        assert {topic for topic, _ in own} <= group.members[name].topics


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_every_member_gets_what_it_gets_from_kafka(kafka: KafkaAssignors, strategy: str) -> None:
    for seed in range(GROUPS):
        group = Group(seed)
        for round_number in range(ROUNDS):
            ours = assign(strategy, group.topics, group.members)
            theirs = kafka.assign(strategy, group.topics, group.members)
            assert ours == {name: sorted(own) for name, own in theirs.items()}, f"seed {seed}"
            group.go_on(ours, round_number)


def test_a_sticky_assignment_is_no_less_balanced_than_kafkas_and_moves_no_more(
    kafka: KafkaAssignors,
) -> None:
    for seed in range(GROUPS):
        group = Group(seed)
        for round_number in range(ROUNDS):
            ours = assign("sticky", group.topics, group.members)
            theirs = kafka.assign("sticky", group.topics, group.members)
            assert_valid(group, ours)
            assert imbalance(ours) <= imbalance(theirs), f"seed {seed}"
            assert moved(group, ours) <= moved(group, theirs), f"seed {seed}"
            group.go_on(ours if seed % 2 else theirs, round_number)


def test_a_cooperative_assignment_takes_no_more_away_than_kafkas_and_is_whole_once_it_settles(
    kafka: KafkaAssignors,
) -> None:
    for seed in range(GROUPS):
        group = Group(seed)
        for round_number in range(ROUNDS):
            ours = assign("cooperative-sticky", group.topics, group.members)
            theirs = kafka.assign("cooperative-sticky", group.topics, group.members)
            assert moved(group, ours) <= moved(group, theirs), f"seed {seed}"
            for name, own in ours.items():
                held = {
                    each
                    for other in group.members
                    if other != name
                    for each in group.members[other].owned
                }
                assert held.isdisjoint(own), f"seed {seed}: {name} got what was not given up"
            settled = ours
            for _ in range(SETTLING):
                given_up = {
                    name: Subscription(member.topics, tuple(settled[name]), round_number)
                    for name, member in group.members.items()
                }
                settled = assign("cooperative-sticky", group.topics, given_up)
            assert_valid(group, settled)
            group.go_on(settled, round_number)
