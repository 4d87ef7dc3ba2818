"""Numbers about partitions: counted by batch headers, over time, by size, by codec."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kafkalog.jobs.inspection.log_dirs import partitions_of, source_options
from kafkalog.jobs.inspection.records import read_in_threads
from kafkalog.model import NO_TIMESTAMP, TopicSelection
from kafkalog.streaming.log.files import LOG, parse_base_offset
from kafkalog.streaming.options.declaring import warn_ignored
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.records.batch_rows import BatchHeaders, codec_name
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.loss import with_remedy
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.records.arrow_buffers import Integers
    from kafkalog.streaming.records.batch import BatchTable
    from kafkalog.streaming.records.batch_rows import DescribedBatches
    from kafkalog.streaming.source.planner import LogSplit
    from kafkalog.streaming.store.ends.tracker import LogEndTracker


__all__ = [
    "Measured",
    "PartitionCount",
    "Timeline",
    "count_partitions",
    "measure",
    "read_batches",
    "rows_of",
    "summed",
    "with_one_width",
]


# ----------------------------------------------------------------------------------------------
# Count what is in partitions, by the headers of record batches.


Row = dict[str, Any]


@dataclass(slots=True)
class PartitionCount:
    """What is counted of a partition, by the headers of its batches."""

    records: int = 0
    markers: int = 0
    batches: int = 0
    bytes: int = 0
    data_bytes: int = 0
    first: int | None = None
    last: int | None = None
    codecs: Counter[str] = field(default_factory=Counter)
    producers: set[int] = field(default_factory=set)

    def add(self, batches: DescribedBatches) -> None:
        """Take batches of the partition."""
        table, counts = batches.table, batches.records
        self.batches += len(table)
        self.bytes += int(table.size.sum())
        is_control = table.is_control
        if is_control.any():
            table, counts = table[~is_control], counts[~is_control]
            self.markers += int(is_control.sum())
        if not len(table):
            return
        self.data_bytes += int(table.size.sum())
        self.records += int(counts.sum())
        self.codecs.update(map(codec_name, table.codec.tolist()))
        self._add_times(table)
        producers = table.producer_id
        self.producers.update(producers[producers >= 0].tolist())

    def _add_times(self, table: BatchTable) -> None:
        # records may be earlier than the smallest base timestamp, as in any log of Kafka's
        for stamps in (table.base_timestamp, table.max_timestamp):
            known = stamps[stamps != NO_TIMESTAMP]
            if len(known):
                first, last = int(known.min()), int(known.max())
                self.first = first if self.first is None else min(self.first, first)
                self.last = last if self.last is None else max(self.last, last)

    def row(self, key: TopicPartition) -> Row:
        """Return it as a row of plain values."""
        return {
            **key._asdict(),
            "records": self.records,
            "batches": self.batches,
            "bytes": self.bytes,
            "recordsPerBatch": round(self.records / max(1, self.batches - self.markers), 1),
            "bytesPerBatch": self.data_bytes // max(1, self.batches - self.markers),
            "firstTimestamp": self.first,
            "lastTimestamp": self.last,
            "codecs": dict(sorted(self.codecs.items())),
            "producers": len(self.producers),
            "markers": self.markers,
        }


def count_partitions(
    paths: Sequence[str],
    topics: TopicSelection,
    options: Mapping[str, str],
    told: Callable[[int, int], object],
) -> list[Row]:
    """Return a row for each partition of topics; ``told`` as for reading.

    Raises:
        UnknownTopicOrPartitionError: there is no such topic.
        KafkaLogError: directories or logs that cannot be read.
    """
    counts = {key: PartitionCount() for key in sorted(partitions_of(paths, topics))}
    for key, batches in read_batches(paths, counts, options, told):
        counts[key].add(batches)
    return [count.row(key) for key, count in counts.items()]


def read_batches(
    paths: Sequence[str],
    partitions: Collection[TopicPartition],
    options: Mapping[str, str],
    told: Callable[[int, int], object],
    seen: LogEndTracker | None = None,
) -> Iterator[tuple[TopicPartition, DescribedBatches]]:
    """Yield the batches of ``view=batches`` of the topics of partitions, some of one at a time.

    What a tracker has ``seen`` of their logs is not read again, and it is not asked any more.

    Raises:
        KafkaLogError: directories or logs that cannot be read.
    """
    if not partitions:
        return
    topics = ",".join(sorted({key.topic for key in partitions}))
    given = {**source_options(paths), "subscribe": topics, **options}
    parsed = ReadOptions.parse({**given, "view": "batches"})
    wanted = ReadOptions.parse({**given, "view": "records"})
    warn_ignored(parsed.ignored)
    with with_remedy(parsed):  # of records: batches would begin below the log start
        splits = plan_batch(wanted, seen=seen)
    firsts: dict[TopicPartition, LogSplit] = {}
    for split in splits:
        firsts.setdefault(split.topic_partition, split)

    def read(split: LogSplit) -> list[tuple[TopicPartition, DescribedBatches]]:
        headers = BatchHeaders(max_decompressed_bytes=parsed.max_decompressed_bytes)
        for _ in read_split(split, parsed, None, lambda _: headers):
            pass  # no row comes of it
        return [(split.topic_partition, each) for each in headers.found]

    for key, batches in read_in_threads(splits, read, told):
        yield key, _from_start(firsts[key], batches, wanted)


def _from_start(
    first: LogSplit, batches: DescribedBatches, options: ReadOptions
) -> DescribedBatches:
    """Return batches with the counts of their records from the partition's first split on.

    The first batch of a partition may begin below the log start, as after DeleteRecords.
    """
    is_below = batches.is_opened & (batches.base_offset < first.slices[0].start_offset)
    if not is_below.any():
        return batches
    counts = batches.records.copy()
    for row in np.flatnonzero(is_below & ~batches.table.is_control).tolist():
        base, last = int(batches.base_offset[row]), int(batches.table.last_offset[row])
        counts[row] = _count_from_start(first, base, last, int(counts[row]), options)
    return batches._replace(records=counts)


def _count_from_start(
    first: LogSplit, base: int, last: int, count: int, options: ReadOptions
) -> int:
    """Return how many records of a batch lie in the first split."""
    whole = first.slices[0]
    if count == last - base + 1:  # else a cleaner took some: only the records tell
        return max(0, last - whole.start_offset + 1)
    batch = replace(first, slices=(whole._replace(end_offset=last + 1),))
    return sum(len(rows) for rows in read_split(batch, options, RowSchema.named(["offset"])))


# ----------------------------------------------------------------------------------------------
# What there is to plot of partitions: over time, by segment, by size of batch and by codec.
#
# It is measured by the headers of record batches, so nothing is decompressed.


_WIDTHS: Final = (
    *(1_000, 10_000, 60_000, 600_000, 3_600_000, 21_600_000),
    *(86_400_000, 864_000_000, 8_640_000_000, 86_400_000_000, 864_000_000_000),
)
"""Of the spans of a timeline, in ms: each is a multiple of the one before."""
_LARGEST: Final = _WIDTHS[-1]


@dataclass(slots=True)
class Timeline:
    """Records and bytes of each span of time, of as many spans as are given at most.

    Spans become wider as there are more of them. ``spans`` are numbered from 1970 on; what has no
    timestamp is in ``untimed``.
    """

    most: int
    width_ms: int = _WIDTHS[0]
    spans: dict[int, list[int]] = field(default_factory=dict)
    untimed: list[int] = field(default_factory=lambda: [0, 0])

    def add(self, timestamps: Any, records: Any, sizes: Any) -> None:  # noqa: ANN401
        """Take batches by their largest timestamps (ms), records and bytes: int64[n] each."""
        if len(timestamps) <= _FEW_BATCHES:
            self._add_one_by_one(timestamps.tolist(), records.tolist(), sizes.tolist())
            return
        is_timed = timestamps >= 0
        self.untimed[0] += int(records[~is_timed].sum())
        self.untimed[1] += int(sizes[~is_timed].sum())
        if not is_timed.any():
            return
        numbers, rows = np.unique(timestamps[is_timed] // self.width_ms, return_inverse=True)
        totals = np.zeros((2, len(numbers)), np.int64)
        np.add.at(totals[0], rows, records[is_timed])
        np.add.at(totals[1], rows, sizes[is_timed])
        self._add(zip(numbers.tolist(), *totals.tolist(), strict=True))

    def _add_one_by_one(self, stamps: list[int], records: list[int], sizes: list[int]) -> None:
        timed = []
        for stamp, count, size in zip(stamps, records, sizes, strict=True):
            if stamp < 0:
                _add(self.untimed, (count, size))
            else:
                timed.append((stamp // self.width_ms, count, size))
        self._add(timed)

    def widened(self, width_ms: int) -> Timeline:
        """Return it with spans at least so wide."""
        wider = Timeline(self.most, max(width_ms, self.width_ms), {}, self.untimed)
        factor = wider.width_ms // self.width_ms
        spans = self.spans.items()
        wider._add((number // factor, records, size) for number, (records, size) in spans)
        return wider

    def _add(self, found: Iterable[tuple[int, int, int]]) -> None:
        for number, records, size in found:
            _add(self.spans.setdefault(number, [0, 0]), (records, size))
        while len(self.spans) > self.most and self.width_ms < _LARGEST:
            wider = self.widened(_WIDTHS[_WIDTHS.index(self.width_ms) + 1])
            self.spans, self.width_ms = wider.spans, wider.width_ms


@dataclass(slots=True)
class _Segment:
    bytes: int = 0
    batches: int = 0
    last_timestamp: int = -1


@dataclass(slots=True)
class Measured:
    """What was found of a partition. Sizes are bytes, times ms.

    ``segments`` are by base offset, ``batch_sizes`` and ``codecs`` have batches and bytes:
    the first by the power of two that a batch has at least, the second by the codec's name.
    """

    timeline: Timeline
    records: int = 0
    bytes: int = 0
    segments: dict[int, _Segment] = field(default_factory=lambda: defaultdict(_Segment))
    batch_sizes: dict[int, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    codecs: dict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))

    def add(self, batches: DescribedBatches) -> None:
        """Take batches of the partition."""
        table, counts = batches.table, batches.records
        sizes, stamps, is_control = table.size, table.max_timestamp, table.is_control
        if is_control.any():
            counts = np.where(is_control, 0, counts)
        size = int(sizes.sum())
        self.records += int(counts.sum())
        self.bytes += size
        self.timeline.add(stamps, counts, sizes)
        powers = np.maximum(np.frexp(sizes)[1] - 1, 0)
        for power, pair in _summed_by(powers, sizes):
            _add(self.batch_sizes[1 << power], pair)
        for codec, pair in _summed_by(table.codec, sizes):
            _add(self.codecs[codec_name(codec)], pair)
        base_offset = parse_base_offset(batches.path.rpartition("/")[2], LOG)
        segment = self.segments[0 if base_offset is None else base_offset]
        segment.bytes += size
        segment.batches += len(table)
        segment.last_timestamp = max(segment.last_timestamp, int(stamps.max()))


def summed(found: Iterable[Mapping[Any, Sequence[int]]]) -> dict[Any, list[int]]:
    """Add pairs of numbers up, by their names."""
    sums: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for each in found:
        for name, counts in each.items():
            _add(sums[name], counts)
    return sums


def _add(counts: list[int], more: Sequence[int]) -> None:
    counts[0] += more[0]
    counts[1] += more[1]


_FEW_BATCHES: Final = 16
"""So many, as a small partition has, are sooner looked at one by one than together by numpy."""


def _summed_by(numbers: Integers, sizes: Integers) -> Iterable[tuple[int, Sequence[int]]]:
    """Return each number of n batches, with the count and the bytes of those that have it."""
    if len(numbers) <= _FEW_BATCHES:
        return zip(numbers.tolist(), ((1, size) for size in sizes.tolist()), strict=True)
    names, rows = np.unique(numbers, return_inverse=True)
    totals = np.zeros(len(names), np.int64)
    np.add.at(totals, rows, sizes)
    pairs = zip(np.bincount(rows).tolist(), totals.tolist(), strict=True)
    return zip(names.tolist(), pairs, strict=True)


def measure(
    paths: Sequence[str],
    topics: TopicSelection,
    options: Mapping[str, str],
    told: Callable[[int, int], object],
    *,
    most_spans: int,
    has_gaps: bool,
) -> dict[TopicPartition, Measured]:
    """Measure the partitions of topics; ``told`` as for reading.

    All timelines have spans of one width, as :func:`with_one_width` gives them.

    Raises:
        UnknownTopicOrPartitionError: there is no such topic.
        KafkaLogError: directories or logs that cannot be read.
    """
    found = {key: Measured(Timeline(most_spans)) for key in sorted(partitions_of(paths, topics))}
    for key, batches in read_batches(paths, found, options, told):
        found[key].add(batches)
    with_one_width(found, has_gaps=has_gaps)
    return found


def with_one_width(found: Mapping[TopicPartition, Measured], *, has_gaps: bool) -> None:
    """Give all timelines spans of one width, and each as many at most as it may have.

    One that is longer than that many times 27 years has more. With ``has_gaps`` spans without a
    record do not count.
    """
    timelines = [each.timeline for each in found.values()]
    width = max((each.width_ms for each in timelines), default=_WIDTHS[0])
    if not has_gaps:
        stamps = [number * each.width_ms for each in timelines for number in each.spans]
        most = min((each.most for each in timelines), default=1)
        least = (max(stamps, default=0) - min(stamps, default=0)) // most
        width = next((each for each in _WIDTHS if each >= max(width, least)), _LARGEST)
    for each in found.values():
        each.timeline = each.timeline.widened(width)


def rows_of(found: Mapping[TopicPartition, Measured]) -> Iterator[dict[str, Any]]:
    """Yield what was measured as rows of plain values; ``kind`` says of what one is."""
    for key, measured in found.items():
        where = {"topic": key.topic, "partition": key.partition}
        width, timeline = measured.timeline.width_ms, measured.timeline
        for number, (records, size) in sorted(timeline.spans.items()):
            span = {"from": number * width, "to": (number + 1) * width}
            yield {"kind": "time", **where, **span, "records": records, "bytes": size}
        if timeline.untimed[1]:
            records, size = timeline.untimed
            no_span = {"from": None, "to": None}
            yield {"kind": "time", **where, **no_span, "records": records, "bytes": size}
        for base_offset, segment in sorted(measured.segments.items()):
            yield {
                "kind": "segment",
                **where,
                "baseOffset": base_offset,
                "batches": segment.batches,
                "bytes": segment.bytes,
                "lastTimestamp": None if segment.last_timestamp < 0 else segment.last_timestamp,
            }
        for least, (batches, size) in sorted(measured.batch_sizes.items()):
            sizes = {"minBytes": least, "maxBytes": 2 * least - 1}
            yield {"kind": "batchSize", **where, **sizes, "batches": batches, "bytes": size}
        for codec, (batches, size) in sorted(measured.codecs.items()):
            yield {"kind": "codec", **where, "codec": codec, "batches": batches, "bytes": size}
