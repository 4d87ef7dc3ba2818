"""What a task does with its rows: choose partitions, encode batches, stage them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafkalog.errors import LogDirectoryError, RecordTooLargeError, RowError
from kafkalog.files.deferred_signals import check_interrupt
from kafkalog.files.system import remembered, system
from kafkalog.files.timeouts import run_with_timeout
from kafkalog.model import MAX_OFFSET, NO_TIMESTAMP, TimestampType, TopicPartition, many
from kafkalog.streaming.commit.staging.formats import BatchFormat
from kafkalog.streaming.commit.staging.staged_files import Home, StagingArea, StagingOnNodes
from kafkalog.streaming.commit.staging.staged_run import RowDigest, TaskOutput, row_hashes
from kafkalog.streaming.sink.partition_kernels import KeyHashes, KeylessSpread, groups_of
from kafkalog.streaming.sink.row_columns import Rows
from kafkalog.streaming.store.topics import Topic, TopicCatalog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from kafkalog.streaming.commit.staging.in_objects import StagingInObjects
    from kafkalog.streaming.commit.staging.staged_run import StagedRun
    from kafkalog.streaming.options.topic_settings import LogConfig
    from kafkalog.streaming.records.arrow_buffers import Integers
    from kafkalog.streaming.records.builder import EncodedBatch, OpenBatch
    from kafkalog.streaming.sink.write_options import WritePlan
    from kafkalog.streaming.store.identity import BatchIdentity

    Staging = StagingArea | StagingInObjects | StagingOnNodes

__all__ = ["OpenPartition", "OpenTopic", "TaskWriter"]


# ----------------------------------------------------------------------------------------------
# The topics that a task has met, and the open batches of their partitions.


RUN_BYTES: Final = 1 << 20
"""Finished batches of a partition are given out once they come to this much."""


@dataclass(slots=True)
class OpenTopic:
    """A topic that a task has met, with its open partitions."""

    topic: Topic
    plan: WritePlan
    spread: KeylessSpread
    opened: dict[int, OpenPartition] = field(default_factory=dict)
    config: LogConfig = field(init=False)

    def __post_init__(self) -> None:
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

    def _has_partitions(self) -> str:
        count = many(self.topic.partitions, "partition")
        if self.topic.exists:
            return f"has {count}: give it more by kafkalog topic alter"
        return f"will be created with {count}: set the option numPartitions"

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
                f"{self.topic.name!r}, which {self._has_partitions()}, or write without the "
                'column: rows.select("key", "value")'
            )
        placed[named] = numbers[named]
        unnamed: Integers = members[~is_named]
        return unnamed


class _Spreads:
    """Where the last appends without an id have ended, by set, topic and partitioner."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], KeylessSpread] = {}

    def of(self, which: tuple[str, str, str], new: KeylessSpread) -> KeylessSpread:
        """Return the one that is to go on; the new one where the partitions are others."""
        found = self._found.pop(which, new)
        self._found[which] = found if found.partitions == new.partitions else new
        while len(self._found) > _MOST_SPREADS:
            self._found.pop(next(iter(self._found)), None)
        return self._found.get(which, new)


_MOST_SPREADS: Final = 1000


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


# ----------------------------------------------------------------------------------------------
# What a task does with its rows: choose partitions, encode batches, stage them.
#
# Rows are grouped with arrays, never one by one. Memory is bounded by a budget over the open
# batches of all partitions: when they exceed it, the largest ones are finished first.


BUDGET_BYTES: Final = 64 << 20
"""Memory for the open batches of all partitions of a task."""

PIECE_ROWS: Final = 32_768
"""How many rows are taken at once: each takes 60 bytes beside its own, and a program may hand over
millions."""

STRETCH_ROWS: Final = 4096
"""How many rows are grouped at once for each partition."""


