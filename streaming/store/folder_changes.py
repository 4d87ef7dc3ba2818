"""Delete the folders of topics, or move one to another log directory, in two steps each."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import (
    CLEANER_OFFSET,
    LOG_START_OFFSET,
    PARTITION_METADATA,
    read_offset_checkpoint,
    read_topic_id,
    write_offset_checkpoint,
)
from kafkalog.checkpoints.commit_state import DeletedTopic, topic_key
from kafkalog.errors import CheckpointError
from kafkalog.files.atomic import write_atomically
from kafkalog.files.deferred_signals import check_interrupt
from kafkalog.files.regular import fsync_directory
from kafkalog.files.system import FULL, system
from kafkalog.files.timeouts import at
from kafkalog.model import partition_directory_name
from kafkalog.streaming.log.files import (
    OFFSET_INDEX,
    TIME_INDEX,
    deleted_directory_name,
    parse_deleted_directory,
    parse_future_directory,
    parse_partition_directory,
)
from kafkalog.streaming.log.log_dir import entries_of
from kafkalog.streaming.store.broker_files import drop_entries_of_missing
from kafkalog.streaming.store.log_dirs import is_deleted
from kafkalog.streaming.store.log_set import publish_guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.store.log_set import LogSet


__all__ = [
    "MovedFolder",
    "delete_topics",
    "finish_moves",
    "put_in_place",
    "remove_deleted",
    "remove_folder",
    "retire_deleted",
]


# ----------------------------------------------------------------------------------------------
# Delete topics: first in the commit state, then their folders.
#
# ===========  =====================================================================================
# publish      the state has the topic under ``deleted``: for readers and writers it is gone
# retire       each folder is renamed to ``<topic>-<p>.<32 hex>-delete``, which brokers know, and
#              its lines are taken out of Kafka's checkpoints
# remove       these folders go, and then what the state keeps of the topic
# ===========  =====================================================================================
#
# An intent that names no partition keeps brokers out until all folders are retired. Whoever opens
# the set next does what is still to be done: as long as there is that intent it retires, and
# after that it removes. A folder that cannot be removed, as where a file server keeps files that
# are open, is tried again each time, and is in nobody's way.
#
# On a full disk the indexes of what is deleted go first, as retention does it.


_LOGGER: Final = logging.getLogger("kafkalog.sink")

_WRITER: Final = "delete-topic"
"""What the intent has in place of a writer. No writer key looks like it: they have a colon."""


def delete_topics(log_set: LogSet, keys: Collection[str]) -> None:
    """Delete topics by their keys in the commit state.

    REQUIRES: the locks are held, nothing is unfinished, and the state knows the topics.

    Raises:
        OSError, KafkaLogError: nothing is deleted; or the topics are, and the next session does the
            rest.
    """
    check_interrupt()
    state = log_set.state
    gone = {key: DeletedTopic(state.topics[key].name) for key in keys}
    topics = {key: topic for key, topic in state.topics.items() if key not in gone}
    marked = replace(state.following(topics=topics), deleted={**state.deleted, **gone})
    _with_room(lambda: publish_guarded(log_set, marked, _WRITER), log_set, keys)
    _with_room(lambda: retire_deleted(log_set), log_set, keys)
    log_set.node.withdraw(durable=False)
    remove_deleted(log_set)


def _with_room(act: Callable[[], None], log_set: LogSet, keys: Collection[str]) -> None:
    """Act; where the disk is full, let the indexes of what goes make room, and try again.

    Readers do without indexes, and writers and ``kafkalog recover`` build them again, if the topics
    stay after all.

    Raises:
        OSError: there is not enough room, or it failed for another reason.
        KafkaLogError: it failed.
    """
    try:
        act()
    except OSError as error:
        if error.errno not in FULL:
            raise
    else:
        return
    going = [
        where.path
        for listed in log_set.node.replicas()
        for where in listed.values()
        if topic_key(where.topic_partition.topic, read_topic_id(where.path)) in keys
    ]
    for folder in log_set.directories:
        going += _retired(folder, log_set.state)
    for path in going:
        for index in (*path.glob("*" + OFFSET_INDEX), *path.glob("*" + TIME_INDEX)):
            index.unlink(missing_ok=True)
    act()


def retire_deleted(log_set: LogSet) -> None:
    """Durably rename the folders of topics that are being deleted.

    REQUIRES: the deletion was published, and its intent is there. Without that, a folder with the
    topic's id is of a broker that has made the topic again since.

    Raises:
        OSError: one cannot be renamed.
        KafkaLogError: the locks are lost.
    """
    if not log_set.state.deleted:
        return
    changed = set()
    for where in [each for found in log_set.node.replicas() for each in found.values()]:
        if is_deleted(log_set.state, where):
            log_set.check_current()
            name = deleted_directory_name(*where.topic_partition, system.random_id().hex)
            with log_set.node.isolated_at(where.log_dir):
                where.path.rename(where.log_dir / name)
                changed.add(where.log_dir)
    for folder in sorted(changed):
        with log_set.node.isolated_at(folder):
            fsync_directory(folder)
    for folder in log_set.directories:
        with log_set.node.isolated_at(folder):
            drop_entries_of_missing(folder)


def remove_deleted(log_set: LogSet) -> None:
    """Remove the folders of deleted topics, and forget the topics once none is left.

    A node of a replicated set that was away meanwhile has folders that are not retired. Nobody but
    us makes topics there: so no intent is needed to know that they are of the deleted ones.

    REQUIRES: they are retired, but for those.

    Raises:
        OSError, KafkaLogError: what the state keeps of them is not published; folders are gone.
    """
    state = log_set.state
    if not state.deleted:
        return
    if state.is_replicated:
        retire_deleted(log_set)
    is_whole = log_set.node.is_whole(state)
    is_left = not is_whole  # a node that is away may have some
    for folder in log_set.directories:
        try:
            with at(folder):
                _remove_all(folder, state)
        except OSError as error:
            is_left = True
            _LOGGER.warning(
                "a folder of a deleted topic cannot be removed, the next writer tries again: %s",
                error,
            )
    left = {
        key: DeletedTopic(topic.name, is_retired=is_whole)
        for key, topic in (state.deleted.items() if is_left else ())
    }
    if left != state.deleted:
        log_set.publish(replace(state.following(), deleted=left))


def _remove_all(log_dir: Path, state: CommitState) -> None:
    found = list(_retired(log_dir, state))
    for path in found:
        remove_folder(path)
    if found:
        fsync_directory(log_dir)


def _retired(log_dir: Path, state: CommitState) -> Iterator[Path]:
    """Find the folders that are left of the deleted topics in a log directory."""
    for entry in entries_of(log_dir):
        key = parse_deleted_directory(entry.name) or parse_future_directory(entry.name)
        if key is not None:
            path = log_dir / entry.name
            names = {name for name, _ in state.deleted.values() if name.startswith(key.topic)}
            if names and _is_left(path, names, state):
                yield path


def _is_left(path: Path, names: Collection[str], state: CommitState) -> bool:
    try:
        topic_id = read_topic_id(path)
    except CheckpointError:
        return False
    if topic_id is not None:
        return topic_id in state.deleted
    return any(topic_key(name, None) in state.deleted for name in names) or not entries_of(path)


def remove_folder(folder: Path) -> None:
    """Remove a folder; what tells whose it is goes last."""
    for path in sorted(folder.iterdir(), key=lambda each: each.name == PARTITION_METADATA):
        if path.is_dir() and not path.is_symlink():
            remove_folder(path)
        else:
            path.unlink(missing_ok=True)
    folder.rmdir()


# ----------------------------------------------------------------------------------------------
# Let the folder of a partition be in another log directory of its node: the last step of a move.
#
# ::
#
#     copy     log2/t-0.<32 hex>-future    in steps, while the partition is written
#     publish  a state; its intent names no partition, and keeps brokers out
#     mark     log1/t-0/kafkalog.moved     the copy is whole, and all of it is on the disk
#     rename   log2/t-0.<32 hex>-future to log2/t-0
#     retire   log1/t-0 to log1/t-0.<32 hex>-delete, which is removed
#
# Nothing is appended from the mark on. So of two folders of a partition the marked one goes, and
# a mark on the only one says nothing. Whoever opens the set after that was cut off does the rest:
# the intent is there then. A reader that lists amid it waits, as for a broker that does so.
#
# Source: Kafka ``LogManager.replaceCurrentWithFutureLog``.


_MARK: Final = "kafkalog.moved"
_MOVE_WRITER: Final = "move-folder"
"""What the intent has in place of a writer. No writer key looks like it: they have a colon."""


class MovedFolder(NamedTuple):
    """The folder of a partition, and its whole copy beside its new place."""

    key: TopicPartition
    folder: Path
    copy: Path
    check: Callable[[], None]
    """Raises where the copy is not the one that was made: its directory was away meanwhile."""


def put_in_place(log_set: LogSet, moved: Sequence[MovedFolder]) -> None:
    """Let copies be the folders of their partitions, and remove those that were.

    REQUIRES: the locks are held, nothing is unfinished, and the copies are whole and durable.

    Raises:
        OSError, KafkaLogError: some are in place; the next session does the rest.
    """
    publish_guarded(log_set, log_set.state.following(), _MOVE_WRITER)
    for each in moved:
        log_set.check_current()
        each.check()
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
