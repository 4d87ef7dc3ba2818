"""``startingOffsets=group:<id>``: where a consumer group stands, from ``__consumer_offsets``.

The topic is read from the same log directories, up to where it is committed. A broker that runs
writes a commit to its log at once, and tells of it (the high watermark on the disk) seconds later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.errors import OptionError
from kafkalog.model import OFFSETS_TOPIC, TopicPartition
from kafkalog.streaming.coordinator.group_positions import (
    DEFAULT_OFFSETS_PARTITIONS,
    partition_for_group,
)
from kafkalog.streaming.coordinator.group_replay import read_group_positions
from kafkalog.streaming.source.followed_logs import FollowedLogs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kafkalog.streaming.coordinator.group_positions import CommittedOffset
    from kafkalog.streaming.source.offsets import PartitionOffsets

__all__ = ["read_commits", "read_positions"]


def read_positions(paths: Iterable[str], group: str, *, to_log_end: bool) -> PartitionOffsets:
    """Read all positions of a group, also those in topics that were recreated since.

    Raises:
        OptionError, CorruptRecordError: as :func:`read_commits`.
    """
    found = read_commits(paths, group, to_log_end=to_log_end)
    return {key: position.offset for key, position in found.items()}


def read_commits(
    paths: Iterable[str], group: str, *, to_log_end: bool
) -> Mapping[TopicPartition, CommittedOffset]:
    """Read all positions of a group, and what came with them.

    Raises:
        OptionError: it has none, or ``__consumer_offsets`` is not there.
        CorruptRecordError: its partition of that topic cannot be read.
    """
    directories = list(paths)
    logs = FollowedLogs(directories, lambda key: key.topic == OFFSETS_TOPIC, to_log_end=to_log_end)
    ends = logs.look()
    partition = TopicPartition(OFFSETS_TOPIC, partition_for_group(group, _count(ends)))
    if partition not in ends:
        raise OptionError(
            f"positions of group {group!r} are kept in {partition}, which is not in "
            f"{', '.join(directories)}"
        )
    with logs.open(partition) as log:
        positions = read_group_positions(log, ends[partition], group=group)
    if group not in positions:
        raise OptionError(
            f"group {group!r} has committed nothing, by what {partition} in "
            f"{', '.join(directories)} says"
        )
    return positions[group]


def _count(ends: PartitionOffsets) -> int:
    """Return the topic's number of partitions; of several brokers' each has only some."""
    highest = max((key.partition for key in ends), default=-1) + 1
    return highest if highest == len(ends) and ends else max(highest, DEFAULT_OFFSETS_PARTITIONS)
