"""Admission: how much one micro-batch takes, and how often an idle query asks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from kafkalog.errors import CorruptIndexError, UnknownTopicOrPartitionError
from kafkalog.files.deferred_signals import pause
from kafkalog.files.system import system
from kafkalog.streaming.log.read.slice_reader import open_planned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.partition_log import PartitionLog
    from kafkalog.streaming.log.read.slice_reader import SegmentSlice
    from kafkalog.streaming.log.segment import LogSegment
    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.source.end_offsets import EndOffsets
    from kafkalog.streaming.source.offsets import PartitionOffsets


__all__ = [
    "Backlog",
    "BatchLimits",
    "ByteLimit",
    "Cut",
    "IdlePacer",
    "TriggerGate",
    "find_backlog",
    "limit_offsets",
]


# ----------------------------------------------------------------------------------------------
# Admission: how much one micro-batch takes, by offsets and by bytes.


# ----------------------------------------------------------------------------------------------
# How many bytes of a partition wait to be read, and where a number of them ends.
#
# For limits in bytes. Sizes come from listings and offset indexes. Batch headers are read only if
# an index is missing, or if less is wanted than lies between two of its entries; and no further
# than the bytes that are wanted.


class Cut(NamedTuple):
    """A place between two batches: the next offset, and the bytes of the backlog before it."""

    offset: int
    size: int


class Backlog:
    """The slices that hold a range of offsets of one partition, in order."""

    def __init__(self, slices: Sequence[SegmentSlice], end_offset: int) -> None:
        self._slices = slices
        self._end_offset = end_offset
        self.size = sum(entry.size for entry in slices)
        """Bytes to read, at most."""

    def within(self, max_bytes: int) -> Cut | None:
        """Find a cut near ``max_bytes`` and not beyond; None if not even one batch fits."""
        if self.size <= max_bytes:
            return Cut(self._end_offset, self.size)
        found, done = None, 0
        for entry in self._slices:
            if done + entry.size > max_bytes:
                inner = _cut_slice(entry, max_bytes - done)
                return found if inner is None else Cut(inner.offset, done + inner.size)
            done += entry.size
            found = Cut(entry.end_offset, done)
        return found

    def first_batch(self) -> Cut:
        """Find the end of the first batch, however large it is."""
        entry = next((entry for entry in self._slices if entry.size), None)
        if entry is None:
            return Cut(self._end_offset, 0)
        segment = open_planned(entry)
        if segment is not None:
            with segment:
                for cut in _batch_ends(segment, entry):
                    return cut
        return Cut(entry.end_offset, entry.size)


def find_backlog(log: PartitionLog, start: int, end: int) -> Backlog:
    """Measure the offsets ``[start, end)``; what lies below the log start is not there to count.

    Raises:
        UnknownTopicOrPartitionError: the partition is gone.
    """
    return Backlog(log.slices(max(start, log.log_start_offset), end), end)


def _cut_slice(entry: SegmentSlice, max_bytes: int) -> Cut | None:
    segment = open_planned(entry)
    if segment is None:
        return None
    with segment:
        return _cut_by_index(segment, entry, max_bytes) or _cut_by_headers(
            segment, entry, max_bytes
        )


def _cut_by_index(segment: LogSegment, entry: SegmentSlice, max_bytes: int) -> Cut | None:
    index = segment.offset_index()
    if index is None:
        return None
    try:
        entries = index.between(entry.start_position, entry.start_position + max_bytes + 1)
    except CorruptIndexError:  # said already when the slice was found, or it has just shrunk
        return None
    entries = entries[(entries[:, 0] >= entry.start_offset) & (entries[:, 0] < entry.end_offset)]
    if len(entries) < 2:
        return None
    # An entry's offset is the last one of its batches, which end where the next entry points to.
    return Cut(int(entries[-2, 0]) + 1, int(entries[-1, 1]) - entry.start_position)


def _cut_by_headers(segment: LogSegment, entry: SegmentSlice, max_bytes: int) -> Cut | None:
    found = None
    for cut in _batch_ends(segment, entry):
        if cut.size > max_bytes:
            break
        found = cut
    return found


def _batch_ends(segment: LogSegment, entry: SegmentSlice) -> Iterator[Cut]:
    """Walk the batches of a slice, from the one on that holds its first offset."""
    begin = -1
    for header in segment.headers(entry.start_position):
        if header.last_offset < entry.start_offset:
            continue
        begin = header.position if begin < 0 else begin
        end_offset = min(header.last_offset + 1, entry.end_offset)
        yield Cut(end_offset, header.position + header.size - begin)
        if end_offset == entry.end_offset:
            return


# ----------------------------------------------------------------------------------------------
# How much one micro-batch takes: ``maxOffsetsPerTrigger``, ``minOffsetsPerTrigger``.
#
# Offsets are counted, as in Spark's Kafka source: gaps (control records, compacted offsets)
# count, though they give no rows.
#
# Source: Spark ``KafkaMicroBatchStream`` (``rateLimit``, ``delayBatch``).


def limit_offsets(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: int
) -> PartitionOffsets:
    """Split ``limit`` offsets over the partitions in proportion to what each has waiting.

    ``start`` has every partition of ``end``. A share below one offset is rounded up, so that no
    partition starves. Any other is rounded down. With many small partitions the sum may exceed the
    limit.
    """
    waiting = {partition: end[partition] - start[partition] for partition in end}
    total = sum(count for count in waiting.values() if count > 0)
    return {
        partition: start[partition] + min(count, _share(limit, count, total))
        if count > 0
        else end[partition]
        for partition, count in waiting.items()
    }


def _share(limit: int, count: int, total: int) -> int:
    # Spark's own order of floating point operations, so that both cut at the same offsets
    share = limit * (count / total)
    return math.ceil(share) if share < 1 else math.floor(share)


class TriggerGate:
    """Holds a batch back until ``minimum`` offsets wait, or ``max_delay_ms`` after the last one.

    The first batch of a run always passes. The time is kept in memory only, and starts again with
    each run.
    """

    def __init__(
        self,
        minimum: int,
        max_delay_ms: int,
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._minimum = minimum
        self._max_delay_s = max_delay_ms / 1000
        self._clock = clock or system.monotonic
        self._last_fired = -math.inf

    def opens(self, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> bool:
        """Whether a batch from ``start`` (which holds every partition) to ``end`` may run now."""
        now = self._clock()
        waiting = sum(max(offset - start[partition], 0) for partition, offset in end.items())
        if waiting < self._minimum and now - self._last_fired < self._max_delay_s:
            return False
        self._last_fired = now
        return True


# ----------------------------------------------------------------------------------------------
# How much one micro-batch takes, in bytes: ``maxBytesPerTrigger``.
#
# As in a broker's answer to a fetch: no more than the limit, but at least one batch. So a batch
# that is larger than the limit does not stop the query for ever.


class ByteLimit:
    """Splits ``limit`` bytes over the partitions in proportion to what each has waiting.

    Shares are rounded down to whole batches. The partition that has got nothing for the longest
    time comes first, with one batch even if its share is smaller: none starves beside busier ones.
    The order is kept in memory only.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._turn = 0
        self._served: dict[TopicPartition, int] = {}

    def cut(
        self,
        start: Mapping[TopicPartition, int],
        end: Mapping[TopicPartition, int],
        logs: EndOffsets,
    ) -> PartitionOffsets:
        """Return the ends of a batch from ``start``, which has every partition, up to ``end``."""
        backlogs = {
            key: backlog
            for key, offset in end.items()
            if offset > start[key] and (backlog := _backlog(logs, key, start[key], offset))
        }
        if sum(backlog.size for backlog in backlogs.values()) <= self._limit:
            return dict(end)
        cuts = self._take(backlogs)
        self._turn += 1
        self._served |= dict.fromkeys(cuts, self._turn)
        waiting = {key: start[key] for key in backlogs}
        return {**end, **waiting, **{key: cut.offset for key, cut in cuts.items()}}

    def _take(self, backlogs: Mapping[TopicPartition, Backlog]) -> dict[TopicPartition, Cut]:
        total = sum(backlog.size for backlog in backlogs.values())
        by_turn = sorted(backlogs, key=lambda key: self._served.get(key, 0))
        cuts: dict[TopicPartition, Cut] = {}
        left = self._limit
        for key in by_turn:
            share = self._limit * backlogs[key].size // total
            cut = backlogs[key].within(min(share, left))
            if cut is None and not cuts:
                cut = backlogs[key].first_batch()
            if cut is not None:
                cuts[key] = cut
                left = max(0, left - cut.size)
        for key in by_turn:
            if left and key not in cuts:
                cut = backlogs[key].first_batch()
                if cut.size <= left:
                    cuts[key] = cut
                    left -= cut.size
        return cuts


