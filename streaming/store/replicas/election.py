"""Where replicas are placed, who is in sync, and who leads: rules over commit states."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.commit_state import NO_LEADER, ReplicaState
from kafkalog.errors import OptionError
from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Mapping, Sequence

    from kafkalog.checkpoints.commit_state import CommitState, PartitionState, TopicState


__all__ = [
    "MOST_BY_DEFAULT",
    "Changed",
    "changed_topics",
    "check_one_node",
    "data_nodes",
    "elected",
    "joined",
    "led",
    "moved",
    "place",
    "place_new",
    "preferred",
    "shrunk",
    "with_raised_epochs",
]


# ----------------------------------------------------------------------------------------------
# On which nodes the replicas of new partitions lie: leaders spread, followers shifted.
#
# Example: 4 partitions, 3 replicas, nodes 0 to 2, starting at node 0::
#
#     partition   0        1        2        3
#     replicas    0 1 2    1 2 0    2 0 1    0 2 1
#
# The first replica is the preferred leader. Each time that leaders have gone round, the others
# are shifted by one, so that the partitions of one leader do not all follow on the same node.
#
# Source: Kafka ``AdminUtils.assignReplicasToBrokersRackUnaware``, which draws start and shift;
# here they follow from what is there already, so that two looks at one state give one answer.


MOST_BY_DEFAULT: Final = 3
"""So many replicas has a new topic for which nobody says another number, if there are nodes."""


def data_nodes(state: CommitState) -> list[int]:
    """Return the nodes that hold partitions, which witnesses do not."""
    return [node.node_id for node in state.nodes if not node.is_witness]


def check_one_node(factor: int | None) -> None:
    """Refuse to promise more replicas than one where a path names one node.

    Raises:
        OptionError: ``factor`` is larger.
    """
    if factor is not None and factor > 1:
        raise OptionError(
            f"option 'replication.factor' is {factor}, and the path names one node: expected 1. A "
            "path names several nodes with semicolons between them"
        )


def place(
    nodes: Sequence[int], partitions: int, factor: int, *, start: int = 0, shift: int = 0
) -> list[tuple[int, ...]]:
    """Return the replicas of each partition, in the order of preference.

    Raises:
        OptionError: there are fewer nodes than replicas.
    """
    count = len(nodes)
    if not 1 <= factor <= count:
        raise OptionError(
            f"option 'replication.factor' is {factor}, and {count} nodes hold partitions: expected "
            f"a number from 1 to {count}"
        )
    placed = []
    for number in range(partitions):
        first, moved = (number + start) % count, shift + (number + start) // count
        others = ((first + 1 + (moved + j) % (count - 1)) % count for j in range(factor - 1))
        placed.append((nodes[first], *(nodes[slot] for slot in others)))
    return placed


def place_new(
    state: CommitState, partitions: range, factor: int | None, live: Sequence[int]
) -> dict[int, ReplicaState]:
    """Place new partitions of a topic; ``live`` nodes are in sync from the start, others are not.

    A new topic begins with the node after the last leader that was placed, so that topics of one
    partition do not all lie on the first node.

    Raises:
        OptionError: there are fewer nodes than replicas.
    """
    nodes = data_nodes(state)
    if factor is None:
        factor = min(len(nodes), MOST_BY_DEFAULT)
    start = sum(len(topic.replicas) for topic in state.topics.values()) % len(nodes)
    placed = place(nodes, len(partitions), factor, start=start)
    found = {}
    for number, chosen in zip(partitions, placed, strict=True):
        # If all of them are away, the others are as good, and can be written to.
        replicas = chosen if {*chosen} & {*live} else tuple(live[:factor])
        in_sync = tuple(node for node in replicas if node in live)
        found[number] = ReplicaState(in_sync[0], replicas, in_sync)
    return found


# ----------------------------------------------------------------------------------------------
# Who is in sync, and who leads: from one commit state to the next.
#
# Example: the replicas of a partition are on nodes 1, 2 and 0, node 1 leads, and its disk fails.
# The in-sync set shrinks to 2 and 0. Node 2 leads now, under the next leader epoch.
#
# The leader is the first of the replicas that is in sync and lives. Each election raises the
# leader epoch. A node of which nothing is known to be in sync is never elected: that would be an
# unclean election, which only a person may ask for. The last one in sync stays in the set though
# it is away, since nobody else has all records; the partition has no leader then.
#
# Source: Kafka ``PartitionChangeBuilder``, ``ReplicationControlManager``.


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
    within an epoch, and rolling a commit back does just that.
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
