"""What the commands find missing in log directories: members of the set, and partitions."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from kafkalog.checkpoints.committed import load_committed
from kafkalog.errors import KafkaLogError
from kafkalog.streaming.store.ends.missing_parts import NOTHING, find_missing_parts
from kafkalog.streaming.store.ends.tracker import tiered_logs
from kafkalog.streaming.store.folders.deleted import live_partitions
from kafkalog.streaming.store.recovery.lost_partitions import lost_of_living, missing_members

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import LogDirs
    from kafkalog.streaming.store.ends.tracker import LogEndTracker

__all__ = ["say_missing", "tiered_rows", "unverified_rows"]

_LOGGER: Final = logging.getLogger("kafkalog.jobs")

Row = dict[str, Any]


def say_missing(log_dirs: LogDirs, topic: str | None) -> Mapping[TopicPartition, int]:
    """Warn of what is missing, of one topic if it is named.

    Returns:
        the partitions that are lost, with the ends that are committed.
    """
    there = live_partitions(log_dirs)
    try:
        parts = find_missing_parts(
            load_committed(log_dirs.paths),
            log_dirs.paths,
            there,
            lambda key: topic in {None, key.topic},
        )
    except KafkaLogError as error:
        _LOGGER.warning("whether something is missing cannot be told: %s", error)
        return {}
    if parts != NOTHING:
        _LOGGER.warning("%s", parts)
    return parts.partitions if parts.is_loss else {}


def tiered_rows(watch: LogEndTracker) -> Iterator[Row]:
    """Return a row for each partition of the last look of which a remote tier alone has offsets."""
    for key, start in tiered_logs(watch):
        yield {**key._asdict(), "segment": None, "problem": str(start)}


def unverified_rows(log_dirs: LogDirs, topic: str | None) -> Iterator[Row]:
    """Return a row for the members of the set that are missing, and for each partition gone.

    Whoever verifies wants to know that all is there: members that were left out on purpose count.
    """
    there = live_partitions(log_dirs)
    try:
        committed = load_committed(log_dirs.paths)
        members = missing_members(committed, log_dirs.paths)
        lost = list(lost_of_living(committed.state, there)) if committed.state else []
    except KafkaLogError:
        return  # said already
    if members is not None:
        yield {"topic": None, "partition": None, "segment": None, "problem": str(members)}
        return
    for known, numbers in lost:
        for number in numbers if topic in {None, known.name} else ():
            yield {
                "topic": known.name,
                "partition": number,
                "segment": None,
                "problem": f"offsets up to {known.partitions[number].high_watermark} were "
                "committed, and the partition has no folder",
            }
