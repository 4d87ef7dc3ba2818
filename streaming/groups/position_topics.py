"""Note in a group's position which topic, and which history of its log, it is of.

A topic that is recreated under its name is another one, and a log that was cut or replaced has
other records below the same offset. So the topic's id and the last batch below the position
(:class:`~kafkalog.streaming.log.history.LastBatch`) stand in the position's metadata, a text that
is each client's own:

    topic.id=2nKGh3uGQ0a2qXfWc1kKTA;batch=95:99:3735928559:0:2:0:612:5:1764290000000

A position without an id, such as a broker's client commits, counts for whatever topic has the name.
Of its history the leader epoch tells, which such a client commits as well (KIP-320). Ours is not in
that field: clients hold it against their cluster's, which may set it down at a handover.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.checkpoints.topic_ids import is_changed_id
from kafkalog.streaming.log.history import LastBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.coordinator.group_replay import CommittedOffset
    from kafkalog.streaming.log.log_dir import PartitionDirectory

__all__ = [
    "id_in_metadata",
    "is_of_earlier_topic",
    "last_batch_of",
    "metadata_of",
    "outdated_positions",
    "present_ids",
]

_OURS: Final = re.compile(r"(?:topic\.id=([A-Za-z0-9_-]{22}))?(?:;?batch=([-0-9:]+))?")


def metadata_of(topic_id: str | None, batch: LastBatch | None) -> str:
    """Return the metadata of a position: the id of its topic, and the last batch below it."""
    parts = [] if topic_id is None else [f"topic.id={topic_id}"]
    parts += [] if batch is None else [f"batch={batch.to_text()}"]
    return ";".join(parts)


def id_in_metadata(metadata: str) -> str | None:
    """Return the topic id that a position was committed with; None for somebody else's text."""
    found = _OURS.fullmatch(metadata)
    return found and found[1]


def last_batch_of(position: CommittedOffset) -> LastBatch | None:
    """Return what a position was committed with that tells the history of its log; or None."""
    found = _OURS.fullmatch(position.metadata)
    batch = LastBatch.from_text(found[2]) if found is not None and found[2] is not None else None
    if batch is None and position.leader_epoch >= 0 and position.offset > 0:
        return LastBatch.from_epoch(position.offset, position.leader_epoch)
    return batch


def is_of_earlier_topic(
    key: TopicPartition,
    metadata: str,
    present: Mapping[TopicPartition, str | None],
    is_changed: Callable[[str, str, str], bool],
) -> bool:
    """Tell whether a position is of an earlier topic of that name: in this one it means nothing.

    Args:
        key: the partition.
        metadata: that the position was committed with.
        present: the topic ids of the partitions that exist; None for one without.
        is_changed: whether a topic got another id and kept its records.
    """
    was, now = id_in_metadata(metadata), present.get(key)
    is_other = was is not None and now is not None and was != now
    return is_other and not is_changed(key.topic, str(was), str(now))


def present_ids(
    partitions: Mapping[TopicPartition, PartitionDirectory], topics: Collection[str]
) -> dict[str, str]:
    """Read the ids of topics, those that exist and have one: all partitions of a topic have it.

    Raises:
        CheckpointError: an id cannot be read.
    """
    folders = {key.topic: each.path for key, each in sorted(partitions.items(), reverse=True)}
    ids = {topic: read_topic_id(folders[topic]) for topic in sorted(topics) if topic in folders}
    return {topic: topic_id for topic, topic_id in ids.items() if topic_id is not None}


def outdated_positions(
    ids: Mapping[TopicPartition, str],
    partitions: Mapping[TopicPartition, PartitionDirectory],
    directories: Sequence[Path],
) -> frozenset[TopicPartition]:
    """Return the positions that are of an earlier topic of the same name.

    Args:
        ids: the topic id of each position that has one.
        partitions: all that exist. What is not there may come back, and is not outdated.
        directories: where it is noted that a topic got another id and kept its records.

    Raises:
        CheckpointError: an id, or what is noted of changed ones, cannot be read.
    """
    present = present_ids(partitions, {key.topic for key in ids})
    recreated = {
        (key.topic, was)
        for key, was in ids.items()
        if (now := present.get(key.topic, was)) != was
        and not any(is_changed_id(each, key.topic, was, now) for each in directories)
    }
    return frozenset(key for key, was in ids.items() if (key.topic, was) in recreated)
