"""What there is to plot of partitions: over time, by segment, by size of batch and by codec.

It is measured by the headers of record batches, so nothing is decompressed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafkalog.jobs.inspection.counting import read_batch_rows
from kafkalog.jobs.inspection.log_dirs import partitions_of
from kafkalog.streaming.log.files import LOG, parse_base_offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kafkalog.model import TopicPartition

__all__ = ["Measured", "Timeline", "measure", "rows_of", "summed", "with_one_width"]

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

    def add(self, batches: pa.RecordBatch) -> None:
        """Take rows of ``view=batches``."""
        sizes = batches.column("size").to_numpy()
        is_control = batches.column("control")
        counts = pc.if_else(is_control, 0, pc.fill_null(batches.column("count"), 0)).to_numpy()
        stamps = batches.column("maxTimestamp").to_numpy()
        self.records += int(counts.sum())
        self.bytes += int(sizes.sum())
        self.timeline.add(stamps, counts, sizes)
        powers = pa.array(1 << np.maximum(np.frexp(sizes)[1].astype(np.int64) - 1, 0))
        for least, chosen in _rows_by(powers):
            _add(self.batch_sizes[least], (len(chosen), int(sizes[chosen].sum())))
        for codec, chosen in _rows_by(batches.column("codec")):
            _add(self.codecs[codec], (len(chosen), int(sizes[chosen].sum())))
        for file, chosen in _rows_by(batches.column("file")):
            base_offset = parse_base_offset(file.rpartition("/")[2], LOG)
            segment = self.segments[0 if base_offset is None else base_offset]
            segment.bytes += int(sizes[chosen].sum())
            segment.batches += len(chosen)
            segment.last_timestamp = max(segment.last_timestamp, int(stamps[chosen].max()))


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


def _rows_by(names: pa.Array) -> Iterator[tuple[Any, Any]]:
    """Yield each name, and the rows that have it: int64[n]."""
    coded = names.dictionary_encode()
    codes = coded.indices.to_numpy()
    for code, name in enumerate(coded.dictionary.to_pylist()):
        yield name, np.flatnonzero(codes == code)


def measure(
    paths: Sequence[str],
    topic: str | None,
    options: Mapping[str, str],
    told: Callable[[int, int], object],
    *,
    most_spans: int,
    has_gaps: bool,
) -> dict[TopicPartition, Measured]:
    """Measure all partitions, or those of one topic; ``told`` as for reading.

    All timelines have spans of one width, as :func:`with_one_width` gives them.

    Raises:
        UnknownTopicOrPartitionError: there is no such topic.
        KafkaLogError: directories or logs that cannot be read.
    """
    found = {key: Measured(Timeline(most_spans)) for key in sorted(partitions_of(paths, topic))}
    for key, batch in read_batch_rows(paths, found, options, told):
        found[key].add(batch)
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
