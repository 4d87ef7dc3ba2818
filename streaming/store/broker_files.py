"""Keep Kafka's checkpoint files up to date: ends, log starts, entries of earlier topics."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    OFFSET_CHECKPOINTS,
    RECOVERY_POINT,
    read_leader_epochs,
    read_offset_checkpoint,
    read_topic_id,
    write_leader_epochs,
    write_offset_checkpoint,
)
from kafkalog.checkpoints.commit_state import DEFAULT_EXPIRATION_MS, STAGED_PREFIX
from kafkalog.errors import CheckpointError, KafkaLogError, LogDirectoryError
from kafkalog.files.deferred_signals import check_interrupt
from kafkalog.files.parallel import for_each
from kafkalog.files.system import system
from kafkalog.files.timeouts import at
from kafkalog.model import TopicPartition, partition_directory_name
from kafkalog.streaming.log.log_dir import names_beside_partitions
from kafkalog.streaming.store.file_systems import is_shared
from kafkalog.streaming.store.identity import APP_PREFIX, BatchIdentity, staging_hash
from kafkalog.streaming.store.log_set import publish_guarded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.nodes import Node


__all__ = [
    "LogStarts",
    "WrittenEnd",
    "check_log_start",
    "drop_entries_of_missing",
    "drop_stale_entries",
    "drop_stale_entries_on_nodes",
    "end_move",
    "forget_log_start",
    "log_start_text",
    "move_log_starts",
    "raise_log_start",
    "repeat_log_starts",
    "sweep",
    "write_ends",
]

_LOGGER: Final = logging.getLogger("kafkalog.sink")


# ----------------------------------------------------------------------------------------------
# Lines about an earlier topic of the same name in Kafka's offset checkpoints.
#
# A topic that is deleted by hand leaves them there, and so does a broker that is killed while it
# deletes one. They would count for a topic that is recreated: its log start would hide records,
# and a broker would delete a log that ends below it; its recovery point would count bytes as
# durable that are not.
#
# Source: Kafka ``UnifiedLog`` (log start offset above the log end), ``LogManager``.


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
    for name in OFFSET_CHECKPOINTS:
        stale = [key for key in read_offset_checkpoint(folder, name) if is_stale(folder, key)]
        if stale:
            write_offset_checkpoint(folder, name, {}, remove=stale)


def _lacks(folder: Path, key: TopicPartition) -> bool:
    """Return whether nothing has a partition's name; a link to an unmounted folder is there."""
    return not os.path.lexists(folder / partition_directory_name(*key))


def log_start_text(where: PartitionDirectory, start: int, end: int) -> str:
    """Say what is wrong with a start above the log's end, and what to do."""
    return (
        f"{where.log_dir / LOG_START_OFFSET}: {where.topic_partition} starts at offset {start} "
        f"there, but its log ends at offset {end}: its records would be hidden, and a broker that "
        "starts would delete them. If the line is about an earlier topic of that name, run "
        "`kafkalog recover --reset-log-start`; if the log has lost its end, restore it"
    )


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


# ----------------------------------------------------------------------------------------------
# Move the starts of logs: in the commit state by one rename, then in Kafka's checkpoint.
#
# No record is touched. What lies below a start counts as deleted from the rename on, in all
# partitions at once. The intent that is declared for it names no partition: it keeps brokers out,
# and tells the next session to write the checkpoints again if this one is cut off before they are
# there.


_WRITER: Final = "log-start"
"""What the intent has in place of a writer. No writer key looks like it: they have a colon."""

LogStarts = dict[str, dict[int, int]]
"""New log starts, by the key of the topic in the commit state and the number of the partition."""


def move_log_starts(log_set: LogSet, starts: Mapping[str, Mapping[int, int]]) -> None:
    """Publish that logs start at these offsets, and write Kafka's checkpoints.

    REQUIRES: the locks are held, nothing is unfinished, the state knows the partitions, and no
    start lies above its high watermark, or above what is durable of its log.

    Raises:
        OSError, KafkaLogError: nothing is published; or all of it, and :func:`end_move`, or the
            next session, writes the checkpoints.
    """
    check_interrupt()
    state = _starting(log_set.state, starts)
    publish_guarded(log_set, state, _WRITER)
    end_move(log_set, starts)


