"""A group's next generation, from what is known of its members."""

from __future__ import annotations

import dataclasses
import random
from typing import Final

import pytest

from kafkalog.model import TopicPartition
from kafkalog.streaming.coordinator.group_metadata import (
    decode_group_metadata,
    encode_group_metadata,
)
from kafkalog.streaming.groups.assignors import STRATEGIES, Subscription, assign
from kafkalog.streaming.groups.rebalance import (
    GroupRecord,
    Member,
    MemberSettings,
    Presence,
    next_record,
)

TOPICS: Final = {"t": 3}


def wants(*topics: str, instance: str | None = None, strategy: str = "range") -> Presence:
    return Presence(MemberSettings(frozenset(topics), instance), strategy)


def t(*numbers: int) -> set[TopicPartition]:
    return {TopicPartition("t", number) for number in numbers}


class Group:
    """A group whose members take note of a generation when they are told to."""

    def __init__(self, topics: dict[str, int] | None = None) -> None:
        self.topics = dict(topics or TOPICS)
        self.record = GroupRecord()
        self.present: dict[str, Presence] = {}
        self.recreated: set[TopicPartition] = set()

    def decide(self) -> bool:
        """Go on to the next generation, if there is one, and check what always holds."""
        found = next_record(self.record, self.present, self.topics, recreated=self.recreated)
        if found is None:
            return False
        assert found.generation == self.record.generation + 1
        holders = [each for member in found.members.values() for each in member.held]
        assert len(holders) == len(set(holders)), "two members hold a partition"
        for name, member in found.members.items():
            before = self.record.members.get(name)
            for each, since in member.held.items():
                kept = before is not None and before.held.get(each) == since
                assert kept or since == found.generation
        self.record = found
        return True

    def tell(self, name: str) -> None:
        """Let a member take note of the present generation, and give up what it revokes."""
        if name in self.record.members:
            self.present[name] = dataclasses.replace(
                self.present[name],
                generation=self.record.generation,
                owned=frozenset(self.record.members[name].assigned),
            )

    def settle(self) -> None:
        for _ in range(20):
            for name in self.present:
                self.tell(name)
            if not self.decide():
                return
        raise AssertionError("the group does not settle")

    def assigned(self) -> dict[str, set[TopicPartition]]:
        return {name: set(member.assigned) for name, member in self.record.members.items()}


def test_a_partition_that_moves_is_given_up_before_somebody_else_gets_it() -> None:
    group = Group()
    group.present["A"] = wants("t")
    group.settle()
    assert group.assigned() == {"A": t(0, 1, 2)}
    assert group.record.generation == 1

    group.present["B"] = wants("t")
    assert group.decide()
    assert group.assigned() == {"A": t(0, 1), "B": set()}
    assert set(group.record.members["A"].revoked) == t(2)
    group.tell("B")
    assert not group.decide(), "A has not given it up"

    group.tell("A")
    assert group.decide()
    assert group.assigned() == {"A": t(0, 1), "B": t(2)}
    assert not group.record.members["A"].revoked
    since = {**group.record.members["A"].assigned, **group.record.members["B"].assigned}
    assert [since[each] for each in sorted(since)] == [1, 1, 3]


def test_who_says_that_it_still_works_on_a_partition_keeps_others_from_it() -> None:
    group = Group()
    group.present["A"] = wants("t")
    group.settle()
    group.present["B"] = wants("t")
    group.decide()
    group.tell("A")
    group.present["A"] = dataclasses.replace(group.present["A"], owned=frozenset(t(0, 1, 2)))
    assert not group.decide()
    assert set(group.record.members["A"].revoked) == t(2)


def test_a_member_that_is_gone_is_not_waited_for() -> None:
    group = Group()
    group.present |= {"A": wants("t"), "B": wants("t")}
    group.settle()
    assert group.assigned() == {"A": t(0, 1), "B": t(2)}
    del group.present["A"]
    assert group.decide()
    assert group.assigned() == {"B": t(0, 1, 2)}
    group.present["B"] = dataclasses.replace(group.present["B"], leaving=True)
    assert group.decide()
    assert group.record == GroupRecord(3, None, None, {})
    assert not group.decide()


def test_partitions_that_were_recreated_are_given_anew_and_others_are_kept() -> None:
    group = Group()
    group.present |= {"A": wants("t"), "B": wants("t")}
    group.settle()
    group.recreated = t(0, 2)
    assert group.decide()
    assert group.record.members["A"].assigned == dict(zip(sorted(t(0, 1)), [2, 1], strict=True))
    assert group.record.members["B"].assigned == dict.fromkeys(t(2), 2)
    group.recreated = set()
    assert not group.decide()


