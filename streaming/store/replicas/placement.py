"""On which nodes the replicas of new partitions lie: leaders spread, followers shifted.

Example: 4 partitions, 3 replicas, nodes 0 to 2, starting at node 0::

    partition   0        1        2        3
    replicas    0 1 2    1 2 0    2 0 1    0 2 1

The first replica is the preferred leader. Each time that leaders have gone round, the others are
shifted by one, so that the partitions of one leader do not all follow on the same node.

Source: Kafka ``AdminUtils.assignReplicasToBrokersRackUnaware``, which draws start and shift; here
they follow from what is there already, so that two looks at one state give one answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.replica_state import ReplicaState
from kafkalog.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.checkpoints.commit_state import CommitState

__all__ = ["MOST_BY_DEFAULT", "check_one_node", "data_nodes", "place", "place_new"]

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
