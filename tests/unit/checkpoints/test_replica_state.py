"""The bytes of replicas and nodes: there and back, and what nobody has written is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalog.checkpoints.commit_state import (
    NO_LEADER,
    CommitState,
    NodeState,
    PartitionState,
    ReplicaState,
    Rewritten,
    TopicState,
    majority_of,
    node_line,
    parse_nodes,
    parse_replicas,
    replica_fields,
)
from kafkalog.checkpoints.state_file import STATE_FILE, load_state, state_bytes

if TYPE_CHECKING:
    from pathlib import Path

REWRITTEN = st.just(Rewritten()) | st.builds(
    lambda sequence, start, size: Rewritten(sequence, start, start + size),
    st.integers(1, 99),
    st.integers(0, 99),
    st.integers(0, 99),
)

REPLICAS = st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True).flatmap(
    lambda replicas: st.lists(st.sampled_from(replicas), min_size=1, unique=True).flatmap(
        lambda isr: st.builds(
            ReplicaState,
            st.sampled_from([NO_LEADER, *isr]),
            st.just(tuple(replicas)),
            st.just(tuple(isr)),
            REWRITTEN,
            st.sampled_from([(), tuple(replicas[:1])]),
            st.sampled_from([(), tuple(replicas[1:]), (17,)]),
            st.sampled_from([0, 1 << 20]),
        ).map(lambda each: each if each.adding or each.removing else each._replace(rate=0))
    )
)


@given(st.dictionaries(st.integers(0, 99), REPLICAS))
def test_replicas_come_back_as_they_were(replicas: dict[int, ReplicaState]) -> None:
    text = json.dumps(replica_fields(replicas))
    assert parse_replicas(json.loads(text)) == replicas


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3)), min_size=1, max_size=5))
def test_nodes_come_back_as_they_were(given_nodes: list[tuple[bool, int]]) -> None:
    nodes = tuple(
        NodeState(number, tuple(f"{number}-{slot}" for slot in range(count)), is_witness)
        for number, (is_witness, count) in enumerate(given_nodes)
    )
    assert parse_nodes(json.loads(json.dumps([node_line(node) for node in nodes]))) == nodes


@pytest.mark.parametrize(
    "bad",
    [
        {"0": [1, [1, 2]]},
        {"0": [1, [1, 1], [1]]},
        {"0": [1, [1, 2], []]},
        {"0": [1, [1, 2], [3]]},
        {"0": [2, [1, 2], [1]]},
        {"0": [True, [1, 2], [1]]},
        {"0": [1, [1, -2], [1]]},
        {"0": [1, [1], [1], [0, 0, 0]]},
        {"0": [1, [1], [1], [3, 5, 4]]},
        {"0": [1, [1], [1], [3, 5]]},
        {"0": [1, [1], [1], []]},
        {"0": [1, [1], [1], [3, 5, 6, 7]]},
        {"0": [1, [1, 2], [1], [0, 0, 0], [[3], [], 0]]},
        {"0": [1, [1, 2], [1], [0, 0, 0], [[2], [2], 0]]},
        {"0": [1, [1, 2], [1], [0, 0, 0], [[], [2, 1], 0]]},
        {"0": [1, [1, 2], [1], [0, 0, 0], [[2], [], -1]]},
        {"0": [1, [1, 2], [1], [0, 0, 0], [[], [], 0]]},
        {"0": [1, [1, 2], [1], [0, 0, 0], [[2], []]]},
        {"0": "1"},
        {"-1": [1, [1], [1]]},
        {"x": [1, [1], [1]]},
    ],
    ids=str,
)
def test_replicas_that_nobody_wrote_are_refused(bad: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        parse_replicas(bad)


@pytest.mark.parametrize(
    "bad",
    [
        {},
        [{"id": 0, "members": []}],
        [{"id": 0, "members": ["a"]}, {"id": 0, "members": ["b"]}],
        [{"id": 0, "members": ["a"]}, {"id": 1, "members": ["a"]}],
        [{"id": 0, "members": ["a"], "rack": "r"}],
        [{"members": ["a"]}],
        [{"id": -1, "members": ["a"]}],
    ],
    ids=str,
)
def test_nodes_that_nobody_wrote_are_refused(bad: Any) -> None:
    with pytest.raises((ValueError, TypeError, LookupError)):
        parse_nodes(bad)


@pytest.mark.parametrize(("voters", "majority"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_a_majority_is_more_than_half(voters: int, majority: int) -> None:
    assert majority_of(voters) == majority


def test_of_the_last_ones_in_sync_none_leaves() -> None:
    each = ReplicaState(1, (1, 2, 0), (1, 2))
    assert each.without([1]).isr == (2,)
    assert each.without([1, 2]).isr == (1, 2)


def test_a_partition_moves_until_it_has_the_replicas_that_it_is_to_have() -> None:
    moving = ReplicaState(0, (3, 1, 0), (1, 0), adding=(3,), removing=(0,))
    assert (moving.target, moving.is_moving, moving.left) == ((3, 1), True, ())
    moved = ReplicaState(1, (3, 1), (3, 1), removing=(0,))
    assert (moved.target, moved.is_moving, moved.left) == ((3, 1), False, (0,))


def test_a_state_of_a_higher_controller_ranks_first_at_one_sequence_number() -> None:
    states = [CommitState(s, "", "", (), controller_epoch=e) for s, e in ((6, 9), (7, 1), (7, 2))]
    assert max(states, key=lambda state: state.rank) == states[2]


def test_a_state_without_nodes_is_not_replicated() -> None:
    topic = TopicState("t", partitions={0: PartitionState(0, 0, 0, 0)})
    assert not CommitState(1, "", "", (), topics={"k": topic}).is_replicated


@pytest.mark.parametrize("cluster", ["", "a2Fma2Fsb2ctdGVzdHMtMQ"])
def test_a_state_keeps_to_whom_a_set_was_lent(cluster: str, tmp_path: Path) -> None:
    nodes = (NodeState(0, ("m0",)),)
    state = CommitState(3, "set", "m0", ("m0",), nodes=nodes, controller_epoch=1, handed_to=cluster)
    (tmp_path / STATE_FILE).write_bytes(state_bytes(state))
    found = load_state(tmp_path)
    assert found is not None
    assert found.handed_to == cluster
    assert (b"lentTo" in state_bytes(state)) == bool(cluster)
    assert found.following().handed_to == cluster
