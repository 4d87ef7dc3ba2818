"""Ends that a copy takes from its original, where they lie above its last record.

Markers, aborted records, and what compaction has removed have offsets, and a copy does not hold
them. At the end of a log nothing would tell that they were given: what is appended next would get
one of them. So a batch without records stands there. Its offset is the one before the end. A
cleaner of Kafka's leaves such batches, so brokers and clients know them.

It is staged like a batch of rows. So the intent names it, whoever takes a commit back knows it, and
the same rename publishes rows and ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kafkalog.errors import CommitError, UnknownTopicOrPartitionError
from kafkalog.model import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP
from kafkalog.streaming.commit.staging.staged_files import Home
from kafkalog.streaming.records.batch_layout import seal_batch
from kafkalog.streaming.records.open_batch import EncodedBatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.commit.staging.staged_files import Staging
    from kafkalog.streaming.commit.staging.staged_run import StagedRun
    from kafkalog.streaming.log.config import LogConfig
    from kafkalog.streaming.store.topics import Topic

__all__ = ["CopiedEnd", "StagedEnds", "check_there"]


class CopiedEnd(NamedTuple):
    """Where a log is to end after a commit, and where it must end before it, if that is known."""

    end: int
    begin: int | None = None


def check_there(key: TopicPartition, topic: Topic, *, has_folder: bool) -> None:
    """Refuse a partition that is not there: an end alone makes none.

    Raises:
        UnknownTopicOrPartitionError: it is not.
    """
    if topic.exists and has_folder:
        return
    there = f"the topic has {topic.partitions}" if topic.exists else "there is no such topic"
    raise UnknownTopicOrPartitionError(
        f"{key}: its log is to end where another one ends, and there is no such partition here: "
        f"{there}. Nothing was written"
    )


class StagedEnds:
    """The batches without records of one commit; belongs to one thread.

    :meth:`finish` or :meth:`discard` ends it.
    """

    def __init__(self, ends: Mapping[TopicPartition, CopiedEnd], staging: Staging) -> None:
        """Take the ends, and where new staged files go."""
        self._ends = ends
        self._staging = staging

    def __contains__(self, key: TopicPartition) -> bool:
        """Whether an end was given for a partition."""
        return key in self._ends

    def add(
        self, key: TopicPartition, runs: Sequence[StagedRun], log_end: int, config: LogConfig
    ) -> None:
        """Stage what one partition needs after ``runs``, which keep their offsets.

        ``log_end`` is where the log ends now.

        Raises:
            CommitError: it does not end where it should, or the rows go beyond the end; or nothing
                can be staged.
        """
        wanted = self._ends.get(key)
        if wanted is None:
            return
        if wanted.begin is not None and log_end != wanted.begin:
            raise CommitError(
                f"{key}: the copy ends at offset {log_end}, and what is to be appended begins at "
                f"{wanted.begin}: somebody else has written to it, or it was restored. Nothing was "
                "written. Make a new copy, with a new checkpoint, and let nobody else write to it"
            )
        reached = runs[-1].last_offset + 1 if runs else log_end
        if reached > wanted.end:
            raise CommitError(
                f"{key}: the copy reaches up to offset {reached}, beyond its original, which ends "
                f"at {wanted.end}: somebody else has written to it. Nothing was written"
            )
        if reached < wanted.end:
            home = Home(None, config.segment_bytes)
            self._staging.add(key, [_without_records(wanted.end - 1)], home)

    def finish(self) -> dict[TopicPartition, StagedRun]:
        """Close the new staged files and return the runs in them.

        Raises:
            CommitError: they cannot be made durable.
        """
        return {run.topic_partition: run for run in self._staging.finish()}

    def discard(self) -> None:
        """Remove the new staged files."""
        self._staging.discard()


def _without_records(offset: int) -> EncodedBatch:
    data = seal_batch(
        [],
        base_offset=offset,
        leader_epoch=NO_EPOCH,
        attributes=0,
        last_offset_delta=0,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_EPOCH,
        base_sequence=NO_SEQUENCE,
        count=0,
    )
    return EncodedBatch(data, 0, 0, NO_TIMESTAMP, NO_TIMESTAMP, first_offset=offset)