def _backlog(logs: EndOffsets, key: TopicPartition, start: int, end: int) -> Backlog | None:
    try:
        with logs.open(key) as log:
            return find_backlog(log, start, end)
    except UnknownTopicOrPartitionError:  # deleted since: planning says what is lost
        return None


# ----------------------------------------------------------------------------------------------
# How much one micro-batch takes, by all options that say so, in the order in which they count.


class BatchLimits:
    """The limits of one query; when it last ran and who was served are kept in memory only."""

    def __init__(
        self, gate: TriggerGate | None, most_offsets: int | None, byte_limit: ByteLimit | None
    ) -> None:
        self._gate = gate
        self._most_offsets = most_offsets
        self._byte_limit = byte_limit

    @classmethod
    def of(cls, options: ReadOptions) -> Self:
        """Take the limits that a query was given."""
        minimum, most_bytes = options.min_offsets_per_trigger, options.max_bytes_per_trigger
        return cls(
            None if minimum is None else TriggerGate(minimum, options.max_trigger_delay_ms),
            options.max_offsets_per_trigger,
            None if most_bytes is None else ByteLimit(most_bytes),
        )

    @property
    def may_hold_back(self) -> bool:
        """Whether a batch may have to wait though there is something to read."""
        return self._gate is not None

    def cut(
        self,
        begin: PartitionOffsets,
        ends: PartitionOffsets,
        logs: EndOffsets,
        *,
        may_hold_back: bool,
    ) -> PartitionOffsets | None:
        """Return the ends of a batch from ``begin``, which has every partition, up to ``ends``.

        None if the batch is to wait, as ``may_hold_back`` lets it.
        """
        if may_hold_back and self._gate is not None and not self._gate.opens(begin, ends):
            return None
        if self._most_offsets is not None:
            ends = limit_offsets(begin, ends, self._most_offsets)
        return ends if self._byte_limit is None else self._byte_limit.cut(begin, ends, logs)


