"""Which folder of a partition counts, where each of several nodes has one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from kafkalog.checkpoints.broker import PARTITION_METADATA, read_topic_id
from kafkalog.checkpoints.commit_state import topic_key
from kafkalog.checkpoints.replica_state import NO_LEADER
from kafkalog.errors import CheckpointError, LogDirectoryError
from kafkalog.files.regular import open_regular
from kafkalog.files.timeouts import at
from kafkalog.files.watch import stamp_from
from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.checkpoints.replica_state import ReplicaState
    from kafkalog.files.watch import Stamp

__all__ = ["check_stamp", "folders_by_node", "leader_folders", "replica_stamp", "stamps_of"]

_UNREADABLE: Final = (-1, 0, 0, 0, 0)
"""The stamp of no file."""


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
    for key, topic in state.topics.items():
        for number, replicas in topic.replicas.items():
            name = TopicPartition(topic.name, number)
            able = [node for node in _in_sync(replicas) if node in by_node]
            for node in sorted(able, key=rank):
                found = by_node[node].get(name)
                if found is not None and _is_of(key, name, found):
                    chosen[name] = found
                    break
    return dict(sorted(chosen.items()))


def _in_sync(replicas: ReplicaState) -> list[int]:
    """Return the nodes that have all of a partition: its leader first, then by preference."""
    leader = [] if replicas.leader == NO_LEADER else [replicas.leader]
    return leader + [n for n in replicas.replicas if n in replicas.isr and n not in leader]


def _is_of(key: str, name: TopicPartition, found: _HasPath) -> bool:
    """Whether a folder is of the topic that the state has under ``key``, by the id in the folder.

    One that has lost its id is not: another replica has it.
    """
    try:
        with at(found.path):
            return topic_key(name.topic, read_topic_id(found.path)) == key
    except (CheckpointError, LogDirectoryError, OSError):
        return False


def replica_stamp(folder: Path) -> Stamp | None:
    """Return what tells whether a replica is still the one that a reader was sent to.

    It is that of ``partition.metadata``, which is written again before a replica that lags is
    changed: its segments are those of two moments then, and offsets may be missing between them.
    None without that file, which topics of brokers before 2.8 do not have.

    Raises:
        OSError, LogDirectoryError: that cannot be known.
    """
    with at(folder):
        try:
            # opened, since a client of NFS answers stat() by what it knew seconds ago
            descriptor = open_regular(folder / PARTITION_METADATA)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return stamp_from(os.fstat(descriptor))
        finally:
            os.close(descriptor)


def check_stamp(folder: Path, stamp: Stamp | None) -> None:
    """See that what was read of a replica before this was in sync; what has no stamp is none.

    Raises:
        LogDirectoryError: it may not have been.
        OSError: that cannot be known.
    """
    if stamp is not None and replica_stamp(folder) != stamp:
        raise LogDirectoryError(
            f"{folder} was not in sync any more while it was read: its node was away, and it is "
            "brought up to date. Read again"
        )


def stamps_of(folders: Iterable[Path]) -> dict[Path, Stamp | None]:
    """Return the stamps of replicas; one that cannot be read gets one that no replica has."""
    found: dict[Path, Stamp | None] = {}
    for folder in folders:
        try:
            found[folder] = replica_stamp(folder)
        except (LogDirectoryError, OSError):
            found[folder] = _UNREADABLE
    return found
