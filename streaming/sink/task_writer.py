"""What a task does with its rows: choose partitions, encode batches, stage them.

Rows are grouped with arrays, never one by one. Memory is bounded by a budget over the open batches
of all partitions: when they exceed it, the largest ones are finished first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafkalog.errors import LogDirectoryError, RowError
from kafkalog.files.deferred_signals import check_interrupt
from kafkalog.files.system import system
from kafkalog.files.timeouts import run_with_timeout
from kafkalog.streaming.commit.row_digest import RowDigest, row_hashes
from kafkalog.streaming.commit.staging.on_nodes import StagingOnNodes
from kafkalog.streaming.commit.staging.staged_files import Home, StagingArea
from kafkalog.streaming.commit.staging.staged_run import TaskOutput
from kafkalog.streaming.sink.open_topic import OpenPartition, OpenTopic
from kafkalog.streaming.sink.partitioner import KeyHashes, groups_of
from kafkalog.streaming.sink.row_columns import Rows
from kafkalog.streaming.store.topics import Topic, TopicCatalog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kafkalog.streaming.commit.staging.staged_run import StagedRun
    from kafkalog.streaming.records.arrow_buffers import Integers
    from kafkalog.streaming.records.builder import EncodedBatch
    from kafkalog.streaming.sink.write_plan import WritePlan
    from kafkalog.streaming.store.identity import BatchIdentity

    Staging = StagingArea | StagingOnNodes

__all__ = ["TaskWriter"]

BUDGET_BYTES: Final = 64 << 20
"""Memory for the open batches of all partitions of a task."""

PIECE_ROWS: Final = 32_768
"""How many rows are taken at once: each takes 60 bytes beside its own, and a program may hand over
millions."""

STRETCH_ROWS: Final = 4096
"""How many rows are grouped at once for each partition."""


class TaskWriter:
    """Stages the rows of one attempt of one task; ``number`` is the task's among its batch's."""

    def __init__(
        self, plan: WritePlan, identity: BatchIdentity, *, number: int = 0, query_id: str = ""
    ) -> None:
        """Look into the log directories.

        Raises:
            LogDirectoryError: they are not the ones that the driver sees.
        """
        self._plan = plan
        self._identity = identity
        self._query_id = query_id
        self._number = number
        self._limit_ms = plan.options.policy.lag_ms
        self._catalog = self._look()
        if self._catalog.set_id != plan.set_id:
            raise LogDirectoryError(
                f"the log directories {', '.join(plan.options.paths)} are not the same here as on "
                f"the driver: they belong to set {self._catalog.set_id or 'none'}, the driver's to "
                f"{plan.set_id}. They must be mounted on every machine that runs tasks"
            )
        self._staging: Staging | None = None
        """Where rows are staged, from the first ones on."""
        self._topics: dict[str, OpenTopic] = {}
        self._digest = RowDigest() if plan.digests_rows else None
        self._digests: dict[str, RowDigest] = {}

    def _look(self) -> TopicCatalog:
        def look() -> TopicCatalog:
            return TopicCatalog.load(self._plan.directories, self._plan.options.topic_policy)

        return run_with_timeout(look, self._plan.directories, self._limit_ms)

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
            log_dir = self._catalog.log_dir_of(key)
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
            first = self._identity.turn + self._number
            found = self._topics[name] = OpenTopic(topic, self._plan, first)
        return found

    def _described(self, name: str) -> Topic:
        begun = False

        def described() -> Topic:
            nonlocal begun
            if begun:  # what was found lies on a node that stalls
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
