"""What the commit state says of a partition, where that is not what a commit has just appended.

A log was cut; or the state was written in format 1, which knew neither log starts nor leader
epochs: what Kafka's checkpoints say is true of it. They are read when such a state is first written
again, once.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import META_PROPERTIES, read_leader_epochs, read_topic_id
from kafkalog.checkpoints.commit_state import FORMAT_VERSION, UNKNOWN_EPOCH
from kafkalog.errors import CheckpointError
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.log_dir import LogDirs
from kafkalog.streaming.store.ends.broker_marks import BrokerMarks

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState, PartitionState, TopicState
    from kafkalog.streaming.log.log_dir import PartitionDirectory

__all__ = ["ended_at", "in_present_format", "last_epoch"]

_LOGGER: Final = logging.getLogger("kafkalog.sink")


def ended_at(
    topic: TopicState, number: int, end: int, folder: Path, directories: Collection[Path]
) -> TopicState:
    """Return a topic after the log of one of its partitions was cut at ``end``.

    What is appended next is of a new leader epoch, so that readers that were further recognise
    the cut (KIP-320): see :mod:`kafkalog.streaming.log.history`. Not so where a broker lived in
    one of ``directories``, those of the set: it may start there again as it is, and would hold
    that epoch against the one that its cluster knows.

    Raises:
        CheckpointError: the partition's leader epochs cannot be read.
    """
    before = topic.partitions[number]
    epoch = last_epoch(folder)
    epochs = dict(topic.cluster_epochs)
    if not any((each / META_PROPERTIES).exists() for each in directories):
        known = max(epoch, before.leader_epoch)
        epochs.setdefault(number, known)
        epoch = known + 1
    cut = before.ended_at(end, epoch)
    partitions = {**topic.partitions, number: cut}
    return replace(topic, partitions=partitions, cluster_epochs=epochs)


def in_present_format(state: CommitState, directories: Collection[Path]) -> CommitState:
    """Return a state with all that the present format keeps; ``directories`` are all of its set.

    Costs nothing where it was read in that format. What cannot be told, as of a partition whose
    folder is gone, stays unknown until the partition is written again.
    """
    if state.version >= FORMAT_VERSION:
        return state
    there = LogDirs(directories).partitions()
    marks = BrokerMarks()
    topics = {}
    for key, topic in state.topics.items():
        partitions = dict(topic.partitions)
        for number, known in topic.partitions.items():
            name = TopicPartition(topic.name, number)
            if name in there and _is_of(state, key, there[name]):
                partitions[number] = _told(known, there[name], marks)
        topics[key] = replace(topic, partitions=partitions)
    return replace(state, topics=topics, version=FORMAT_VERSION)


def _is_of(state: CommitState, key: str, found: PartitionDirectory) -> bool:
    """Return whether a folder is of the topic that is kept under ``key``, not of its namesake."""
    try:
        return state.key_of(found.topic_partition.topic, read_topic_id(found.path)) == key
    except CheckpointError:
        return False


def _told(known: PartitionState, found: PartitionDirectory, marks: BrokerMarks) -> PartitionState:
    started = known.starting_at(marks.log_start(found))
    if known.leader_epoch != UNKNOWN_EPOCH:
        return started
    try:
        return started._replace(leader_epoch=last_epoch(found.path))
    except CheckpointError as error:
        _LOGGER.warning("the leader epoch of %s is not known: %s", found.topic_partition, error)
        return started


def last_epoch(folder: Path) -> int:
    """Return the epoch that what is appended next is of; 0 where none was noted.

    Raises:
        CheckpointError: the file breaks the format.
    """
    epochs = read_leader_epochs(folder)
    return epochs[-1].epoch if epochs else 0