# ----------------------------------------------------------------------------------------------
# Keep an idle query from using up a core by asking.
#
# Spark asks for the latest offset again 10 ms after each answer that there is nothing new. Each
# round costs it some 2 ms of a core, and more with thousands of partitions, whose offsets travel
# as text. A look of ours costs less. So the longer a query is idle, the more looks are taken
# before Spark gets its answer. If something new is found, the answer comes at once.


_SHARE: Final = 0.01
_LONGEST_REST_S: Final = 0.25

# The longer nothing came, the less it matters to see the next row a little later.
_IDLE_SHARE: Final = 0.05
_LONGEST_REST_WHEN_IDLE_S: Final = 1.0
_REST_S: Final = 0.1
_LONGEST_ROUND_S: Final = 0.5


class IdlePacer:
    """Paces the looks of a query, and says when Spark is to be told that they found nothing.

    Looks begin 100 times as far apart as one takes, so that they cost 1 % of the time. They are no
    further apart than a quarter of a second, or than a twentieth of the time that the query has
    been idle, up to a second; and no closer than that twentieth, up to a tenth of a second. So a
    look that costs next to nothing is taken 10 times a second once the query was idle for 2 s.
    Spark is answered after a twentieth of the idle time, half a second at the latest.

    Every answer is the result of a look, and true when it is given.
    """

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], object] | None = None,
        *,
        longest_rest_s: float = math.inf,
    ) -> None:
        """Start; ``longest_rest_s`` is ``storage.pollInterval`` of a log in a bucket.

        A look there waits for an answer and works next to nothing: that its rest is 100 times as
        long would say nothing.
        """
        self._longest_rest_s = longest_rest_s
        self._clock = clock or system.monotonic
        self._sleep = sleep or pause
        self._asked = 0.0
        self._began = 0.0
        self._not_before = 0.0
        self._idle_since: float | None = None

    def batch_ran(self) -> None:
        """Start again: the query is not idle, since one of its sources had rows."""
        self._idle_since = None

    def asked(self) -> None:
        """Begin a round: Spark asks."""
        self._asked = self._clock()

    def before_look(self) -> None:
        """Rest until the next look is due."""
        delay = self._not_before - self._clock()
        if delay > 0:
            self._sleep(delay)
        self._began = self._clock()

    def after_look(self, *, idle: bool) -> bool:
        """Take the time that the look took; ``idle`` if there is nothing to tell.

        Returns:
            whether to look again before Spark is answered.
        """
        now = self._clock()
        if not idle:
            self._idle_since = None
            self._not_before = now
            return False
        if self._idle_since is None:
            self._idle_since = now
        of_idle = (now - self._idle_since) * _IDLE_SHARE
        longest = max(_LONGEST_REST_S, min(of_idle, _LONGEST_REST_WHEN_IDLE_S))
        longest = min(longest, self._longest_rest_s)
        rest = max(min((now - self._began) / _SHARE, longest), min(of_idle, _REST_S))
        self._not_before = self._began + rest
        return self._not_before < self._asked + min(of_idle, _LONGEST_ROUND_S)
