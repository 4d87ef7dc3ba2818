"""Lines about an earlier topic of the same name in Kafka's offset checkpoints.

A topic that is deleted by hand leaves them there, and so does a broker that is killed while it
deletes one. They would count for a topic that is recreated: its log start would hide records, and a
broker would delete a log that ends below it; its recovery point would count bytes as durable that
are not.

Source: Kafka ``UnifiedLog`` (log start offset above the log end), ``LogManager``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import (
    CLEANER_OFFSET,
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    RECOVERY_POINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from kafkalog.errors import LogDirectoryError
from kafkalog.model import partition_directory_name
from kafkalog.streaming.log.log_end import log_start_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.nodes import Node

__all__ = [
    "check_log_start",
    "drop_entries_of_missing",
    "drop_stale_entries",
    "drop_stale_entries_on_nodes",
    "forget_log_start",
]

_CHECKPOINTS: Final = (LOG_START_OFFSET, RECOVERY_POINT, HIGH_WATERMARK, CLEANER_OFFSET)


def drop_stale_entries(directories: Iterable[Path], made: Collection[TopicPartition]) -> None:
    """Durably take an earlier topic's lines out of all offset checkpoints of a new topic.

    The lines of its partitions, which are ``made``, are removed. So are those of all other numbers
    without a folder: the earlier topic may have had more partitions, and somebody may add them to
    this one. They are removed from every directory of the set, since a partition may have lived in
    another one. This is done before the topic is published: a process that dies would not do it
    later.

    Raises:
        CheckpointError: a checkpoint breaks the format.
        OSError: it cannot be replaced.
    """
    if not made:
        return
    topics = {key.topic for key in made}

    def is_stale(folder: Path, key: TopicPartition) -> bool:
        return key in made or (key.topic in topics and _lacks(folder, key))

    for folder in directories:
        _drop(folder, is_stale)


def drop_stale_entries_on_nodes(nodes: Node, made: Collection[TopicPartition]) -> None:
    """Do so in all directories of a set, of each node by itself: it may fail alone.

    Raises:
        CheckpointError, OSError: as :func:`drop_stale_entries`, with one node.
    """
    for node, alone in nodes.isolated_per_node():
        with alone:
            drop_stale_entries(node.directories, made)


def drop_entries_of_missing(folder: Path) -> None:
    """Durably take the lines of partitions that a log directory lacks out of its checkpoints.

    Raises:
        CheckpointError: a checkpoint breaks the format.
        OSError: it cannot be replaced.
    """
    _drop(folder, _lacks)


def _drop(folder: Path, is_stale: Callable[[Path, TopicPartition], bool]) -> None:
    for name in _CHECKPOINTS:
        stale = [key for key in read_offset_checkpoint(folder, name) if is_stale(folder, key)]
        if stale:
            write_offset_checkpoint(folder, name, {}, remove=stale)


def _lacks(folder: Path, key: TopicPartition) -> bool:
    """Return whether nothing has a partition's name; a link to an unmounted folder is there."""
    return not os.path.lexists(folder / partition_directory_name(*key))


def check_log_start(where: PartitionDirectory, start: int, end: int) -> None:
    """Refuse to append to a log whose checkpointed ``start`` lies above its ``end``.

    Raises:
        LogDirectoryError: it does.
    """
    if start > end:
        raise LogDirectoryError(log_start_text(where, start, end))


def forget_log_start(where: PartitionDirectory) -> None:
    """Durably remove the line that says where a log starts: it starts with its first segment."""
    write_offset_checkpoint(where.log_dir, LOG_START_OFFSET, {}, remove={where.topic_partition})
