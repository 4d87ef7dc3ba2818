"""The topics that a task has met, and the open batches of their partitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.compute as pc

from kafkalog.errors import RecordTooLargeError, RowError
from kafkalog.model import MAX_OFFSET, NO_TIMESTAMP, TimestampType, TopicPartition
from kafkalog.streaming.commit.staging.formats import BatchFormat
from kafkalog.streaming.sink.partitioner import KeyHashes, KeylessSpread

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kafkalog.streaming.options.topic_settings import LogConfig
    from kafkalog.streaming.records.arrow_buffers import Integers
    from kafkalog.streaming.records.open_batch import EncodedBatch, OpenBatch
    from kafkalog.streaming.sink.row_columns import Rows
    from kafkalog.streaming.sink.write_plan import WritePlan
    from kafkalog.streaming.store.topics import Topic

__all__ = ["OpenPartition", "OpenTopic"]

RUN_BYTES: Final = 1 << 20
"""Finished batches of a partition are given out once they come to this much."""


@dataclass(slots=True)
class OpenTopic:
    """A topic that a task has met, with its open partitions."""

    topic: Topic
    plan: WritePlan
    first: int
    opened: dict[int, OpenPartition] = field(default_factory=dict)
    spread: KeylessSpread = field(init=False)
    config: LogConfig = field(init=False)

    def __post_init__(self) -> None:
        round_robin = self.plan.options.partitioner == "round_robin"
        self.spread = KeylessSpread(self.topic.partitions, self.first, round_robin=round_robin)
        self.config = self.topic.config

    def partition(self, number: int) -> OpenPartition:
        """Return a partition's open batch, opening it if need be."""
        found = self.opened.get(number)
        if found is None:
            topic_partition = TopicPartition(self.topic.name, number)
            found = OpenPartition(topic_partition, self.config, self.plan.append_time_ms)
            self.opened[number] = found
        return found

    def place(self, rows: Rows, members: Integers, hashes: KeyHashes) -> NDArray[np.int32]:
        """Return int32[n] with the partitions of ``members``; the rest is not set."""
        placed = np.empty(len(rows), np.int32)
        left = self._place_explicit(rows, members, placed)
        if self.plan.options.partitioner == "murmur2":
            left = hashes.place(left, self.topic.partitions, placed)
        if len(left):
            self.spread.place(left, rows.sizes[left], placed)
        return placed

    def _place_explicit(self, rows: Rows, members: Integers, placed: NDArray[np.int32]) -> Integers:
        """Place the rows that name a partition; return the others."""
        if rows.partition is None:
            return members
        is_named: NDArray[np.bool_] = np.asarray(rows.partition.is_valid())[members]
        named = members[is_named]
        numbers = np.asarray(pc.fill_null(rows.partition, 0))
        outside = named[(numbers[named] < 0) | (numbers[named] >= self.topic.partitions)]
        if len(outside):
            raise RowError(
                f"row {outside[0]} names partition {numbers[outside[0]]} of topic "
                f"{self.topic.name!r}, which has {self.topic.partitions}"
                + ("" if self.topic.exists else " once made: set numPartitions, or drop the column")
            )
        placed[named] = numbers[named]
        unnamed: Integers = members[~is_named]
        return unnamed