def end_move(log_set: LogSet, starts: Mapping[str, Mapping[int, int]]) -> None:
    """Do what :func:`move_log_starts` has still to do once these starts are published.

    REQUIRES: the locks are held.

    Raises:
        OSError, KafkaLogError: the next session does it.
    """
    repeat_log_starts(log_set, starts)
    log_set.node.withdraw(durable=False)


def _starting(state: CommitState, starts: Mapping[str, Mapping[int, int]]) -> CommitState:
    topics = dict(state.topics)
    for key, of_topic in starts.items():
        partitions = dict(topics[key].partitions)
        for number, start in of_topic.items():
            before = partitions[number]
            partitions[number] = before._replace(log_start=max(start, before.log_start))
        topics[key] = replace(topics[key], partitions=partitions)
    return state.following(topics=topics)


def repeat_log_starts(log_set: LogSet, which: Mapping[str, Iterable[int]] | None = None) -> None:
    """Let Kafka's checkpoints say at least what the commit state says of these partitions.

    Leader epochs that ended below a log start go, as a broker would forget them.

    All of those that the state knows, without ``which``. A folder with another topic id is of
    another topic. What a checkpoint says of a log that starts even later stays.

    Raises:
        OSError, CheckpointError: a checkpoint cannot be read or replaced.
    """
    by_directory: dict[Path, dict[TopicPartition, int]] = {}
    truncated: dict[Path, list[tuple[Path, int]]] = {}
    for there in log_set.node.replicas():
        for found, start in _starting_later(log_set.state, there, which):
            by_directory.setdefault(found.log_dir, {})[found.topic_partition] = start
            truncated.setdefault(found.log_dir, []).append((found.path, start))
    for folder, starts in by_directory.items():
        with log_set.node.isolated_at(folder):
            for_each(_truncate_epochs, truncated[folder])
            known = read_offset_checkpoint(folder, LOG_START_OFFSET)
            raised = {key: start for key, start in starts.items() if start > known.get(key, 0)}
            if raised:
                write_offset_checkpoint(folder, LOG_START_OFFSET, raised)


def raise_log_start(log_dir: Path, key: TopicPartition, start: int) -> None:
    """Let Kafka's checkpoint in a log directory say that a partition starts at ``start``, or later.

    Raises:
        OSError, CheckpointError: it cannot be read or replaced.
    """
    if start > read_offset_checkpoint(log_dir, LOG_START_OFFSET).get(key, 0):
        write_offset_checkpoint(log_dir, LOG_START_OFFSET, {key: start})


def _starting_later(
    state: CommitState,
    there: Mapping[TopicPartition, PartitionDirectory],
    which: Mapping[str, Iterable[int]] | None,
) -> Iterator[tuple[PartitionDirectory, int]]:
    """Find the folders whose logs start later than at 0, among those that are ``there``."""
    for key, topic in state.topics.items():
        for number in topic.partitions if which is None else which.get(key, ()):
            found = there.get(TopicPartition(topic.name, number))
            start = topic.partitions[number].log_start
            if found is not None and start and _is_of(state, key, found):
                yield found, start


def _is_of(state: CommitState, key: str, found: PartitionDirectory) -> bool:
    try:
        return state.key_of(found.topic_partition.topic, read_topic_id(found.path)) == key
    except CheckpointError:
        return False


def _truncate_epochs(which: tuple[Path, int]) -> None:
    """Let the epoch that holds a log start begin there; a file that is damaged stays as it is.

    Source: Kafka ``LeaderEpochFileCache.truncateFromStart``.
    """
    folder, start = which
    try:
        epochs = read_leader_epochs(folder)
    except KafkaLogError:
        return
    before = [each for each in epochs if each.start_offset <= start]
    if before:
        kept = [before[-1]._replace(start_offset=start), *epochs[len(before) :]]
        if kept != epochs:
            write_leader_epochs(folder, kept, fsync=False)


