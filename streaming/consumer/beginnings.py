"""Where a group begins in partitions in which it has no position yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.errors import UnknownTopicOrPartitionError
from kafkalog.streaming.source.bounds.start import resolve_start, starting_bound
from kafkalog.streaming.source.followed_logs import FollowedLogs
from kafkalog.streaming.source.offsets import LATEST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.source.read_options import ReadOptions

__all__ = ["beginnings"]


def beginnings(
    options: ReadOptions, first: Sequence[TopicPartition], late: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the offsets that a group begins at.

    Args:
        options: of the member that decides; they say where ``first`` begin.
        first: partitions of topics that are new to the group.
        late: partitions that a topic of the group has got since. They begin at their log start.

    Raises:
        UnknownTopicOrPartitionError: one is not there any more.
        OptionError: one has no record with the timestamp to start at.
    """
    wanted = {*first, *late}
    logs = FollowedLogs.of(options, wanted.__contains__)
    ends = logs.look()
    missing = sorted(wanted - ends.keys())
    if missing:
        raise UnknownTopicOrPartitionError(
            f"{', '.join(map(str, missing))} cannot be assigned: it is gone from "
            f"{', '.join(map(str, options.paths))} since the group looked"
        )
    bound = starting_bound(options, default=LATEST)
    strategy = options.starting_timestamp_strategy
    found = resolve_start(bound, {key: ends[key] for key in first}, logs, when_none=strategy)
    return {**found, **{key: logs.log_start(key) for key in late}}
