"""Who is in sync, and who leads: from one commit state to the next.

Example: the replicas of a partition are on nodes 1, 2 and 0, node 1 leads, and its disk fails. The
in-sync set shrinks to 2 and 0. Node 2 leads now, under the next leader epoch.

The leader is the first of the replicas that is in sync and lives. Each election raises the leader
epoch. A node of which nothing is known to be in sync is never elected: that would be an unclean
election, which only a person may ask for. The last one in sync stays in the set though it is away,
since nobody else has all records; the partition has no leader then.

Source: Kafka ``PartitionChangeBuilder``, ``ReplicationControlManager``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from kafkalog.checkpoints.replica_state import NO_LEADER, ReplicaState
from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Mapping

    from kafkalog.checkpoints.commit_state import CommitState, PartitionState, TopicState

__all__ = [
    "Changed",
    "changed_topics",
    "elected",
    "joined",
    "led",
    "moved",
    "preferred",
    "shrunk",
    "with_raised_epochs",
]

Changed = tuple["ReplicaState", "PartitionState"]
"""What becomes of a partition: its replicas, and where it stands."""


def elected(replicas: ReplicaState, live: Container[int]) -> int:
    """Return who leads: the leader while it is in sync and lives, else the first such replica."""
    if replicas.leader in replicas.isr and replicas.leader in live:
        return replicas.leader
    able = (node for node in replicas.replicas if node in replicas.isr and node in live)
    return next(able, NO_LEADER)


def led(each: ReplicaState, where: PartitionState, live: Container[int]) -> Changed:
    """Return a partition with its leader of now, under the next epoch where that is another one."""
    leader = elected(each, live)
    if leader == each.leader:
        return each, where
    epoch = where.leader_epoch if leader == NO_LEADER else where.leader_epoch + 1
    return each._replace(leader=leader), where._replace(leader_epoch=epoch)


def changed_topics(
    state: CommitState,
    change: Callable[[str, int, ReplicaState, PartitionState], Changed],
) -> CommitState:
    """Return the state in which ``change`` was applied to each partition that has replicas.

    ``change`` gets the topic's name and the partition's number, too. The very same state comes back
    where nothing changes.
    """
    topics: dict[str, TopicState] = {}
    for key, topic in state.topics.items():
        found = {
            number: change(topic.name, number, replicas, topic.partitions[number])
            for number, replicas in topic.replicas.items()
        }
        before = {n: (each, topic.partitions[n]) for n, each in topic.replicas.items()}
        if found != before:
            topics[key] = replace(
                topic,
                replicas={number: each for number, (each, _) in found.items()},
                partitions={
                    **topic.partitions,
                    **{number: where for number, (_, where) in found.items()},
                },
            )
    return replace(state, topics={**state.topics, **topics}) if topics else state


def shrunk(
    state: CommitState,
    live: Collection[int],
    lagging: Collection[tuple[int, TopicPartition]] = (),
) -> CommitState:
    """Take nodes that do not live out of in-sync sets, and elect leaders where that takes one.

    ``lagging`` are single replicas that are not in sync any more, by node and partition. They go
    first: if all others in sync are away, it is one of those that stays, and nobody leads.
    """
    behind = _nodes_by_partition(lagging)

    def change(topic: str, number: int, each: ReplicaState, where: PartitionState) -> Changed:
        able = {*live} - behind[topic, number]
        kept = each.without(behind[topic, number])
        kept = kept.without(node for node in kept.isr if node not in able)
        return led(kept, where, able)

    return changed_topics(state, change)


def joined(state: CommitState, caught_up: Collection[tuple[int, TopicPartition]]) -> CommitState:
    """Take replicas that have caught up, by node and partition, into in-sync sets."""
    found = _nodes_by_partition(caught_up)

    def change(topic: str, number: int, each: ReplicaState, where: PartitionState) -> Changed:
        new = found[topic, number]
        isr = tuple(node for node in each.replicas if node in each.isr or node in new)
        return (each if isr == each.isr else each._replace(isr=isr)), where

    return changed_topics(state, change)


def moved(state: CommitState, live: Collection[int]) -> CommitState:
    """Let partitions have the replicas alone that they are to have, once all of these are in sync.

    What they had before is noted as left over: its folder has to go. While segments are replaced,
    nobody goes.
    """

    def change(_: str, __: int, each: ReplicaState, where: PartitionState) -> Changed:
        is_busy = each.rewritten.is_under_way
        if not each.is_moving or is_busy or not {*each.target} <= {*each.isr}:
            return each, where
        isr = tuple(node for node in each.target if node in each.isr)
        after = each._replace(replicas=each.target, isr=isr, adding=(), rate=0)
        return led(after, where, live)

    return changed_topics(state, change)


def preferred(state: CommitState, live: Container[int]) -> CommitState:
    """Let each partition be led by the first of its replicas that is in sync and lives.

    Source: Kafka ``auto.leader.rebalance.enable``, ``ElectionType.PREFERRED``.
    """

    def change(_: str, __: int, each: ReplicaState, where: PartitionState) -> Changed:
        able = [node for node in each.replicas if node in each.isr and node in live]
        if not able or able[0] == each.leader:
            return each, where
        epoch = where.leader_epoch + 1
        return each._replace(leader=able[0]), where._replace(leader_epoch=epoch)

    return changed_topics(state, change)


def with_raised_epochs(state: CommitState, written: Mapping[TopicPartition, int]) -> CommitState:
    """Raise the leader epoch of partitions, though their leaders stay: their logs were cut.

    ``written`` has the epoch of what was cut, which the next one is above, by partition.

    KIP-101 compares logs by leader epochs. That holds only where a leader never cuts its own log
    within an epoch, and taking a commit back does just that.
    """

    def change(topic: str, number: int, each: ReplicaState, where: PartitionState) -> Changed:
        before = written.get(TopicPartition(topic, number))
        if before is None:
            return each, where
        return each, where._replace(leader_epoch=max(where.leader_epoch, before) + 1)

    return changed_topics(state, change)


def _nodes_by_partition(
    replicas: Collection[tuple[int, TopicPartition]],
) -> Mapping[tuple[str, int], set[int]]:
    """Return the nodes by topic and partition number; the empty set of any other."""
    nodes: dict[tuple[str, int], set[int]] = defaultdict(set)
    for node, key in replicas:
        nodes[key].add(node)
    return nodes
