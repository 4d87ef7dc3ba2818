"""Where a query starts in each partition if ``startingOffsets`` names a consumer group."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kafkalog.errors import OptionError
from kafkalog.model import many
from kafkalog.streaming.groups.position_topics import is_of_earlier_topic, last_batch_of
from kafkalog.streaming.source.loss import LossPolicy
from kafkalog.streaming.source.position_validation import PositionValidator

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.coordinator.group_positions import CommittedOffset
    from kafkalog.streaming.source.followed_logs import FollowedLogs
    from kafkalog.streaming.source.offsets import PartitionOffsets
    from kafkalog.streaming.source.read_options import ReadOptions

__all__ = ["starting_positions"]

_LOGGER = logging.getLogger("kafkalog.source")


def starting_positions(
    options: ReadOptions, group: str, partitions: Iterable[TopicPartition], logs: FollowedLogs
) -> PartitionOffsets:
    """Return a group's positions in the partitions that a query reads; none without a group.

    In a topic that was recreated since it starts at the log start, as its members do. ``logs`` are
    those of the query, which have looked.

    Raises:
        OptionError: the group has committed nothing, or nothing in these partitions.
        DataLossError: a log has another history than the group has read, and the query fails then.
    """
    if not group:
        return {}
    # not at import: a query without a group need not wait for what reads a coordinator's log
    from kafkalog.streaming.source.bounds.group_start import read_commits  # noqa: PLC0415

    committed = read_commits(options.paths, group, to_log_end=options.read_up_to == "logEnd")
    read = list(partitions)
    found = {key: _start_of(key, committed[key], logs) for key in read if key in committed}
    found |= _cuts(options, found, committed, logs)
    if read and not found:
        where = ", ".join(map(str, sorted(committed)[:10]))
        raise OptionError(
            f"option 'startingOffsets': group {group!r} has committed nothing in the partitions "
            f"that are read, only in {where}"
        )
    unknown = [str(key) for key in read if key not in found]
    if unknown:
        _LOGGER.warning(
            "group %r has committed nothing in %s, which start where they do without "
            "startingOffsets: %s",
            group,
            many(len(unknown), "partition"),
            ", ".join(unknown[:10]),
        )
    return found


def _cuts(
    options: ReadOptions,
    found: PartitionOffsets,
    committed: Mapping[TopicPartition, CommittedOffset],
    logs: FollowedLogs,
) -> PartitionOffsets:
    """Return where logs were cut whose history is another one than the group has read.

    Raises:
        DataLossError: there is one, and the query fails then.
    """
    validator = PositionValidator(logs)
    for key, position in committed.items():
        validator.add(key, position.offset, last_batch_of(position))
    diverged = validator.find_diverged(found)
    LossPolicy.of(options).history_changed(diverged)
    return {key: each.cut_at for key, each in diverged.items() if each.cut_at is not None}


def _start_of(key: TopicPartition, position: CommittedOffset, logs: FollowedLogs) -> int:
    ids = logs.topic_ids()
    if is_of_earlier_topic(key, position.metadata, ids, logs.is_changed_id):
        return logs.log_start(key)
    return position.offset
