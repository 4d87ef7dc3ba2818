"""Where new partitions lie, held against the drawing in Kafka's ``AdminUtils``."""

from __future__ import annotations

from collections import Counter

import pytest

from kafkalog.checkpoints.commit_state import CommitState, NodeState, ReplicaState
from kafkalog.errors import OptionError
from kafkalog.streaming.store.replicas.election import data_nodes, place, place_new


def state(*nodes: NodeState) -> CommitState:
    return CommitState(1, "set", "", (), nodes=nodes)


NODES = tuple(NodeState(number, (f"m{number}",)) for number in range(4))


def test_ten_partitions_on_five_brokers_lie_as_in_the_drawing_of_kafka() -> None:
    rows = (
        ("p0 p1 p2 p3 p4", "p5 p6 p7 p8 p9"),
        ("p4 p0 p1 p2 p3", "p8 p9 p5 p6 p7"),
        ("p3 p4 p0 p1 p2", "p7 p8 p9 p5 p6"),
    )
    drawn: dict[int, list[int]] = {number: [] for number in range(10)}
    for replica in rows:
        for row in replica:
            for broker, partition in enumerate(row.split()):
                drawn[int(partition[1:])].append(broker)
    assert place(range(5), 10, 3) == [tuple(drawn[number]) for number in range(10)]


def test_a_start_and_a_shift_move_leaders_and_followers() -> None:
    assert place([7, 8, 9], 2, 2, start=1, shift=1) == [(8, 7), (9, 8)]


def test_leaders_are_spread_evenly_and_no_node_holds_a_partition_twice() -> None:
    placed = place(range(4), 12, 3)
    assert Counter(each[0] for each in placed) == dict.fromkeys(range(4), 3)
    assert all(len({*each}) == 3 for each in placed)


def test_one_node_holds_single_replicas() -> None:
    assert place([5], 3, 1) == [(5,), (5,), (5,)]


@pytest.mark.parametrize("factor", [0, 4])
def test_more_replicas_than_nodes_are_refused(factor: int) -> None:
    with pytest.raises(OptionError, match="from 1 to 3"):
        place(range(3), 1, factor)


def test_a_witness_holds_nothing() -> None:
    nodes = state(NODES[0], NodeState(1, ("w",), is_witness=True), NODES[2])
    assert data_nodes(nodes) == [0, 2]
    assert place_new(nodes, range(2), None, [0, 2])[0].replicas == (0, 2)


def test_by_default_three_nodes_hold_a_partition() -> None:
    assert len(place_new(state(*NODES), range(1), None, [0, 1, 2, 3])[0].replicas) == 3


def test_who_is_away_is_a_replica_and_neither_leads_nor_is_in_sync() -> None:
    made = place_new(state(*NODES[:3]), range(3), 3, [1, 2])
    assert made[0] == ReplicaState(1, (0, 1, 2), (1, 2))
    assert made[1] == ReplicaState(1, (1, 2, 0), (1, 2))


def test_where_all_chosen_nodes_are_away_others_are_chosen() -> None:
    made = place_new(state(*NODES[:3]), range(1), 1, [1, 2])
    assert made[0] == ReplicaState(1, (1,), (1,))
