"""Delete files of expired segments on a schedule, once their delay is over."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from kafkalog.errors import KafkaLogError
from kafkalog.files.system import remembered, system
from kafkalog.files.timeouts import at
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.swap import remove_retired
from kafkalog.streaming.options.topic_settings import LogConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet


__all__ = ["Schedule", "remove_dead"]


# ----------------------------------------------------------------------------------------------
# Work that is done now and then, for some partitions at a time: when, and for which.


class Schedule:
    """When the next round of a set is due, and after which partition it begins, by directories.

    Each kind of work has a class of its own, of which a process remembers one object.
    """

    def __init__(self) -> None:
        self._due: dict[tuple[Path, ...], float] = {}
        self._after: dict[tuple[Path, ...], TopicPartition] = {}

    def begins(self, directories: Sequence[Path], interval_s: float) -> bool:
        """Tell whether a round is due, and note when the one after it is."""
        which, now = tuple(directories), system.monotonic()
        if now < self._due.get(which, now):
            return False
        self._due[which] = now + interval_s
        return True

    def chosen(
        self, directories: Sequence[Path], partitions: Iterable[TopicPartition], most: int
    ) -> list[TopicPartition]:
        """Choose at most so many partitions, from those on that the last round has left.

        The first round begins anywhere: processes that live for one alone are to come to all.
        """
        which, found = tuple(directories), sorted(partitions)
        after = self._after.pop(which, None)
        if after is not None:
            first = sum(key <= after for key in found)
        else:
            first = system.random_id().int % len(found) if len(found) > most else 0
        chosen = found[first:] + found[:first]
        if len(chosen) > most:
            chosen = chosen[:most]
            self._after[which] = chosen[-1]
        return chosen


# ----------------------------------------------------------------------------------------------
# Files of segments that were deleted go with any later session, once their delay is over.
#
# Whoever renames a segment to ``.deleted`` does not wait until readers are through with it, and
# may never come again. So each process that changes a set looks for such files: in its first
# session, and then every five minutes, in some folders at a time.


_LOGGER: Final = logging.getLogger("kafkalog.log")

_INTERVAL_S: Final = 300
_MOST_FOLDERS: Final = 500
"""That one session looks into: some 30 microseconds each."""


class _RemovalSchedule(Schedule):
    pass


def remove_dead(log_set: LogSet) -> None:
    """Unlink what was deleted long enough ago, of topics that the state knows; fails nobody.

    REQUIRES: the locks are held. ``log_set.removed`` tells what has gone.
    """
    schedule = remembered(_RemovalSchedule)
    if not schedule.begins(log_set.directories, _INTERVAL_S):
        return
    try:
        _remove(log_set, schedule)
    except (KafkaLogError, OSError) as error:
        _LOGGER.warning("deleted segments were not removed, a later session will: %s", error)


def _remove(log_set: LogSet, schedule: Schedule) -> None:
    topics = {
        TopicPartition(topic.name, number): topic
        for topic in log_set.state.topics.values()
        for number in topic.partitions
    }
    now_ms = system.time_ns() // 1_000_000
    there: dict[TopicPartition, list[PartitionDirectory]] = {}
    for found in log_set.replicas():
        for key, where in found.items():
            there.setdefault(key, []).append(where)
    known = (key for key in there if key in topics)
    for key in schedule.chosen(log_set.directories, known, _MOST_FOLDERS):
        delay_ms = LogConfig.of_topic(topics[key].settings).file_delete_delay_ms
        for where in there[key]:
            with at(where.path):
                removed = remove_retired(where.path, now_ms - delay_ms)
            log_set.removed = log_set.removed.plus(removed)
