"""The assignors, by what Kafka's tests of its own ask of them."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, Final

import pytest

import kafkalog
from kafkalog.errors import OptionError

STRATEGIES: Final = ("range", "roundrobin", "sticky", "cooperative-sticky")
STICKY: Final = ("sticky", "cooperative-sticky")

Assigned = dict[str, list[tuple[str, int]]]


def member(*topics: str, owned: Any = (), generation: int = -1, **more: str) -> dict[str, Any]:
    return {"topics": list(topics), "owned": list(owned), "generation": generation, **more}


def of(topic: str, *numbers: int) -> list[tuple[str, int]]:
    return [(topic, number) for number in numbers]


def settle(strategy: str, topics: dict[str, int], members: dict[str, Any]) -> Assigned:
    """Assign until nobody has to give anything up; what everybody gets in the end."""
    for generation in range(100, 105):
        got = kafkalog.assign_partitions(strategy, topics, members)
        if strategy != "cooperative-sticky" or all(
            sorted(got[name]) == sorted(members[name]["owned"]) for name in members
        ):
            break
        members = {
            name: {**given, "owned": got[name], "generation": generation}
            for name, given in members.items()
        }
    return got


def assert_whole(topics: dict[str, int], members: dict[str, Any], got: Assigned) -> None:
    """Each partition that somebody wants is assigned once, and no move would be more balanced."""
    wanted = {topic for given in members.values() for topic in given["topics"]} & topics.keys()
    expected = [(topic, number) for topic in sorted(wanted) for number in range(topics[topic])]
    assert sorted(each for own in got.values() for each in own) == expected
    for own in got.values():
        for name, given in members.items():
            if len(own) > len(got[name]) + 1:
                assert not {topic for topic, _ in own} & set(given["topics"])


def sizes(got: Assigned) -> list[int]:
    return sorted((len(own) for own in got.values()), reverse=True)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ten_partitions_are_four_three_and_three_for_three_members(strategy: str) -> None:
    members = {name: member("t") for name in "ABC"}
    got = kafkalog.assign_partitions(strategy, topics={"t": 10}, members=members)
    assert [len(got[name]) for name in "ABC"] == [4, 3, 3]


def test_range_gives_runs_of_each_topic() -> None:
    got = kafkalog.assign_partitions("range", {"t": 10}, {name: member("t") for name in "ABC"})
    assert got == {"A": of("t", 0, 1, 2, 3), "B": of("t", 4, 5, 6), "C": of("t", 7, 8, 9)}
    both = {name: member("s", "t") for name in "AB"}
    assert kafkalog.assign_partitions("range", {"s": 3, "t": 3}, both) == {
        "A": of("s", 0, 1) + of("t", 0, 1),
        "B": of("s", 2) + of("t", 2),
    }


def test_round_robin_deals_one_partition_after_the_other() -> None:
    both = {name: member("s", "t") for name in "AB"}
    assert kafkalog.assign_partitions("roundrobin", {"s": 3, "t": 3}, both) == {
        "A": of("s", 0, 2) + of("t", 1),
        "B": of("s", 1) + of("t", 0, 2),
    }
    mixed = {"A": member("s"), "B": member("s", "t"), "C": member("s")}
    assert kafkalog.assign_partitions("roundrobin", {"s": 3, "t": 2}, mixed) == {
        "A": of("s", 0),
        "B": of("s", 1) + of("t", 0, 1),
        "C": of("s", 2),
    }


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_without_topics_and_topics_that_do_not_exist_get_nothing(strategy: str) -> None:
    topics = {"t": 2, "empty": 0, "unwanted": 3}
    members = {"A": member(), "B": member("t", "missing", "empty")}
    got = kafkalog.assign_partitions(strategy, topics, members)
    assert got == {"A": [], "B": of("t", 0, 1)}
    assert kafkalog.assign_partitions(strategy, topics, {}) == {}
    assert kafkalog.assign_partitions(strategy, {}, members) == {"A": [], "B": []}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_members_get_partitions_of_their_own_topics_only(strategy: str) -> None:
    topics = {"r": 3, "s": 2, "t": 4}
    members = {"A": member("r"), "B": member("r", "s"), "C": member("t")}
    got = kafkalog.assign_partitions(strategy, topics, members)
    assert sorted(each for own in got.values() for each in own) == [
        *of("r", 0, 1, 2),
        *of("s", 0, 1),
        *of("t", 0, 1, 2, 3),
    ]
    for name, own in got.items():
        assert {topic for topic, _ in own} <= set(members[name]["topics"])


@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_static_members_come_first_and_keep_their_place_under_other_ids(strategy: str) -> None:
    before = {"a": member("t", instance="i2"), "b": member("t"), "z": member("t", instance="i1")}
    after = {"q": member("t", instance="i2"), "b": member("t"), "c": member("t", instance="i1")}
    one = kafkalog.assign_partitions(strategy, {"t": 4}, before)
    other = kafkalog.assign_partitions(strategy, {"t": 4}, after)
    assert len(one["z"]) == 2
    assert (one["z"], one["a"], one["b"]) == (other["c"], other["q"], other["b"])


def test_names_are_ordered_as_java_orders_them() -> None:
    # U+10000 is two code units, the first below U+FF5E
    members = {"\uff5e": member("t"), "\U00010000": member("t")}
    got = kafkalog.assign_partitions("range", {"t": 3}, members)
    assert sizes(got) == [2, 1]
    assert len(got["\U00010000"]) == 2


@pytest.mark.parametrize("strategy", STICKY)
def test_who_has_too_few_keeps_all_and_gets_more(strategy: str) -> None:
    topics = {"s": 2, "t": 3}
    members = {
        "A": member("s", "t", owned=[("s", 0)], generation=1),
        "B": member("s", "t", owned=[("s", 1)], generation=1),
        "C": member("s", "t"),
    }
    assert kafkalog.assign_partitions(strategy, topics, members) == {
        "A": [("s", 0), ("t", 1)],
        "B": [("s", 1), ("t", 2)],
        "C": [("t", 0)],
    }


@pytest.mark.parametrize("strategy", STICKY)
def test_who_may_have_one_more_gets_it(strategy: str) -> None:
    topics = {"s": 2, "t": 3}
    members = {
        "A": member("s", "t", owned=[("s", 0), ("t", 1)], generation=1),
        "B": member("s", "t", owned=[("s", 1), ("t", 2)], generation=1),
    }
    assert kafkalog.assign_partitions(strategy, topics, members) == {
        "A": [("s", 0), ("t", 0), ("t", 1)],
        "B": [("s", 1), ("t", 2)],
    }


def test_a_cooperative_partition_that_moves_is_nobodys_until_its_owner_gave_it_up() -> None:
    topics = {"t": 3}
    first = {"A": member("t", owned=of("t", 0, 1, 2), generation=1), "B": member("t")}
    assert kafkalog.assign_partitions("sticky", topics, first) == {
        "A": of("t", 0, 1),
        "B": of("t", 2),
    }
    assert kafkalog.assign_partitions("cooperative-sticky", topics, first) == {
        "A": of("t", 0, 1),
        "B": [],
    }
    then = {
        "A": member("t", owned=of("t", 0, 1), generation=2),
        "B": member("t", generation=2),
    }
    assert kafkalog.assign_partitions("cooperative-sticky", topics, then) == {
        "A": of("t", 0, 1),
        "B": of("t", 2),
    }


@pytest.mark.parametrize("strategy", STICKY)
def test_members_that_leave_and_join_move_no_more_than_they_must(strategy: str) -> None:
    topics = {"s": 12, "t": 12}
    got = settle(strategy, topics, {"A": member("s", "t")})
    for names in ("AB", "ABCD", "CD", "CDE", "E"):
        members = {
            name: member("s", "t", owned=got.get(name, ()), generation=1 if name in got else -1)
            for name in names
        }
        new = settle(strategy, topics, members)
        assert_whole(topics, members, new)
        most = 24 // len(names)
        for name in names:
            kept = set(new[name]) & set(got.get(name, ()))
            assert len(kept) == min(most, len(got.get(name, ()))), (names, name)
        got = new


@pytest.mark.parametrize("strategy", STICKY)
def test_of_two_that_claim_a_partition_the_later_generation_owns_it(strategy: str) -> None:
    topics = {"s": 3, "t": 3}
    claimed = [("s", 0), ("s", 2), ("t", 1)]
    for stale in (9, -1):
        members = {
            "A": member("s", "t", owned=claimed, generation=10),
            "B": member("s", "t", owned=claimed, generation=stale),
        }
        assert kafkalog.assign_partitions(strategy, topics, members) == {
            "A": claimed,
            "B": [("s", 1), ("t", 0), ("t", 2)],
        }


@pytest.mark.parametrize("alike", [True, False])
def test_nobody_keeps_a_partition_that_two_claim_in_one_generation(alike: bool) -> None:
    topics = {"t": 3, "u": 0 if alike else 1}
    members = {
        "A": member("t", owned=of("t", 0, 1), generation=5),
        "B": member("t", owned=of("t", 0, 2), generation=5),
        "C": member("t", "u"),
    }
    sticky = kafkalog.assign_partitions("sticky", topics, members)
    assert ("t", 1) in sticky["A"]
    assert ("t", 2) in sticky["B"]
    cooperative = kafkalog.assign_partitions("cooperative-sticky", topics, members)
    assert ("t", 0) not in [each for own in cooperative.values() for each in own]
    assert_whole(topics, members, settle("cooperative-sticky", topics, members))


@pytest.mark.parametrize("strategy", STICKY)
def test_partitions_that_no_longer_exist_or_are_not_wanted_are_given_up(strategy: str) -> None:
    members = {
        "A": member("t", owned=[("gone", 0), *of("t", 0, 9)], generation=1),
        "B": member("s", owned=[("t", 1), ("s", 0)], generation=1),
    }
    assert settle(strategy, {"s": 1, "t": 2}, members) == {"A": of("t", 0, 1), "B": [("s", 0)]}


@pytest.mark.parametrize("strategy", STICKY)
def test_with_different_topics_existing_partitions_stay_when_a_topic_is_added(
    strategy: str,
) -> None:
    topics = {f"t{n}": 1 for n in range(1, 7)}
    members = {
        "A": member("t1", "t2", owned=[("t1", 0)], generation=1),
        "B": member("t1", "t2", "t3", "t4", owned=[("t2", 0), ("t3", 0)], generation=1),
        "C": member(
            *("t2", "t3", "t4", "t5", "t6"), owned=[("t4", 0), ("t5", 0), ("t6", 0)], generation=1
        ),
    }
    got = settle(strategy, topics, members)
    assert_whole(topics, members, got)
    assert got == {
        "A": [("t1", 0)],
        "B": [("t2", 0), ("t3", 0)],
        "C": of("t4", 0) + of("t5", 0) + of("t6", 0),
    }


@pytest.mark.parametrize("strategy", STICKY)
@pytest.mark.parametrize("seed", range(20))
def test_groups_with_random_topics_that_change_stay_whole(strategy: str, seed: int) -> None:
    chance = random.Random(seed)
    topics = {f"t{n:02}": n + 1 for n in range(chance.randint(2, 9))}

    def wish() -> list[str]:
        return chance.sample(sorted(topics), chance.randint(1, len(topics)))

    members = {f"c{n:02}": member(*wish()) for n in range(chance.randint(2, 14))}
    got = settle(strategy, topics, members)
    assert_whole(topics, members, got)
    again = {
        name: member(*given["topics"], owned=got[name], generation=1)
        for name, given in members.items()
    }
    assert settle(strategy, topics, again) == got, "nobody came or went"
    changed = {name: member(*wish(), owned=got[name], generation=1) for name in members}
    assert_whole(topics, changed, settle(strategy, topics, changed))


def test_a_large_group_is_assigned_as_a_whole() -> None:
    chance = random.Random(1)
    topics = {f"t{n:02}": 50 for n in range(40)}
    members = {f"c{n:03}": member(*chance.sample(sorted(topics), 10)) for n in range(150)}
    got = kafkalog.assign_partitions("sticky", topics, members)
    assert_whole(topics, members, got)
    for name in list(members)[::3]:
        del members[name]
    for name, given in members.items():
        given.update(owned=got[name], generation=1)
    after = kafkalog.assign_partitions("sticky", topics, members)
    assert_whole(topics, members, after)
    counts = Counter(name for name in members for each in got[name] if each in after[name])
    assert sum(counts.values()) > 0.9 * sum(len(got[name]) for name in members)


@pytest.mark.parametrize(
    ("strategy", "topics", "members", "said"),
    [
        ("Range", {}, {}, "no assignment strategy 'Range', expected one of range, roundrobin"),
        ("range", {"t": -1}, {}, "topics has -1 for 't'"),
        ("range", {}, {"A": {"topic": ["t"]}}, "member 'A' has 'topic', expected some of"),
        ("range", {}, {"A": {"topics": "t"}}, "member 'A' has 't', expected a list"),
        ("range", {}, {"A": {"topics": [1]}}, "member 'A' has the topic 1"),
        ("range", {}, {"A": {"owned": [("t", "0")]}}, "expected a pair"),
        ("range", {}, {"A": {"generation": "7"}}, "generation '7', expected a number"),
        ("range", {}, {"A": {"instance": 1}}, "instance 1, expected text"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_name(
    strategy: str, topics: Any, members: Any, said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        kafkalog.assign_partitions(strategy, topics, members)
