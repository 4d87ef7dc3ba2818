"""Records of internal topics attached to a batch, such as the positions of a group.

The driver encodes them itself, once the commit holds the locks and knows the topic. They are staged
beside the batch. So its intent names them, whoever rolls it back knows them, and the same rename
publishes them. What they say is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kafkalog.model import TopicPartition
from kafkalog.streaming.commit.staging.formats import BatchFormat
from kafkalog.streaming.commit.staging.staged_files import Home
from kafkalog.streaming.records.builder import RecordColumns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kafkalog.streaming.commit.staging.staged_files import Staging
    from kafkalog.streaming.commit.staging.staged_run import StagedRun
    from kafkalog.streaming.records.builder import EncodedBatch
    from kafkalog.streaming.store.policy import TopicPolicy
    from kafkalog.streaming.store.topics import Topic

__all__ = ["AttachedRecords", "AttachedRecordsStaging", "encode_attached"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedRecords:
    """Records that one partition of an internal topic gets.

    ``partition_of`` chooses it among as many as the topic has. ``records`` are keys and values, all
    of them of ``timestamp_ms``. ``policy`` says what the topic looks like if it is yet to be made.
    """

    topic: str
    partition_of: Callable[[int], int]
    records: Sequence[tuple[bytes, bytes | None]]
    timestamp_ms: int
    policy: TopicPolicy


class AttachedRecordsStaging:
    """Stages attached records for one commit; belongs to one thread.

    :meth:`finish` or :meth:`discard` ends it.
    """

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._topics: dict[str, Topic] = {}

    def add(self, attached: AttachedRecords, topic: Topic) -> None:
        """Encode attached records as its topic wants them.

        Raises:
            RecordTooLargeError: one exceeds ``max.message.bytes``.
            CommitError: they cannot be staged.
        """
        key = TopicPartition(attached.topic, attached.partition_of(topic.partitions))
        self._topics[attached.topic] = topic
        home = Home(None, topic.config.segment_bytes)
        self._staging.add(key, encode_attached(attached, topic), home)

    def finish(self) -> list[StagedRun]:
        """Close the staged files, and return the runs in them.

        Raises:
            CommitError: they cannot be made durable.
        """
        return [self._placed(run) for run in self._staging.finish()]

    def _placed(self, run: StagedRun) -> StagedRun:
        topic = self._topics[run.topic_partition.topic]
        return replace(run, partitions=topic.partitions, topic_key=topic.known_key)

    def discard(self) -> None:
        """Remove the staged files."""
        self._staging.discard()


def encode_attached(attached: AttachedRecords, topic: Topic) -> list[EncodedBatch]:
    """Encode attached records as their topic wants them.

    Raises:
        RecordTooLargeError: one exceeds ``max.message.bytes``.
    """
    batch_format = BatchFormat(topic.config)
    builder = batch_format.builder(attached.timestamp_ms)
    keys, values = zip(*attached.records, strict=True)
    count = len(attached.records)
    columns = RecordColumns.from_arrow(
        timestamps=np.full(count, attached.timestamp_ms, np.int64),
        key=pa.array(keys, pa.binary()),
        value=pa.array(values, pa.binary()),
    )
    batches = builder.append(columns, np.arange(count))
    last = builder.finish()
    return [batch_format.staged(each) for each in (*batches, *([last] if last else []))]
