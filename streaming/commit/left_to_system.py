"""A batch with ``flush=commit`` that is there already: an earlier run may have used ``flush=os``.

Whoever returns from such a batch has promised that it survives a loss of power. Nothing says which
partitions the first run wrote to. So all that was left to the system is made durable. That is rare
and cheap: a batch comes again when its query starts again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.checkpoints.commit_state import topic_key
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.config import LogConfig
from kafkalog.streaming.log.log_dir import LogDirs
from kafkalog.streaming.store.partition_end import PartitionEnd
from kafkalog.streaming.store.recovery_points import LogReach, sync_up_to

if TYPE_CHECKING:
    from kafkalog.streaming.store.log_set import LogSet

__all__ = ["make_left_durable"]


def make_left_durable(log_set: LogSet) -> list[PartitionEnd]:
    """Make durable what the system was left to write; give its partitions, for the next state.

    REQUIRES: the locks are held, and all that is committed is in the logs.

    Raises:
        OSError: it is not durable.
    """
    topics = log_set.state.topics
    if not any(topic.durable_ends for topic in topics.values()):
        return []
    found = LogDirs(log_set.directories).partitions()
    ends, reaches = [], []
    for key, topic in topics.items():
        interval = LogConfig.of_topic(topic.settings).index_interval_bytes
        for number, durable_end in topic.durable_ends.items():
            name = TopicPartition(topic.name, number)
            where = found.get(name)
            if where is None or topic_key(topic.name, read_topic_id(where.path)) != key:
                continue  # a partition that is gone is reported elsewhere
            end = topic.partitions[number].log_end
            ends.append(PartitionEnd(name, where, key, durable_end, end))
            reaches.append(LogReach(where.path, name, end, interval))
    sync_up_to(reaches)
    return ends
