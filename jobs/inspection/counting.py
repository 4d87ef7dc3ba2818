"""Count what is in partitions, by the headers of record batches."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kafkalog.jobs.inspection.log_dirs import partitions_of
from kafkalog.jobs.inspection.records import read_in_threads
from kafkalog.model import TopicPartition
from kafkalog.streaming.options.declaring import warn_ignored
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.loss import with_remedy
from kafkalog.streaming.source.read_options import ReadOptions
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from kafkalog.streaming.source.planner import LogSplit

__all__ = ["PartitionCount", "count_partitions", "read_batch_rows"]

Row = dict[str, Any]


@dataclass(slots=True)
class PartitionCount:
    """What is counted of a partition, from rows of ``view=batches``."""

    records: int = 0
    markers: int = 0
    batches: int = 0
    bytes: int = 0
    data_bytes: int = 0
    first: int | None = None
    last: int | None = None
    codecs: Counter[str] = field(default_factory=Counter)
    producers: set[int] = field(default_factory=set)

    def add(self, batches: pa.RecordBatch) -> None:
        """Take rows of ``view=batches``."""
        self.batches += batches.num_rows
        self.bytes += pc.sum(batches.column("size")).as_py()
        data = batches.filter(pc.invert(batches.column("control")))
        self.markers += batches.num_rows - data.num_rows
        self.data_bytes += pc.sum(data.column("size")).as_py() or 0
        self.records += pc.sum(data.column("count")).as_py() or 0
        self.codecs.update(data.column("codec").to_pylist())
        stamps = pc.max(data.column("maxTimestamp")).as_py(), _earliest(data)
        for stamp in stamps:
            if stamp is not None and stamp >= 0:
                self.first = stamp if self.first is None else min(self.first, stamp)
                self.last = stamp if self.last is None else max(self.last, stamp)
        known = data.column("producerId").to_pylist()
        self.producers.update(each for each in known if each >= 0)

    def row(self, key: TopicPartition) -> Row:
        """Return it as a row of plain values."""
        return {
            "topic": key.topic,
            "partition": key.partition,
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


def _earliest(batches: pa.RecordBatch) -> int | None:
    """Return the smallest base timestamp: records may be earlier, as in any log of Kafka's."""
    stamps = batches.column("baseTimestamp")
    found: int | None = pc.min(stamps.filter(pc.greater_equal(stamps, 0))).as_py()
    return found


def count_partitions(
    paths: Sequence[str],
    topic: str | None,
    options: Mapping[str, str],
    told: Callable[[int, int], object],
) -> list[Row]:
    """Return a row for each partition, of one topic if it is named; ``told`` as for reading.

    Raises:
        UnknownTopicOrPartitionError: there is no such topic.
        KafkaLogError: directories or logs that cannot be read.
    """
    counts = {key: PartitionCount() for key in sorted(partitions_of(paths, topic))}
    for key, batch in read_batch_rows(paths, counts, options, told):
        counts[key].add(batch)
    return [count.row(key) for key, count in counts.items()]


def read_batch_rows(
    paths: Sequence[str],
    partitions: Collection[TopicPartition],
    options: Mapping[str, str],
    told: Callable[[int, int], object],
) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Yield rows of ``view=batches`` of the topics of partitions, each time of one partition.

    Raises:
        KafkaLogError: directories or logs that cannot be read.
    """
    if not partitions:
        return
    topics = ",".join(sorted({key.topic for key in partitions}))
    given = {"path": ",".join(paths), "subscribe": topics, **options}
    parsed = ReadOptions.parse({**given, "view": "batches"})
    wanted = ReadOptions.parse({**given, "view": "records"})
    warn_ignored(parsed.ignored)
    with with_remedy(parsed):  # of records: batches would begin below the log start
        splits = plan_batch(wanted)
    firsts: dict[TopicPartition, LogSplit] = {}
    for split in splits:
        firsts.setdefault(split.topic_partition, split)
    for batch in read_in_threads(splits, lambda split: read_split(split, parsed, None), told):
        first = batch.slice(0, 1).to_pylist()[0]
        key = TopicPartition(first["topic"], first["partition"])
        yield key, _from_start(firsts[key], batch, wanted)


def _from_start(first: LogSplit, batches: pa.RecordBatch, options: ReadOptions) -> pa.RecordBatch:
    """Return batches with the counts of their records from the partition's first split on.

    The first batch of a partition may begin below the log start, as after DeleteRecords.
    """
    start = first.slices[0].start_offset
    below = pc.less(batches.column("baseOffset"), start)
    if not pc.any(below).as_py():
        return batches
    rows = batches.select(["baseOffset", "lastOffset", "count", "control"]).to_pylist()
    counts = [
        _count_from_start(first, row, options) if is_below else row["count"]
        for row, is_below in zip(rows, below.to_pylist(), strict=True)
    ]
    place = batches.schema.get_field_index("count")
    field_ = batches.schema.field(place)
    return batches.set_column(place, field_, pa.array(counts, field_.type))


def _count_from_start(first: LogSplit, row: Row, options: ReadOptions) -> int | None:
    """Return how many records of a batch lie in the first split."""
    base: int = row["baseOffset"]
    last: int = row["lastOffset"]
    count: int | None = row["count"]
    whole = first.slices[0]
    if count is None or row["control"]:
        return count
    if count == last - base + 1:  # else a cleaner took some: only the records tell
        return max(0, last - whole.start_offset + 1)
    batch = replace(first, slices=(whole._replace(end_offset=last + 1),))
    return sum(len(rows) for rows in read_split(batch, options, RowSchema.named(["offset"])))