class OpenPartition:
    """One partition's open batch, and the finished ones that are not written yet."""

    def __init__(
        self, topic_partition: TopicPartition, config: LogConfig, append_time_ms: int
    ) -> None:
        self.topic_partition = topic_partition
        self.segment_bytes = config.segment_bytes
        self._format = BatchFormat(config)
        self._needs_keys = "compact" in config.cleanup_policy
        self._append_time_ms = append_time_ms
        self._last_offset = -1
        self._largest: tuple[int, bytes | str | None] = (0, None)
        self._builder: OpenBatch | None = None
        self._stamp: int | None = None
        self._finished: list[EncodedBatch] = []
        self._finished_bytes = 0

    @property
    def open_bytes(self) -> int:
        """Memory it holds."""
        return self._finished_bytes + (self._builder.open_bytes if self._builder else 0)

    def append(self, rows: Rows, members: Integers) -> list[EncodedBatch]:
        """Append rows; return the finished batches once they are worth a write.

        Raises:
            RecordTooLargeError, RowError: a row that cannot become a record of this partition.
        """
        self._check_order(rows, members)
        if self._needs_keys:
            self._check_keys(rows, members)
        self._note_largest(rows, members)
        try:
            for some, stamp in _by_stamp(rows, members):
                self._keep(self._stamped(stamp).append(rows.records, some))
        except RecordTooLargeError as error:
            raise self._located(error) from error
        except RowError as error:
            raise RowError(f"{self.topic_partition}: {error}") from error
        return self._take() if self._finished_bytes >= RUN_BYTES else []

    def finish(self) -> list[EncodedBatch]:
        """Close the open batch, give up its memory, and return all that is finished."""
        try:
            self._close()
        except RecordTooLargeError as error:
            raise self._located(error) from error
        return self._take()

    def _stamped(self, stamp: int | None) -> OpenBatch:
        """Return the open batch of an append time; None stands for what the topic's setting is."""
        if stamp != self._stamp:
            self._close()
            self._stamp = stamp
        if self._builder is None:
            if stamp is None:
                self._builder = self._format.builder(self._append_time_ms)
            elif stamp == NO_TIMESTAMP:
                self._builder = self._format.builder(stamp, TimestampType.CREATE_TIME)
            else:
                self._builder = self._format.builder(stamp, TimestampType.LOG_APPEND_TIME)
        return self._builder

    def _close(self) -> None:
        if self._builder is not None:
            last = self._builder.finish()
            self._builder = None
            self._keep([last] if last else [])

    def _note_largest(self, rows: Rows, members: Integers) -> None:
        """Remember the key of the largest record, if any may be too large: it tells which."""
        if rows.largest <= self._format.max_message_bytes // 2:
            return
        sizes = rows.sizes[members]
        row, size = members[sizes.argmax()], int(sizes.max())
        if size > self._largest[0]:
            self._largest = (size, None if rows.key is None else rows.key[row].as_py())

    def _located(self, error: RecordTooLargeError) -> RecordTooLargeError:
        size, key = self._largest
        which = "a record without a key"
        if not size:
            which = "a record"
        elif key is not None:
            which = f"the record with key {key[:100]!r}"
        limit = self._format.limit
        return RecordTooLargeError(
            f"{self.topic_partition}: {which} is too large: {error}, which {limit} allows"
        )

    def _check_keys(self, rows: Rows, members: Integers) -> None:
        """Refuse rows without a key where logs are compacted, as Kafka does: they would be lost."""
        missing = None if rows.key is None else np.asarray(rows.key.is_null())
        keyless = members if missing is None else members[missing[members]]
        if len(keyless):
            raise RowError(
                f"{self.topic_partition}: row {keyless[0]} has no key, and the topic is compacted "
                "(cleanup.policy): compaction keeps one record for each key, and none without one"
            )

    def _check_order(self, rows: Rows, members: Integers) -> None:
        """Refuse offsets to keep that are not above those before them."""
        if not len(rows.records.offsets):
            return
        offsets = rows.records.offsets[members]
        before = np.concatenate(([self._last_offset], offsets[:-1]))
        too_low = np.flatnonzero(offsets <= before)
        if len(too_low):
            from kafkalog.streaming.commit.preserved_offsets import out_of_order  # noqa: PLC0415

            raise out_of_order(
                self.topic_partition, int(before[too_low[0]]), int(offsets[too_low[0]])
            )
        self._last_offset = int(offsets[-1])
        if self._last_offset == MAX_OFFSET:
            raise RowError(
                f"{self.topic_partition}: a row is to keep offset {MAX_OFFSET}, after which a log "
                "has no end"
            )

    def _keep(self, batches: list[EncodedBatch]) -> None:
        staged = [self._format.staged(batch) for batch in batches]
        self._finished += staged
        self._finished_bytes += sum(len(batch.data) for batch in staged)

    def _take(self) -> list[EncodedBatch]:
        taken, self._finished, self._finished_bytes = self._finished, [], 0
        return taken


def _by_stamp(rows: Rows, members: Integers) -> Iterator[tuple[Integers, int | None]]:
    """Yield the members that can share a batch: a batch has one append time, or none."""
    if rows.stamps is None:
        yield members, None
        return
    stamps = rows.stamps[members]
    bounds = [0, *(np.flatnonzero(np.diff(stamps)) + 1).tolist(), len(members)]
    for start, end in pairwise(bounds):
        yield members[start:end], int(stamps[start])