class TaskWriter:
    """Stages the rows of one attempt of one task; ``number`` is the task's among its batch's.

    With ``continues`` rows without a key go on where the last such append of this process ended.
    """

    def __init__(
        self,
        plan: WritePlan,
        identity: BatchIdentity,
        *,
        number: int = 0,
        query_id: str = "",
        continues: bool = False,
    ) -> None:
        """Look into the log directories.

        Raises:
            LogDirectoryError: they are not the ones that the driver sees.
        """
        self._plan = plan
        self._identity = identity
        self._query_id = query_id
        self._number = number
        self._continues = continues
        self._limit_ms = plan.options.policy.lag_ms
        self._known = {topic.name: topic for topic in plan.topics}
        self._catalog = None if self._known else self._look()
        self._staging: Staging | None = None
        """Where rows are staged, from the first ones on."""
        self._topics: dict[str, OpenTopic] = {}
        self._digest = RowDigest() if plan.digests_rows else None
        self._digests: dict[str, RowDigest] = {}

    def _look(self) -> TopicCatalog:
        if self._plan.bucket is not None:
            self._plan.bucket.open_store().show(self._plan.newest, self._plan.set_id)

        def look() -> TopicCatalog:
            return TopicCatalog.load(self._plan.directories, self._plan.options.topic_policy)

        found = run_with_timeout(look, self._plan.directories, self._limit_ms)
        if found.set_id != self._plan.set_id:
            raise LogDirectoryError(
                f"the log directories {', '.join(self._plan.options.paths)} are not the same here "
                f"as on the driver: they belong to set {found.set_id or 'none'}, the driver's to "
                f"{self._plan.set_id}. They must be mounted on every machine that runs tasks"
            )
        return found

    def write(self, batches: Iterable[pa.RecordBatch]) -> TaskOutput:
        """Stage all rows; what was staged is removed again if anything fails.

        Raises:
            RowError: a row that cannot become a record, or a topic or partition it may not go to.
            RecordTooLargeError: a record beyond ``max.message.bytes``.
            CommitError: the staged files cannot be written.
        """
        try:
            for batch in batches:
                self.add(batch)
            return self.finish()
        except BaseException:
            self.discard()
            raise

    def add(self, batch: pa.RecordBatch) -> None:
        """Stage rows; who adds them by himself calls :meth:`finish` or :meth:`discard`.

        Raises:
            RowError, RecordTooLargeError, CommitError: as :meth:`write`.
        """
        if batch.num_rows:
            self._add(batch, self._staged())

    def finish(self) -> TaskOutput:
        """Return what was staged, which is left to the commit from then on.

        Raises:
            RecordTooLargeError, CommitError: as :meth:`write`.
        """
        staging = self._staged()
        for partition in self._open_partitions():
            self._write_out(partition, partition.finish(), staging)
        runs = tuple(self._counted(run) for run in staging.finish())
        self._staging = None
        digests = tuple(self._digests.items())
        nonce = None if self._plan.planned is None else self._plan.planned.nonce
        return TaskOutput(self._identity, self._query_id, runs, self._digest, digests, nonce)

    def discard(self) -> None:
        """Remove what was staged, unless it was left to the commit."""
        staging, self._staging = self._staging, None
        if staging is not None:
            staging.discard()

    def _staged(self) -> Staging:
        if self._staging is None:
            self._staging = self._make_staging()
        return self._staging

    def _make_staging(self) -> Staging:
        if self._plan.bucket is not None:
            from kafkalog.streaming.commit.staging.in_objects import (  # noqa: PLC0415
                StagingInObjects,
            )

            return StagingInObjects(self._plan.bucket, self._plan.set_id, self._plan.newest)
        folders, nodes = self._plan.directories, self._plan.data_nodes
        prefix, durable = self._identity.staged_prefix, self._plan.options.flush == "commit"
        if len(nodes) > 1:
            return StagingOnNodes(
                folders,
                nodes,
                self._number,
                prefix,
                durable=durable,
                limit_ms=self._limit_ms,
            )
        return StagingArea(folders, self._number % len(folders), prefix, durable=durable)

    def _counted(self, run: StagedRun) -> StagedRun:
        """Note where rows were placed, which a commit compares with what is there by then."""
        topic = self._topics[run.topic_partition.topic].topic
        return replace(run, partitions=topic.partitions, topic_key=topic.known_key)

    def _add(self, batch: pa.RecordBatch, staging: Staging) -> None:
        now_ms = system.time_ns() // 1_000_000
        for first in range(0, batch.num_rows, PIECE_ROWS):
            check_interrupt()
            try:
                self._add_piece(batch.slice(first, PIECE_ROWS), now_ms, staging)
            except RowError as error:
                if not first:
                    raise
                raise RowError(
                    f"{error} (rows are counted from row {first} of what came)"
                ) from error

    def _add_piece(self, batch: pa.RecordBatch, now_ms: int, staging: Staging) -> None:
        rows = Rows.of(
            batch,
            now_ms=now_ms,
            topic_given=self._plan.options.topic is not None,
            keeps_offsets=self._plan.options.preserve_offsets,
        )
        if self._digest is not None:
            self._digest = RowDigest.sum([self._digest, RowDigest.of(batch)])
        by_topic = list(self._by_topic(rows))
        if self._identity.is_versioned:
            self._digest_each(batch, by_topic)
        for topic, partition, members in self._placed(rows, by_topic):
            opened = topic.partition(partition)
            full = opened.append(rows, members)
            if full:
                self._write_out(opened, full, staging)
        self._keep_to_budget(staging)

    def _digest_each(
        self, batch: pa.RecordBatch, by_topic: Sequence[tuple[OpenTopic, Integers]]
    ) -> None:
        hashes = row_hashes(batch, with_topic=False)
        for opened, members in by_topic:
            name = opened.topic.name
            before = self._digests.get(name, RowDigest())
            self._digests[name] = RowDigest.sum([before, RowDigest.of_hashes(hashes[members])])

    def _write_out(
        self, partition: OpenPartition, batches: list[EncodedBatch], staging: Staging
    ) -> None:
        if batches:
            key = partition.topic_partition
            log_dir = None if self._catalog is None else self._catalog.log_dir_of(key)
            home = None if log_dir is None else self._plan.directories.index(log_dir)
            staging.add(key, batches, Home(home, partition.segment_bytes))

    def _keep_to_budget(self, staging: Staging) -> None:
        opened = list(self._open_partitions())
        used = sum(partition.open_bytes for partition in opened)
        if used <= BUDGET_BYTES:
            return
        for partition in sorted(opened, key=lambda each: each.open_bytes, reverse=True):
            used -= partition.open_bytes
            self._write_out(partition, partition.finish(), staging)
            if used <= BUDGET_BYTES // 2:
                break

    def _open_partitions(self) -> Iterator[OpenPartition]:
        for topic in self._topics.values():
            yield from topic.opened.values()

    # Placing rows

    def _placed(
        self, rows: Rows, by_topic: Iterable[tuple[OpenTopic, Integers]]
    ) -> Iterator[tuple[OpenTopic, int, Integers]]:
        """Group rows by topic and partition: int64[m] of ascending rows for each.

        A long batch comes in stretches, so that its rows are still in a core's cache when the rows
        of the next partition beside them are encoded.
        """
        hashes = KeyHashes(rows.records.key, len(rows))
        for topic, members in by_topic:
            placed = topic.place(rows, members, hashes)
            partitions = topic.topic.partitions
            stretch = STRETCH_ROWS * partitions
            for first in range(0, len(members), stretch):
                some = members[first : first + stretch]
                for partition, group in groups_of(some, placed, partitions):
                    yield topic, partition, group

    def _by_topic(self, rows: Rows) -> Iterator[tuple[OpenTopic, Integers]]:
        if rows.topic is None:
            yield self._topic(str(self._plan.options.topic)), np.arange(len(rows))
            return
        if rows.topic.null_count:
            row = int(np.flatnonzero(np.asarray(rows.topic.is_null()))[0])
            raise RowError(
                f"[KAFKA_NULL_TOPIC_IN_DATA] row {row} has null in column 'topic', and there is no "
                "option 'topic'"
            )
        encoded = pc.dictionary_encode(rows.topic)
        names = encoded.dictionary.to_pylist()
        for code, group in groups_of(np.arange(len(rows)), np.asarray(encoded.indices), len(names)):
            yield self._topic(names[code]), group

    def _topic(self, name: str) -> OpenTopic:
        found = self._topics.get(name)
        if found is None:
            topic = self._described(name)
            self._check_new_topics(topic)
            found = self._topics[name] = OpenTopic(topic, self._plan, self._spread(topic))
        return found

    def _spread(self, topic: Topic) -> KeylessSpread:
        """Return what places rows without a key: it begins where the batch's number says."""
        options = self._plan.options
        new = KeylessSpread(
            topic.partitions,
            self._identity.turn + self._number,
            round_robin=options.partitioner == "round_robin",
        )
        if not self._continues:
            return new
        return remembered(_Spreads).of((self._plan.set_id, topic.name, options.partitioner), new)

    def _described(self, name: str) -> Topic:
        if name in self._known:
            return self._known[name]
        begun = False

        def described() -> Topic:
            nonlocal begun
            if begun or self._catalog is None:  # what was found may lie on a node that stalls
                self._catalog = self._look()
            begun = True
            return self._catalog.topic(name)

        return run_with_timeout(described, self._plan.directories, self._limit_ms)

    def _check_new_topics(self, topic: Topic) -> None:
        options = self._plan.options
        made = sum(not opened.topic.exists for opened in self._topics.values())
        if not topic.exists and options.topic is None and made >= options.max_new_topics:
            raise RowError(
                f"column 'topic' names more than {options.max_new_topics} topics that do not "
                f"exist, the last one {topic.name!r}. The option maxNewTopics permits more"
            )
