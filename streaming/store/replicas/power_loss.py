"""After a loss of power: a replica that lost records is copied from one that has them.

Example: ``flush=os`` had left offsets 40 to 60 of a partition to the system. After the loss of
power its leader ends at 50, and another replica in sync has all. That one leads from then on, and
the other is not in sync until it is copied.

Each node is looked at from where the log was durable, as a broker looks at its own from its
recovery point. Records are lost only where no replica in sync has them.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from kafkalog.model import TopicPartition
from kafkalog.streaming.log.log_dir import partitions_by_node
from kafkalog.streaming.store.replicas.election import shrunk
from kafkalog.streaming.store.unsynced import find_lost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.checkpoints.replica_state import ReplicaState
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.replicas.several_nodes import SeveralNodes
    from kafkalog.streaming.store.unsynced import LostOffsets

__all__ = ["lost_on_all"]

_LOGGER: Final = logging.getLogger("kafkalog.sink")

_Lost = dict[TopicPartition, dict[int, "LostOffsets"]]


def lost_on_all(log_set: LogSet, nodes: SeveralNodes) -> list[LostOffsets]:
    """Return what no replica in sync has of what was left to the system.

    Replicas that have lost something leave the in-sync sets of ``log_set.state``. Where all have,
    the one that has most stays, and what that lacks is returned.

    REQUIRES: the locks are held.

    Raises:
        NotEnoughReplicasError: fewer than a majority of the nodes can be looked at.
    """
    lost: _Lost = defaultdict(dict)
    there: dict[int, set[TopicPartition]] = {}
    for node, found in partitions_by_node(nodes.nodes()).items():
        with nodes.writing(node):
            for each in find_lost(log_set.state, found):
                lost[each.where.topic_partition][node] = each
            there[node] = {*found}
    behind, gone = set(), []
    for key, replicas in _left_to_system(log_set.state):
        able = [n for n in replicas.isr if n in nodes.live and key in there.get(n, ())]
        best = max(able, key=lambda n: _whole_end(lost[key].get(n)), default=None)
        if best is None:
            continue
        behind |= {(n, key) for n in able if n != best and n in lost[key]}
        if best in lost[key]:
            gone.append(lost[key][best])
    for node, key in sorted(behind):
        text = "a loss of power took records of %s on node %d, which gets those that others have"
        _LOGGER.warning(text, key, node)
    log_set.state = shrunk(log_set.state, nodes.live, behind)
    return gone


def _left_to_system(state: CommitState) -> Iterator[tuple[TopicPartition, ReplicaState]]:
    for topic in state.topics.values():
        for number in topic.durable_ends:
            if number in topic.replicas:
                yield TopicPartition(topic.name, number), topic.replicas[number]


def _whole_end(lost: LostOffsets | None) -> float:
    return float("inf") if lost is None else lost.start
