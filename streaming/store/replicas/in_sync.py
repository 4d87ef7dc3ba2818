"""Who is away leaves the in-sync sets; who is back is brought up to date, and joins them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.replica_state import NO_LEADER
from kafkalog.errors import KafkaLogError
from kafkalog.model import TopicPartition, partition_directory_name
from kafkalog.streaming.log.log_dir import LogDirs, choose_directory, partitions_by_node
from kafkalog.streaming.store.log_starts import raise_log_start
from kafkalog.streaming.store.replicas.catching_up import catch_up
from kafkalog.streaming.store.replicas.copying import LeaderUnreadableError, Room
from kafkalog.streaming.store.replicas.election import joined, moved, shrunk
from kafkalog.streaming.store.replicas.rewriting import end_rewriting

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.replicas.several_nodes import SeveralNodes

__all__ = ["ALL_BYTES", "COPIED_BYTES", "Lagging", "bring_in_sync", "lagging_replicas"]

_LOGGER: Final = logging.getLogger("kafkalog.sink")

COPIED_BYTES: Final = 64 << 20
"""So much a commit copies to replicas that lag. ``kafkalog recover`` copies all there is."""

ALL_BYTES: Final = 1 << 62
"""More than any disk has."""


class Lagging(NamedTuple):
    """A replica that is not in sync though there is a leader, on a node that is there."""

    node: int
    key: TopicPartition
    topic_key: str
    leader: int
    log_start: int
    log_end: int


def bring_in_sync(
    log_set: LogSet, nodes: SeveralNodes, room: Room, *, moves_slowly: bool = False
) -> None:
    """Let the state say who is in sync now, for whoever publishes the next one.

    Replicas that lag are brought up to date, with as many bytes as there is ``room``. New ones that
    are to be copied slowly are left to who ``moves_slowly``. A partition that moves has moved when
    all replicas that it is to have are in sync.

    REQUIRES: the locks are held, and nothing is unfinished.

    Raises:
        OSError, KafkaLogError: a replica is in sync as readers know it, and that it is not any more
            was not published.
    """
    state = shrunk(log_set.state, nodes.live)
    state = end_rewriting(state, nodes, log_set.verify_locks)
    lagging = list(lagging_replicas(state, nodes.live, moves_slowly=moves_slowly))
    if lagging:
        state = _seen_to_lag(log_set, state, lagging)
        folders = partitions_by_node(nodes.nodes())
        brought = [each for each in lagging if _brought(each, nodes, folders, room)]
        if brought:  # an older copy may lie in the place of a leader, or of a replica, by now
            log_set.verify_locks()
        caught_up = [
            (each.node, each.key)
            for each in brought
            if nodes.failed.keys().isdisjoint({each.node, each.leader})
        ]
        state = joined(shrunk(state, nodes.live), caught_up)
    log_set.state = moved(state, nodes.live)


def _seen_to_lag(log_set: LogSet, state: CommitState, lagging: Iterable[Lagging]) -> CommitState:
    """Publish a state by which replicas lag before they are changed; returns what follows it.

    Readers are sent to those that are in sync, as far as they know.
    """
    if any(each.node in _known_in_sync(log_set, each) for each in lagging):
        log_set.publish(state.following())
        return log_set.state
    return state


def _known_in_sync(log_set: LogSet, lagging: Lagging) -> tuple[int, ...]:
    topic = log_set.published.topics.get(lagging.topic_key)
    known = None if topic is None else topic.replicas.get(lagging.key.partition)
    return () if known is None else known.isr


def lagging_replicas(
    state: CommitState, live: Container[int], *, moves_slowly: bool = False
) -> Iterator[Lagging]:
    """List the replicas on the nodes in ``live`` that are to be brought in sync.

    Those that a throttled move adds are its own to copy: they count if this ``moves_slowly``.
    """
    for key, topic in state.topics.items():
        for number, each in topic.replicas.items():
            slow = each.adding if each.rate and not moves_slowly else ()
            for node in (n for n in each.replicas if n not in slow):
                if node in live and node not in each.isr and each.leader != NO_LEADER:
                    name = TopicPartition(topic.name, number)
                    where = topic.partitions[number]
                    yield Lagging(node, name, key, each.leader, where.log_start, where.log_end)


def _brought(
    lagging: Lagging,
    nodes: SeveralNodes,
    folders: dict[int, dict[TopicPartition, PartitionDirectory]],
    room: Room,
) -> bool:
    """Bring one replica up to date; a node on which that fails is out."""
    source = folders.get(lagging.leader, {}).get(lagging.key)
    if source is None or lagging.node in nodes.failed or lagging.leader in nodes.failed:
        return False
    try:
        with nodes.at(lagging.node):
            target = folders.get(lagging.node, {}).get(lagging.key)
            path = _new_place(lagging, nodes) if target is None else target.path
            if catch_up(source.path, path, lagging.key, lagging.log_end, room):
                raise_log_start(path.parent, lagging.key, lagging.log_start)
                return True
    except LeaderUnreadableError as error:
        nodes.fail(lagging.leader, error)
    except OSError as error:
        nodes.fail(lagging.node, error)
    except KafkaLogError as error:
        # Others of the node may be as they should: this one stays behind.
        text = "the replica of %s on node %d cannot be brought in sync: %s"
        _LOGGER.warning(text, lagging.key, lagging.node, error)
    return False


def _new_place(lagging: Lagging, nodes: SeveralNodes) -> Path:
    counts = LogDirs(nodes.by_node[lagging.node].values()).partition_counts()
    return choose_directory(counts) / partition_directory_name(*lagging.key)
