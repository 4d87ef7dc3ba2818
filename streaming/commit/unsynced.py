"""Make durable what ``flush=os`` has left to the system, where something relies on it.

A batch with ``flush=commit`` that is there already: an earlier run may have used ``flush=os``.
Whoever returns from such a batch has promised that it survives a loss of power. Nothing says which
partitions the first run wrote to. So all that was left to the system is made durable. That is rare
and cheap: a batch comes again when its query starts again.

A log start that moves: it is durable itself, and the oldest records go because there are newer
ones. If a loss of power took those, less would be left than retention keeps. If it took records
around the start, the log would end below it, and nobody could write or read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.checkpoints.commit_state import topic_key
from kafkalog.model import TopicPartition
from kafkalog.streaming.commit.states import all_durable
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.store.recovery.partition_states import PartitionEnd
from kafkalog.streaming.store.recovery.recovery_points import LogReach, sync_up_to

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kafkalog.streaming.store.log_set import LogSet

__all__ = ["make_left_durable", "make_shortened_durable"]


def make_shortened_durable(log_set: LogSet, starts: Mapping[str, Mapping[int, int]]) -> None:
    """Make logs durable that are to start at other offsets, by topic key and partition.

    The state of the set says so then. REQUIRES: as :func:`make_left_durable`.

    Raises:
        OSError: they are not durable.
    """
    left = make_left_durable(log_set, lambda key, number: number in starts.get(key, {}))
    log_set.state = all_durable(log_set.state, left)


def make_left_durable(
    log_set: LogSet, concerns: Callable[[str, int], bool] = lambda *_: True
) -> list[PartitionEnd]:
    """Make durable what the system was left to write; return its partitions, for the next state.

    ``concerns`` chooses some by topic key and number.

    REQUIRES: the locks are held, and all that is committed is in the logs.

    Raises:
        OSError: it is not durable.
    """
    topics = log_set.state.topics
    if not log_set.state.leaves_to_system:
        return []
    found = log_set.partitions()
    ends, reaches = [], []
    for key, topic in topics.items():
        interval = LogConfig.of_topic(topic.settings).index_interval_bytes
        for number, durable_end in topic.durable_ends.items():
            if not concerns(key, number):
                continue
            name = TopicPartition(topic.name, number)
            where = found.get(name)
            if where is None or topic_key(topic.name, read_topic_id(where.path)) != key:
                continue  # a partition that is gone is reported elsewhere
            end = topic.partitions[number].log_end
            ends.append(PartitionEnd(name, where, key, durable_end, end))
            reaches.append(LogReach(where.path, name, end, interval))
    sync_up_to(reaches)
    return ends
