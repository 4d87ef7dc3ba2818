"""Files of segments that were deleted go with any later session, once their delay is over.

Whoever renames a segment to ``.deleted`` does not wait until readers are through with it, and may
never come again. So each process that changes a set looks for such files: in its first session, and
then every five minutes, in some folders at a time.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from kafkalog.errors import KafkaLogError
from kafkalog.files.stalling import at
from kafkalog.files.system import remembered, system
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.config import LogConfig
from kafkalog.streaming.log.retired_files import remove_retired
from kafkalog.streaming.store.rounds import Rounds

if TYPE_CHECKING:
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet

__all__ = ["remove_dead"]

_LOGGER: Final = logging.getLogger("kafkalog.log")

_INTERVAL_S: Final = 300
_MOST_FOLDERS: Final = 500
"""That one session looks into: some 30 microseconds each."""


class _Looks(Rounds):
    pass


def remove_dead(log_set: LogSet) -> None:
    """Unlink what was deleted long enough ago, of topics that the state knows; fails nobody.

    REQUIRES: the locks are held. ``log_set.removed`` tells what has gone.
    """
    looks = remembered(_Looks)
    if not looks.begins(log_set.directories, _INTERVAL_S):
        return
    try:
        _remove(log_set, looks)
    except (KafkaLogError, OSError) as error:
        _LOGGER.warning("deleted segments were not removed, a later session will: %s", error)


def _remove(log_set: LogSet, looks: Rounds) -> None:
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
    for key in looks.chosen(log_set.directories, known, _MOST_FOLDERS):
        delay_ms = LogConfig.of_topic(topics[key].settings).file_delete_delay_ms
        for where in there[key]:
            with at(where.path):
                removed = remove_retired(where.path, now_ms - delay_ms)
            log_set.removed = log_set.removed.plus(removed)