# ----------------------------------------------------------------------------------------------
# After a commit: Kafka's checkpoint files say the same, and what it left behind goes away.


class WrittenEnd(NamedTuple):
    """The end of a partition after a commit."""

    log_dir: Path
    topic_partition: TopicPartition
    offset: int


_LARGE_CHECKPOINT: Final = 16 << 10
_CHECKPOINT_INTERVAL_NS: Final = 5_000_000_000
"""Kafka's ``replica.high.watermark.checkpoint.interval.ms``."""


def write_ends(ends: Iterable[WrittenEnd], *, durable: bool, may_wait: bool = False) -> None:
    """Tell a broker the new ends of partitions.

    The recovery point only moves where the log is on the disk. The high watermark may be lost, and
    is never torn. ``may_wait``: where there are many partitions, all of whose lines would have to
    be written again, they are written every five seconds, as a broker does. What they lack until
    then the commit state has; a broker finds it at the end of the log, and a handover writes it.
    """
    by_directory: dict[Path, list[WrittenEnd]] = {}
    for end in ends:
        by_directory.setdefault(end.log_dir, []).append(end)
    for folder, written in by_directory.items():
        if may_wait and _is_large_and_recent(folder / HIGH_WATERMARK):
            continue
        offsets = {end.topic_partition: end.offset for end in written}
        if durable:  # the folder's sync below covers its name, too
            write_offset_checkpoint(folder, RECOVERY_POINT, offsets, fsync=False)
        write_offset_checkpoint(folder, HIGH_WATERMARK, offsets, fsync=durable)


def _is_large_and_recent(path: Path) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    age = system.time_ns() - found.st_mtime_ns
    return found.st_size > _LARGE_CHECKPOINT and 0 <= age < _CHECKPOINT_INTERVAL_NS


def sweep(log_set: LogSet, identity: BatchIdentity) -> None:
    """Remove staged files whose batch is finished, of this writer and of all that are known.

    Those of ``identity`` go, of attempts that lost too. Files of unknown writers go when they are
    older than the default ``transactional.id.expiration.ms``: a job that still needed one would
    fail, and lose nothing. What cannot be removed is left for the next commit, with a warning.
    """
    own = staging_hash(identity.staged_by)
    finished: Mapping[str, int] | None = None
    oldest_ms = system.time_ns() // 1_000_000 - DEFAULT_EXPIRATION_MS
    for folder in log_set.directories:
        try:
            with at(folder):
                for path, writer, batch_id in _staged_files(folder):
                    is_over = writer == own and batch_id <= identity.batch_id
                    if not is_over:
                        finished = finished or _finished(log_set.state)  # there may be 20,000
                        is_over = batch_id <= finished.get(writer, -1)
                    if is_over or _is_older(path, oldest_ms):
                        path.unlink(missing_ok=True)
        except (OSError, KafkaLogError) as error:
            _LOGGER.warning("%s: staged files of finished batches are left: %s", folder, error)


def _finished(state: CommitState) -> dict[str, int]:
    """Return the last batch of each writer that is known, by the hash in names of its files."""
    finished = {staging_hash(key): last.batch_id for key, last in state.writers.items()}
    for topic in state.topics.values():
        for app_id, version in topic.versions.items():
            written = BatchIdentity(f"{APP_PREFIX}{app_id}", version.batch_id, topic=topic.name)
            finished[staging_hash(written.staged_by)] = version.batch_id
    return finished


def _staged_files(folder: Path) -> Iterator[tuple[Path, str, int]]:
    """Find the staged files of a directory: path, hash of the writer, batch id."""
    for name in names_beside_partitions(folder, is_shared):
        if not name.startswith(STAGED_PREFIX):
            continue
        writer, _, rest = name.removeprefix(STAGED_PREFIX).partition(".")
        batch_id, _, _ = rest.partition(".")
        if batch_id.isdecimal():
            yield folder / name, writer, int(batch_id)


def _is_older(path: Path, limit_ms: int) -> bool:
    try:
        return path.lstat().st_mtime_ns // 1_000_000 < limit_ms
    except FileNotFoundError:
        return False
