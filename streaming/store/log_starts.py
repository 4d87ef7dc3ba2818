"""Move the starts of logs: in the commit state by one rename, then in Kafka's checkpoint.

No record is touched. What lies below a start counts as deleted from the rename on, in all
partitions at once. The intent that is declared for it names no partition: it keeps brokers out, and
tells the next session to write the checkpoints again if this one is cut off before they are there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import (
    LOG_START_OFFSET,
    read_leader_epochs,
    read_offset_checkpoint,
    read_topic_id,
    write_leader_epochs,
    write_offset_checkpoint,
)
from kafkalog.errors import CheckpointError, KafkaLogError
from kafkalog.files.deferred_signals import check_interrupt
from kafkalog.files.parallel import for_each
from kafkalog.model import TopicPartition
from kafkalog.streaming.store.log_set import publish_guarded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet

__all__ = ["LogStarts", "end_move", "move_log_starts", "raise_log_start", "repeat_log_starts"]

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
    for there in log_set.replicas():
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
