"""Copy a replicated set into one folder, which is a set of one node then.

Each partition is copied once, from a replica in sync. The copy can be read and written as it is. Or
it becomes the first of several nodes, whose others are empty, and is copied to these by the next
writes (:mod:`~kafkalog.streaming.store.replicas.starting`).

It is copied in passes, as a set of one node is (:mod:`~kafkalog.streaming.operate.backup`). A
partition is copied from where it was found first, as long as that is in sync.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import (
    CLEANER_OFFSET,
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from kafkalog.checkpoints.commit_stamp import STATE_FILE
from kafkalog.checkpoints.state_file import state_bytes
from kafkalog.checkpoints.topic_ids import CHANGED_IDS_FILE, merged_changed_ids
from kafkalog.errors import LogDirectoryError
from kafkalog.files.system import system
from kafkalog.model import TopicPartition, partition_directory_name
from kafkalog.streaming.log.log_dir import partitions_by_node
from kafkalog.streaming.operate.folder_copy import FolderCopy
from kafkalog.streaming.store.session import opened_set

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.operate.folder_copy import LogSizes
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.policy import SetPolicy

__all__ = ["NodesCopy"]

_CHECKPOINTS: Final = (CLEANER_OFFSET, LOG_START_OFFSET, RECOVERY_POINT, HIGH_WATERMARK)
"""In the order in which they are written."""


class NodesCopy:
    """The copy of the nodes' log directories ``sources`` in the folder ``target``.

    ``copies`` are its parts, each from one log directory.
    """

    def __init__(self, sources: Sequence[Path], target: Path, policy: SetPolicy) -> None:
        self._sources = sources
        self._target = target
        self._policy = policy
        self._from: dict[TopicPartition, PartitionDirectory] = {}
        self._copies: dict[Path, FolderCopy] = {}
        self._offsets: dict[str, dict[TopicPartition, int]] = {}

    @property
    def copies(self) -> list[FolderCopy]:
        """The copies of log directories from which something was taken."""
        return list(self._copies.values())

    @property
    def copied_bytes(self) -> int:
        """How many bytes were copied."""
        return sum(copy.bytes for copy in self.copies)

    def bring_up_to_date(self) -> None:
        """Copy what is there now, while writers continue.

        Raises:
            KafkaLogError, OSError: it cannot be read, or not be written.
        """
        with self._opened() as log_set:
            self._choose(log_set)
            sizes: dict[Path, LogSizes] = {
                folder: copy.log_sizes() for folder, copy in self._copies.items()
            }
        for folder, copy in self._copies.items():
            copy.bring_up_to_date(sizes[folder])

    def end(self) -> dict[str, bytes]:
        """Copy the rest while writers wait; return the files of the copy's root by their names.

        Raises:
            KafkaLogError, OSError: as :meth:`bring_up_to_date`; or the locks are lost.
        """
        with self._opened() as log_set:
            self._choose(log_set)
            for copy in self.copies:
                copy.bring_up_to_date()
            self._note_offsets()
            state = _of_one_node(log_set.state)
            changed = merged_changed_ids(log_set.directories)
            log_set.check_current()
        files = {} if changed is None else {CHANGED_IDS_FILE: changed}
        return {**files, STATE_FILE: state_bytes(state)}

    def write_checkpoints(self) -> None:
        """Write Kafka's offset checkpoints into the copy."""
        for name, offsets in self._offsets.items():
            write_offset_checkpoint(self._target, name, offsets)

    def _opened(self) -> AbstractContextManager[LogSet]:
        return opened_set(self._sources, self._policy, holder="kafkalog backup", knows_nodes=True)

    def _choose(self, log_set: LogSet) -> None:
        """Choose from where each partition is copied; what was chosen before stays.

        Raises:
            LogDirectoryError: one has no replica in sync that is there, or that was chosen is not.
        """
        found = log_set.partitions()
        in_sync = {where.path for where in _in_sync(log_set)}
        for key in _keys(log_set.state):
            where = self._from.setdefault(key, found[key]) if key in found else None
            if where is None or where.path not in in_sync:
                raise LogDirectoryError(
                    f"{key} has no replica in sync that is there, or the node that it was copied "
                    "from has gone meanwhile. `kafkalog replicas` shows the nodes: bring it back, "
                    "remove what is left of this copy, and try again"
                )
        self._from = {key: self._from[key] for key in _keys(log_set.state)}
        by_folder: dict[Path, set[str]] = {folder: set() for folder in self._copies}
        for key, where in self._from.items():
            by_folder.setdefault(where.log_dir, set()).add(partition_directory_name(*key))
        for folder, names in by_folder.items():
            copy = self._copies.setdefault(folder, FolderCopy(folder, self._target))
            copy.take_only(names)

    def _note_offsets(self) -> None:
        for name in _CHECKPOINTS:
            known = {folder: read_offset_checkpoint(folder, name) for folder in self._copies}
            self._offsets[name] = {
                key: known[where.log_dir][key]
                for key, where in self._from.items()
                if key in known[where.log_dir]
            }


def _keys(state: CommitState) -> Iterator[TopicPartition]:
    for topic in state.topics.values():
        for number in topic.partitions:
            yield TopicPartition(topic.name, number)


def _in_sync(log_set: LogSet) -> Iterator[PartitionDirectory]:
    folders = partitions_by_node(log_set.node.nodes())
    for topic in log_set.state.topics.values():
        for number, each in topic.replicas.items():
            for node in each.isr:
                found = folders.get(node, {}).get(TopicPartition(topic.name, number))
                if found is not None:
                    yield found


def _of_one_node(state: CommitState) -> CommitState:
    """Return the state of a set that has one directory, and no nodes."""
    member = system.random_id().hex
    topics = {key: replace(topic, replicas={}) for key, topic in state.topics.items()}
    return replace(
        state,
        member_id=member,
        member_ids=(member,),
        nodes=(),
        topics=topics,
        controller="",
        controller_epoch=0,
    )
