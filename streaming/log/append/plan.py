"""Plan an append: which segment each batch goes to, before a byte is written.

The first two of Kafka's five steps for each append, which here is each batch (the others are in
``growth``):

1. **roll** to a new segment if the batch does not belong into the active one any more: it would
   exceed ``segment.bytes``; its timestamp is later than that of the segment's *first* batch by more
   than ``segment.ms`` less the segment's jitter; an index is full; or
2. the batch's last **offset relative** to the segment's base offset would not fit an int32.

A run that is alone in a file of its own may be **adopted**: the file becomes a segment, and nothing
is copied. The active segment is rolled before it. The rules above must let one segment hold the
whole run, and one of these must be true:

- The run does not fit into the active segment, so that a roll is due anyway.
- It has a quarter of ``segment.bytes`` or more. So segments stay few: at most eight times as many
  as Kafka would make.
- The log is new, and the run becomes its first segment.

Source: Kafka 4.1 ``LogSegment.shouldRoll``, ``UnifiedLog.maybeRoll``.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.errors import RecordTooLargeError
from kafkalog.streaming.log.append.growth import (
    Messages,
    SegmentGrowth,
    SegmentState,
    facts_of,
)
from kafkalog.streaming.log.indexes import OFFSET_ENTRY, TIME_ENTRY

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.append.growth import BatchFacts, SegmentAppend
    from kafkalog.streaming.options.topic_settings import LogConfig
    from kafkalog.streaming.records.batch import BatchTable

__all__ = ["ADOPTED_BYTES", "ADOPTED_SHARE", "SegmentPlanning", "plan_append", "roll_jitter_ms"]

_MAX_RELATIVE_OFFSET: Final = 2**31 - 1

ADOPTED_BYTES: Final = 1 << 20
"""Smaller runs are always copied, which costs no more."""

ADOPTED_SHARE: Final = 4
"""A run of this part of ``segment.bytes`` is adopted though it would fit into the active one."""


def roll_jitter_ms(topic_partition: TopicPartition, base_offset: int, config: LogConfig) -> int:
    """Return what is taken off ``segment.ms`` for one segment, so that not all roll at once.

    Kafka draws it at random when it opens a segment. Here a segment may be opened for each append.
    A new random number each time would drift to the earliest roll. So it is a hash of the segment's
    name.
    """
    if config.segment_jitter_ms == 0:
        return 0
    name = f"{topic_partition}/{base_offset}".encode()
    drawn = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")
    return drawn % min(config.segment_jitter_ms, config.segment_ms)


def plan_append(
    topic_partition: TopicPartition,
    config: LogConfig,
    state: SegmentState,
    runs: Sequence[BatchTable],
    *,
    creates: bool = False,
    adoptable: Collection[int] = (),
    now_ms: int,
) -> tuple[list[SegmentAppend], SegmentState]:
    """Place the batches of ``runs``, one after the other, after ``state``.

    Offsets in the tables are final and ascend. ``creates`` says that the segment of ``state`` does
    not exist yet; ``adoptable`` are the runs that are alone in a file of their own.

    Returns:
        what each segment gets, in order, and the state of the last one afterwards.

    Raises:
        RecordTooLargeError: a batch that exceeds ``segment.bytes`` alone.
    """
    planning = SegmentPlanning(topic_partition, config, now_ms)
    planning.begin(state, creates=creates)
    for run, table in enumerate(runs):
        if not (run in adoptable and planning.adopt(run, table)):
            planning.append(run, table)
    return planning.end()


class SegmentPlanning:
    """Fills segments, one after the other."""

    def __init__(self, topic_partition: TopicPartition, config: LogConfig, now_ms: int) -> None:
        self._topic_partition = topic_partition
        self._config = config
        self._now_ms = now_ms
        self._planned: list[SegmentAppend] = []
        self._growth: SegmentGrowth
        self._rules: _RollRules

    @property
    def sealed(self) -> list[SegmentAppend]:
        """What was filled so far: the segments that others follow."""
        return self._planned

    def begin(self, state: SegmentState, *, creates: bool) -> None:
        """Continue with a segment."""
        self._growth, self._rules = self._opened(state, creates=creates)

    def append(self, run: int, table: BatchTable) -> None:
        """Add the batches of a run, and roll where one does not belong to the segment."""
        if len(table) and table.magic[0] < 2:
            self._append_messages(run, table)
            return
        for batch in facts_of(table):
            self._append_one(run, batch)

    def _append_messages(self, run: int, table: BatchTable) -> None:
        """Add many small messages; those that neither roll nor are indexed are added together."""
        messages = Messages.of(table)
        row = 0
        while row < len(table):
            end = self._growth.end_without_entry(messages, row)
            end = self._rules.end_of_fitting(messages, row, end)
            if end - row > 1:
                self._growth.append_many(run, messages, row, end)
                row = end
            else:
                self._append_one(run, messages.facts(row))
                row += 1

    def _append_one(self, run: int, batch: BatchFacts) -> None:
        if self._rules.must_roll(batch):
            self._planned.append(self._growth.close(seals=True))
            base = _new_base_offset(batch, self._growth.state)
            self.begin(SegmentState.empty(base, self._now_ms), creates=True)
        self._growth.append(run, batch)

    def adopt(self, run: int, table: BatchTable) -> bool:
        """Let the file of a run be the next segment, if that is worth it and Kafka could do it."""
        before = self._growth
        first, *others = facts_of(table)
        base = _new_base_offset(first, before.state)
        replaces = before.is_unborn and base == before.state.base_offset
        if not (replaces or base > before.state.base_offset):
            return False
        if not self._is_worth_adopting(int(table.size.sum()), replaces=replaces):
            return False
        growth, rules = self._opened(
            SegmentState.empty(base, self._now_ms), creates=True, adopts=run
        )
        for batch in (first, *others):
            if rules.must_roll(batch):
                return False
            growth.append(run, batch)
        if not replaces:
            self._planned.append(before.close(seals=True))
        self._growth, self._rules = growth, rules
        return True

    def end(self) -> tuple[list[SegmentAppend], SegmentState]:
        """Return what each segment gets, and the state of the last one."""
        return [*self._planned, self._growth.close(seals=False)], self._growth.state

    def _is_worth_adopting(self, size: int, *, replaces: bool) -> bool:
        limit = self._config.segment_bytes
        fits = self._growth.state.size + size <= limit
        return size >= ADOPTED_BYTES and (replaces or not fits or size >= limit // ADOPTED_SHARE)

    def _opened(
        self, state: SegmentState, *, creates: bool, adopts: int | None = None
    ) -> tuple[SegmentGrowth, _RollRules]:
        growth = SegmentGrowth(
            state, self._config.index_interval_bytes, creates=creates, adopts=adopts
        )
        return growth, _RollRules(self._topic_partition, self._config, growth.state, self._now_ms)


def _new_base_offset(batch: BatchFacts, state: SegmentState) -> int:
    """Choose the base offset of the segment that starts with ``batch``.

    Before magic 2 the first offset is inside the message; Kafka takes the smallest possible one.
    """
    first = batch.base_offset if batch.magic >= 2 else batch.last_offset - _MAX_RELATIVE_OFFSET
    return max(first, state.next_offset)


class _RollRules:
    """Decides for one segment, whose growing ``state`` it watches, when another one follows."""

    def __init__(
        self, topic_partition: TopicPartition, config: LogConfig, state: SegmentState, now_ms: int
    ) -> None:
        self._topic_partition = topic_partition
        self._state = state
        self._age_ms = now_ms - state.created_ms
        self._segment_bytes = config.segment_bytes
        self._max_age_ms = config.max_segment_ms - roll_jitter_ms(
            topic_partition, state.base_offset, config
        )
        self._max_index_entries = config.segment_index_bytes // OFFSET_ENTRY.itemsize
        # The last slot is kept for the final entry.
        self._max_time_entries = config.segment_index_bytes // TIME_ENTRY.itemsize - 1

    def must_roll(self, batch: BatchFacts) -> bool:
        """Return whether a batch starts a new segment; after an empty one, only for its offset."""
        state = self._state
        if batch.size > self._segment_bytes:
            raise RecordTooLargeError(
                f"{self._topic_partition}: the batch at offset {batch.base_offset} has "
                f"{batch.size} bytes, more than a whole segment may have: segment.bytes is "
                f"{self._segment_bytes}"
            )
        if not 0 <= batch.last_offset - state.base_offset <= _MAX_RELATIVE_OFFSET:
            return True
        return state.size > 0 and (
            state.size > self._segment_bytes - batch.size
            or self._waited_ms(batch) > self._max_age_ms
            or state.index_entries >= self._max_index_entries
            or state.time_entries >= self._max_time_entries
        )

    def end_of_fitting(self, messages: Messages, first: int, end: int) -> int:
        """Return the end of the messages ``[first, end)`` that surely belong to the segment.

        Returns ``first`` if the segment is empty, full, or as old as the clock lets it become.
        """
        state = self._state
        if (
            state.size == 0
            or state.first_timestamp < 0 < self._age_ms - self._max_age_ms
            or state.index_entries >= self._max_index_entries
            or state.time_entries >= self._max_time_entries
        ):
            return first
        largest_end = int(messages.position[first]) + self._segment_bytes - state.size
        last_offset = state.base_offset + _MAX_RELATIVE_OFFSET
        end = min(
            end,
            int(np.searchsorted(messages.end_position[:end], largest_end, side="right")),
            int(np.searchsorted(messages.offset[:end], last_offset, side="right")),
        )
        if state.first_timestamp >= 0:
            too_young = messages.timestamp[first:end] > state.first_timestamp + self._max_age_ms
            end = first + int(too_young.argmax()) if too_young.any() else end
        return end

    def _waited_ms(self, batch: BatchFacts) -> int:
        if self._state.first_timestamp >= 0:
            return batch.max_timestamp - self._state.first_timestamp
        return self._age_ms
