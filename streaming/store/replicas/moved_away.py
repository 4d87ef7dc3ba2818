"""Remove the folders of replicas that are on other nodes now.

A partition has moved with the commit after which it has no replica on a node any more. The folder
that it had there gets the name of a deleted one, and is removed: by whoever opens the set next, and
as often as that is cut off. The state notes until then that it may be there.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.errors import CheckpointError
from kafkalog.files.shield import check_interrupt
from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.files import deleted_directory_name, parse_deleted_directory
from kafkalog.streaming.log.log_dir import entries_of, partitions_by_node
from kafkalog.streaming.store.deletion import remove_folder
from kafkalog.streaming.store.replicas.election import changed_topics
from kafkalog.streaming.store.stale_lines import drop_lines_of_gone

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState, PartitionState
    from kafkalog.checkpoints.replica_state import ReplicaState
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.replicas.election import Changed
    from kafkalog.streaming.store.replicas.several_nodes import SeveralNodes

__all__ = ["remove_moved"]

_Gone = tuple[int, TopicPartition]


def remove_moved(log_set: LogSet, nodes: SeveralNodes) -> None:
    """Remove what nodes have left of partitions that have moved away; the state forgets it then.

    REQUIRES: the locks are held, a majority has the state in place, and nothing is unfinished.

    Raises:
        NotEnoughReplicasError: fewer than a majority of the nodes are left.
        LogDirectoryError, CommitError: the locks are lost.
    """
    left: dict[int, dict[TopicPartition, str]] = defaultdict(dict)
    for key, topic in log_set.state.topics.items():
        for number, each in topic.replicas.items():
            for node in each.left:
                left[node][TopicPartition(topic.name, number)] = key
    if not left.keys() & {*nodes.live}:
        return
    folders = partitions_by_node(nodes.nodes())
    gone: set[_Gone] = set()
    for node, keys in left.items():
        log_set.verify_locks()
        if node not in nodes.live:
            continue
        with nodes.writing(node):
            _rename(log_set.state, keys, folders[node])
            for log_dir in nodes.by_node[node].values():
                _remove(log_set.state, keys, log_dir)
            gone |= {(node, name) for name in keys}
    log_set.state = _without(log_set.state, gone)


def _rename(
    state: CommitState,
    keys: Mapping[TopicPartition, str],
    folders: Mapping[TopicPartition, PartitionDirectory],
) -> None:
    """Give the folders of partitions on a node the names of deleted ones."""
    for name, key in keys.items():
        check_interrupt()
        found = folders.get(name)
        if found is not None and _is_of(state, key, name.topic, found.path):
            retired = deleted_directory_name(*name, system.random_id().hex)
            # It stays renamed: to prepare a state here that forgets it syncs the directory first.
            found.path.rename(found.log_dir / retired)


def _remove(state: CommitState, keys: Mapping[TopicPartition, str], log_dir: Path) -> None:
    """Remove the folders of partitions from a log directory that are called deleted."""
    drop_lines_of_gone(log_dir)
    for entry in entries_of(log_dir):
        deleted = parse_deleted_directory(entry.name)
        if deleted is None:
            continue
        path = log_dir / entry.name
        named = [n for n in keys if n.partition == deleted.partition]
        if any(
            name.topic.startswith(deleted.topic) and _is_of(state, keys[name], name.topic, path)
            for name in named
        ):
            check_interrupt()
            remove_folder(path)


def _is_of(state: CommitState, key: str, topic: str, folder: Path) -> bool:
    try:
        return state.key_of(topic, read_topic_id(folder)) == key
    except CheckpointError:
        return False


def _without(state: CommitState, gone: set[_Gone]) -> CommitState:
    def change(topic: str, number: int, each: ReplicaState, where: PartitionState) -> Changed:
        name = TopicPartition(topic, number)
        removing = tuple(node for node in each.removing if (node, name) not in gone)
        return each._replace(removing=removing), where

    return changed_topics(state, change)