def test_a_member_that_was_fenced_does_not_come_back_under_its_id() -> None:
    group = Group()
    group.present |= {"A": wants("t"), "B": wants("t")}
    group.settle()
    late = group.present.pop("A")
    group.settle()
    group.present["A"] = late
    assert not group.decide()
    assert group.assigned() == {"B": t(0, 1, 2)}


def test_a_static_member_that_starts_again_takes_over_at_once_and_moves_nothing() -> None:
    group = Group()
    group.present |= {"A1": wants("t", instance="a"), "B": wants("t")}
    group.settle()
    before = group.assigned()
    group.present["A2"] = wants("t", instance="a")  # while the first may still be at work
    assert group.decide()
    assert group.assigned() == {"A2": before["A1"], "B": before["B"]}
    generation = group.record.generation
    assert set(group.record.members["A2"].assigned.values()) == {generation}
    group.tell("A2")
    assert not group.decide(), "the first one is fenced"


def test_who_wants_another_strategy_than_the_group_is_not_let_in() -> None:
    group = Group()
    group.present["A"] = wants("t", strategy="sticky")
    group.settle()
    group.present["B"] = wants("t", strategy="range")
    assert not group.decide()
    del group.present["A"]
    assert group.decide()
    assert (group.record.strategy, group.assigned()) == ("range", {"B": t(0, 1, 2)})


def test_topics_that_come_grow_and_go_change_the_assignment() -> None:
    group = Group({"t": 2})
    group.present |= {"A": wants("t", "u"), "B": wants("t")}
    group.settle()
    group.topics["u"] = 1
    group.settle()
    assert TopicPartition("u", 0) in group.assigned()["A"]
    group.topics["t"] = 4
    group.settle()
    assert sorted(each for own in group.assigned().values() for each in own if each[0] == "t") == (
        sorted(t(0, 1, 2, 3))
    )
    del group.topics["t"]
    assert group.decide()
    assert not any(each.topic == "t" for m in group.record.members.values() for each in m.held)


def test_a_member_of_a_broker_that_nobody_knows_is_gone() -> None:
    theirs = Member(MemberSettings(frozenset({"t"})), dict.fromkeys(t(0, 1, 2), 9))
    found = next_record(GroupRecord(9, "range", "m", {"m": theirs}), {"A": wants("t")}, TOPICS)
    assert found is not None
    assert (found.generation, set(found.members)) == (10, {"A"})
    assert set(found.members["A"].assigned) == t(0, 1, 2)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_no_two_hold_a_partition_and_the_group_settles(
    strategy: str, seed: int
) -> None:
    chance = random.Random(seed)
    group = Group({f"t{n}": chance.randint(1, 5) for n in range(3)})

    def wish() -> Presence:
        topics = chance.sample(sorted(group.topics), chance.randint(1, len(group.topics)))
        instance = chance.choice([None, None, "i0", "i1"])
        return wants(*topics, instance=instance, strategy=strategy)

    for step in range(40):
        match chance.randrange(6):
            case 0:
                group.present[f"m{step}"] = wish()
            case 1 if group.present:
                del group.present[chance.choice(sorted(group.present))]
            case 2 if group.present:
                name = chance.choice(sorted(group.present))
                settings = group.present[name].settings
                topics = wish().settings.topics
                group.present[name] = dataclasses.replace(
                    group.present[name], settings=dataclasses.replace(settings, topics=topics)
                )
            case 3:
                group.topics[f"t{chance.randrange(3)}"] += 1
            case _ if group.present:
                group.tell(chance.choice(sorted(group.present)))
        if chance.random() < 0.7:
            group.decide()
    group.settle()
    members = group.record.members
    wanted = {each for member in members.values() for each in member.settings.topics}
    expected = {TopicPartition(name, n) for name in wanted for n in range(group.topics[name])}
    assert {each for member in members.values() for each in member.assigned} == expected
    if strategy in {"range", "roundrobin"}:
        target = assign(
            strategy,
            group.topics,
            {
                name: Subscription(member.settings.topics, instance=member.settings.instance)
                for name, member in members.items()
            },
        )
        assert group.assigned() == {name: set(own) for name, own in target.items()}
    encoded = encode_group_metadata(group.record.metadata(1_700_000_000_000))
    assert GroupRecord.of(decode_group_metadata(encoded)) == group.record
