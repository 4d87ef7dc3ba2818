"""How far queries are behind: what Spark's Kafka source reports as metrics.

Spark's Python API has no place for a source's metrics. The same numbers follow from a query's
progress, which has the offsets that were read and those that were there, or from offsets and the
log directories as they are now.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from kafkalog.errors import CheckpointError
from kafkalog.model import listed
from kafkalog.streaming.option_kinds import READABLE_PATHS
from kafkalog.streaming.source.followed_logs import FollowedLogs
from kafkalog.streaming.source.offsets import from_json_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkalog.model import TopicPartition

__all__ = ["lag", "offsets_behind_latest", "partition_lags"]

_LOGGER: Final = logging.getLogger("kafkalog.source")


def partition_lags(source: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """Return per partition how many offsets a source was behind at the end of its last micro-batch.

    Args:
        source: one of ``sources`` of a query's progress, such as
            ``query.lastProgress["sources"][0]``.

    Returns:
        nothing if the progress does not say, or is another source's; a partition that was not read
        yet counts from 0, as in Spark.
    """
    try:
        end, latest = (from_json_text(source.get(name)) for name in ("endOffset", "latestOffset"))
    except CheckpointError:
        return {}
    if not end or not latest:
        return {}
    return {key: max(0, offset - end.get(key, 0)) for key, offset in sorted(latest.items())}


def offsets_behind_latest(source: Mapping[str, Any]) -> dict[str, str]:
    """Return the three metrics of Spark's Kafka source, under its names and as text like there.

    ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest`` and ``avgOffsetsBehindLatest`` over the
    partitions; nothing if the progress does not say. ``source`` is as for :func:`partition_lags`.
    """
    lags = partition_lags(source).values()
    if not lags:
        return {}
    return {
        "minOffsetsBehindLatest": str(min(lags)),
        "maxOffsetsBehindLatest": str(max(lags)),
        "avgOffsetsBehindLatest": str(sum(lags) / len(lags)),
    }


def lag(path: str, offsets: str | Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Return per partition how many offsets lie between what was read and what is committed now.

    Args:
        path: the log directories, as for reading.
        offsets: the next offsets to read, as Spark writes them down: ``{"flights":{"0":23}}``.

    Returns:
        of all partitions of the topics that are named; one that is not named counts from its log
        start, one that is gone is left out. One that was read beyond the end of its log, which was
        cut or replaced, has 0, with a warning: offsets alone do not say whether it has grown since.

    Raises:
        CheckpointError: ``offsets`` are none.
        LogDirectoryError: a log directory cannot be listed.
    """
    read = from_json_text(offsets)
    topics = {key.topic for key in read}
    logs = FollowedLogs(READABLE_PATHS.read(path), lambda key: key.topic in topics)
    ends = logs.look(read)
    lost = [
        f"{key} from {at} to {ends[key]}"
        for key, at in sorted(read.items())
        if ends.get(key, at) < at and not logs.reaches(key, at)
    ]
    if lost:
        _LOGGER.warning(
            "the end of these partitions went back: %s. The topic was recreated, or its log was "
            "cut or replaced: records that were read there are gone",
            listed(lost),
        )
    return {
        key: max(0, end - (read[key] if key in read else logs.log_start(key)))
        for key, end in ends.items()
    }
