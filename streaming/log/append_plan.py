"""Which segment each batch goes to when it is appended, computed before a byte is written.

The first two of Kafka's five steps for each append, which here is each batch (the others are in
``segment_growth``):

1. **roll** to a new segment if the batch does not belong into the active one any more: it would
   exceed ``segment.bytes``; it is younger than the segment's *first* batch by more than
   ``segment.ms`` less the segment's jitter, by the timestamps of both; an index is full; or
2. the batch's last **offset relative** to the segment's base offset would not fit an int32.

Source: Kafka 4.1 ``LogSegment.shouldRoll``, ``UnifiedLog.maybeRoll``.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from kafkalog.errors import RecordTooLargeError
from kafkalog.streaming.log.offset_index import OFFSET_ENTRY
from kafkalog.streaming.log.segment_growth import SegmentGrowth, SegmentState, facts_of
from kafkalog.streaming.log.time_index import TIME_ENTRY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.config import LogConfig
    from kafkalog.streaming.log.segment_growth import BatchFacts, SegmentAppend
    from kafkalog.streaming.records.batch import BatchTable

__all__ = ["plan_append", "roll_jitter_ms"]

_MAX_RELATIVE_OFFSET: Final = 2**31 - 1


def roll_jitter_ms(topic_partition: TopicPartition, base_offset: int, config: LogConfig) -> int:
    """Give what is taken off ``segment.ms`` for one segment, so that not all roll at once.

    Kafka draws it when it opens a segment. Here a segment may be opened for each append, and drawn
    anew each time it would drift to the earliest roll: so it is a hash of the segment's name.
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
    now_ms: int,
) -> tuple[list[SegmentAppend], SegmentState]:
    """Place the batches of ``runs``, one after the other, behind ``state``.

    Offsets in the tables are final and ascend. ``creates`` says that the segment of ``state`` does
    not exist yet.

    Returns:
        what each segment gets, in order, and the state of the last one afterwards.

    Raises:
        RecordTooLargeError: a batch that exceeds ``segment.bytes`` alone.
    """
    growth = SegmentGrowth(state, config.index_interval_bytes, creates=creates)
    rules = _RollRules(topic_partition, config, growth.state, now_ms)
    planned = []
    for run, table in enumerate(runs):
        for batch in facts_of(table):
            if rules.must_roll(batch):
                planned.append(growth.close(seals=True))
                fresh = SegmentState.empty(_new_base_offset(batch, growth.state), now_ms)
                growth = SegmentGrowth(fresh, config.index_interval_bytes, creates=True)
                rules = _RollRules(topic_partition, config, growth.state, now_ms)
            growth.append(run, batch)
    planned.append(growth.close(seals=False))
    return planned, growth.state


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
        """Tell whether a batch starts a new segment; an empty one it leaves only for its offset."""
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

    def _waited_ms(self, batch: BatchFacts) -> int:
        if self._state.first_timestamp >= 0:
            return batch.max_timestamp - self._state.first_timestamp
        return self._age_ms
