"""Which folder of a partition counts, where each of several nodes has one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.checkpoints.replica_state import NO_LEADER
from kafkalog.errors import CheckpointError, LogDirectoryError
from kafkalog.files.stalling import at
from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.checkpoints.replica_state import ReplicaState

__all__ = ["folders_by_node", "leader_folders"]


class _HasPath(Protocol):
    """A folder that was found for a partition."""

    @property
    def path(self) -> Path:
        """Where it is."""


_Folder = TypeVar("_Folder", bound=_HasPath)


def folders_by_node(
    live: Mapping[int, Mapping[str, Path]],
    listed: Callable[[Collection[Path]], dict[TopicPartition, _Folder]],
) -> dict[int, dict[TopicPartition, _Folder]]:
    """List the partitions of each node; one whose directories cannot be listed is left out.

    ``listed`` lists those of some directories.
    """
    found = {}
    for node, members in live.items():
        try:
            with at(next(iter(members.values()))):
                found[node] = listed(members.values())
        except (LogDirectoryError, OSError):
            continue
    return found


def leader_folders(
    state: CommitState,
    by_node: Mapping[int, Mapping[TopicPartition, _Folder]],
    rank: Callable[[int], int] = lambda _: 0,
) -> dict[TopicPartition, _Folder]:
    """Return one folder of each partition: its leader's, or that of another replica in sync.

    ``rank`` of a node tells which are better: the lowest, whoever leads. A partition that no
    replica in sync has here is left out, and so is one that the state does not know: a commit is
    about to make it, or it is left of a topic that was deleted while its node was away.
    """
    chosen: dict[TopicPartition, _Folder] = {}
    for topic_key, topic in state.topics.items():
        for number, replicas in topic.replicas.items():
            key = TopicPartition(topic.name, number)
            able = [node for node in _in_sync(replicas) if node in by_node]
            for node in sorted(able, key=rank):
                found = by_node[node].get(key)
                if found is not None and _is_of(state, topic_key, key, found):
                    chosen[key] = found
                    break
    return dict(sorted(chosen.items()))


def _in_sync(replicas: ReplicaState) -> list[int]:
    """Return the nodes that have all of a partition: its leader first, then by preference."""
    leader = [] if replicas.leader == NO_LEADER else [replicas.leader]
    return leader + [n for n in replicas.replicas if n in replicas.isr and n not in leader]


def _is_of(state: CommitState, topic_key: str, key: TopicPartition, found: _HasPath) -> bool:
    """Whether a folder is of the topic that the state has under ``topic_key``, by its id."""
    try:
        with at(found.path):
            return state.key_of(key.topic, read_topic_id(found.path)) == topic_key
    except (CheckpointError, OSError):
        return False
