"""Count what is in partitions, by the headers of record batches."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from kafkalog.jobs.cli.log_dirs import partitions_of
from kafkalog.jobs.records.reading import read_in_threads
from kafkalog.model import TopicPartition
from kafkalog.streaming.options import warn_ignored
from kafkalog.streaming.source.damage import naming_way_out
from kafkalog.streaming.source.plan.batch_plan import plan_batch
from kafkalog.streaming.source.read_options import ReadOptions
from kafkalog.streaming.source.reading import read_split

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

__all__ = ["PartitionCount", "count_partitions", "read_batch_rows"]

Row = dict[str, Any]


@dataclass(slots=True)
class PartitionCount:
    """What is counted of a partition, from rows of ``view=batches``."""

    records: int = 0
    markers: int = 0
    batches: int = 0
    bytes: int = 0
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
            "bytesPerBatch": self.bytes // max(1, self.batches),
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
    given = {"path": ",".join(paths), "subscribe": topics, "view": "batches"}
    parsed = ReadOptions.parse({**given, **options})
    warn_ignored(parsed.ignored)
    with naming_way_out(parsed):
        splits = plan_batch(parsed)
    for batch in read_in_threads(splits, lambda split: read_split(split, parsed, None), told):
        first = batch.slice(0, 1).to_pylist()[0]
        yield TopicPartition(first["topic"], first["partition"]), batch
