"""Who is in sync and who leads, from one state to the next."""

from __future__ import annotations

from kafkalog.checkpoints.commit_state import (
    NO_LEADER,
    CommitState,
    PartitionState,
    ReplicaState,
    TopicState,
)
from kafkalog.model import TopicPartition
from kafkalog.streaming.store.replicas.election import (
    elected,
    joined,
    shrunk,
    with_raised_epochs,
)

KEY = TopicPartition("t", 0)


def state(replicas: ReplicaState, epoch: int = 4) -> CommitState:
    topic = TopicState("t", partitions={0: PartitionState(0, 9, 9, epoch)}, replicas={0: replicas})
    return CommitState(1, "set", "", (), topics={"id": topic})


def outcome(found: CommitState) -> tuple[ReplicaState, int]:
    topic = found.topics["id"]
    return topic.replicas[0], topic.partitions[0].leader_epoch


def test_a_leader_that_lives_stays_though_another_is_preferred() -> None:
    assert elected(ReplicaState(2, (1, 2, 0), (1, 2, 0)), {0, 1, 2}) == 2


def test_the_first_replica_in_sync_that_lives_is_elected() -> None:
    assert elected(ReplicaState(1, (1, 0, 2), (1, 2)), {0, 2}) == 2


def test_who_is_not_in_sync_is_not_elected() -> None:
    assert elected(ReplicaState(1, (1, 0), (1,)), {0}) == NO_LEADER


def test_a_lost_leader_is_replaced_under_the_next_epoch() -> None:
    after = shrunk(state(ReplicaState(1, (1, 2, 0), (1, 2, 0))), [0, 2])
    assert outcome(after) == (ReplicaState(2, (1, 2, 0), (2, 0)), 5)


def test_a_lost_follower_leaves_and_the_epoch_stays() -> None:
    after = shrunk(state(ReplicaState(1, (1, 2, 0), (1, 2, 0))), [1, 2])
    assert outcome(after) == (ReplicaState(1, (1, 2, 0), (1, 2)), 4)


def test_the_last_one_in_sync_stays_and_nobody_leads() -> None:
    after = shrunk(state(ReplicaState(1, (1, 2, 0), (1,))), [0, 2])
    assert outcome(after) == (ReplicaState(NO_LEADER, (1, 2, 0), (1,)), 4)
    back = shrunk(after, [0, 1, 2])
    assert outcome(back) == (ReplicaState(1, (1, 2, 0), (1,)), 5)


def test_a_single_replica_that_lags_leaves_though_its_node_lives() -> None:
    after = shrunk(state(ReplicaState(1, (1, 2, 0), (1, 2, 0))), [0, 1, 2], [(1, KEY)])
    assert outcome(after) == (ReplicaState(2, (1, 2, 0), (2, 0)), 5)


def test_where_nothing_changes_the_very_same_state_comes_back() -> None:
    before = state(ReplicaState(1, (1, 2, 0), (1, 2, 0)))
    assert shrunk(before, [0, 1, 2]) is before
    assert joined(before, [(1, KEY)]) is before


def test_who_has_caught_up_joins_in_the_order_of_the_replicas() -> None:
    after = joined(state(ReplicaState(2, (1, 2, 0), (2,))), [(0, KEY), (1, KEY), (7, KEY)])
    assert outcome(after) == (ReplicaState(2, (1, 2, 0), (1, 2, 0)), 4)


def test_a_roll_back_raises_the_epoch_of_the_partitions_that_it_cuts() -> None:
    before = state(ReplicaState(1, (1, 2), (1, 2)))
    assert outcome(with_raised_epochs(before, {KEY: 4}))[1] == 5
    assert outcome(with_raised_epochs(before, {KEY: 6}))[1] == 7  # of an election that was lost
    assert with_raised_epochs(before, {TopicPartition("t", 1): 4}) is before


def test_who_lags_is_not_elected_where_the_others_in_sync_are_away() -> None:
    after = shrunk(state(ReplicaState(1, (1, 0), (1, 0))), [0, 2], [(0, KEY)])
    assert outcome(after) == (ReplicaState(NO_LEADER, (1, 0), (1,)), 4)
    assert outcome(shrunk(after, [0, 2])) == (ReplicaState(NO_LEADER, (1, 0), (1,)), 4)
