"""Let the folder of a partition be in another log directory of its node: the last step of a move.

::

    copy     log2/t-0.<32 hex>-future    in steps, while the partition is written
    publish  a state; its intent names no partition, and keeps brokers out
    mark     log1/t-0/kafkalog.moved     the copy is whole, and all of it is on the disk
    rename   log2/t-0.<32 hex>-future to log2/t-0
    retire   log1/t-0 to log1/t-0.<32 hex>-delete, which is removed

Nothing is appended from the mark on. So of two folders of a partition the marked one goes, and a
mark on the only one says nothing. Whoever opens the set after that was cut off does the rest: the
intent is there then. A reader that lists amid it waits, as for a broker that does so.

Source: Kafka ``LogManager.replaceCurrentWithFutureLog``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import (
    CLEANER_OFFSET,
    LOG_START_OFFSET,
    read_offset_checkpoint,
    read_topic_id,
    write_offset_checkpoint,
)
from kafkalog.errors import CheckpointError
from kafkalog.files.atomic import write_atomically
from kafkalog.files.regular import fsync_directory
from kafkalog.files.system import system
from kafkalog.model import partition_directory_name
from kafkalog.streaming.log.files import (
    deleted_directory_name,
    parse_deleted_directory,
    parse_partition_directory,
)
from kafkalog.streaming.log.log_dir import entries_of
from kafkalog.streaming.store.folders.deletion import remove_folder
from kafkalog.streaming.store.log_set import publish_guarded
from kafkalog.streaming.store.stale_entries import drop_entries_of_missing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.store.log_set import LogSet

__all__ = ["MovedFolder", "finish_moves", "put_in_place"]

_MARK: Final = "kafkalog.moved"
_WRITER: Final = "move-folder"
"""What the intent has in place of a writer. No writer key looks like it: they have a colon."""


class MovedFolder(NamedTuple):
    """The folder of a partition, and its whole copy beside its new place."""

    key: TopicPartition
    folder: Path
    copy: Path


def put_in_place(log_set: LogSet, moved: Sequence[MovedFolder]) -> None:
    """Let copies be the folders of their partitions, and remove those that were.

    REQUIRES: the locks are held, nothing is unfinished, and the copies are whole and durable.

    Raises:
        OSError, KafkaLogError: some are in place; the next session does the rest.
    """
    publish_guarded(log_set, log_set.state.following(), _WRITER)
    for each in moved:
        log_set.check_current()
        for name in (LOG_START_OFFSET, CLEANER_OFFSET):
            known = read_offset_checkpoint(each.folder.parent, name)
            if each.key in known:
                write_offset_checkpoint(each.copy.parent, name, {each.key: known[each.key]})
        write_atomically(each.folder / _MARK, b"")
        each.copy.rename(each.copy.with_name(partition_directory_name(*each.key)))
        fsync_directory(each.copy.parent)
    finish_moves(log_set)
    log_set.node.withdraw(durable=False)


def finish_moves(log_set: LogSet) -> None:
    """Remove the folders whose partitions have another one now, and marks that say nothing.

    REQUIRES: the locks are held.

    Raises:
        OSError: a folder cannot be renamed or removed.
        KafkaLogError: the locks are lost.
    """
    for node, alone in log_set.node.isolated_per_node():
        with alone:
            _finish_on_node(log_set, node.directories)


def _finish_on_node(log_set: LogSet, log_dirs: Sequence[Path]) -> None:
    places = defaultdict(list)
    for log_dir in log_dirs:
        for key, folder in _folders(log_dir):
            places[key].append(folder)
    for key, folders in places.items():
        for folder in folders:
            if (folder / _MARK).exists():
                log_set.check_current()
                _retire_or_keep(key, folder, is_alone=len(folders) == 1)
    for log_dir in log_dirs:
        _remove_retired(log_dir, log_set.state)


def _folders(log_dir: Path) -> Iterator[tuple[TopicPartition, Path]]:
    for entry in entries_of(log_dir):
        key = parse_partition_directory(entry.name)
        if key is not None and entry.is_dir():
            yield key, log_dir / entry.name


def _retire_or_keep(key: TopicPartition, folder: Path, *, is_alone: bool) -> None:
    if is_alone:
        (folder / _MARK).unlink()
        return
    folder.rename(folder.with_name(deleted_directory_name(*key, system.random_id().hex)))
    fsync_directory(folder.parent)


def _remove_retired(log_dir: Path, state: CommitState) -> None:
    retired = [
        log_dir / entry.name
        for entry in entries_of(log_dir)
        if _is_known(log_dir / entry.name, state)
    ]
    if retired:
        drop_entries_of_missing(log_dir)
    for folder in retired:
        remove_folder(folder)


def _is_known(folder: Path, state: CommitState) -> bool:
    """Return whether a folder is one that is to be deleted, of a topic that is there."""
    deleted = parse_deleted_directory(folder.name)
    if deleted is None:
        return False
    try:
        topic_id = read_topic_id(folder)
    except CheckpointError:
        return False
    named = (each.name for each in state.topics.values() if each.name.startswith(deleted.topic))
    return any(state.key_of(name, topic_id) in state.topics for name in named)
