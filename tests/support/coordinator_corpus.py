"""The internal topics of the corpus: their records, and what Kafka's dump tool makes of them."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tests.support.corpus import CORPUS, UnpackedCase

from kafkalog.model import TopicPartition
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"

_SECTION: Final = re.compile(r"^### DumpLogSegments --(offsets|transaction-log)-decoder")
_LOG: Final = re.compile(r"^Dumping logdir/(.+)-(\d+)/\d{20}\.log")
_BATCH: Final = re.compile(r"^baseOffset: .* producerId: (-?\d+) ")
_RECORD: Final = re.compile(r"^\| offset: (\d+) .*? headerKeys: \[\] (.*)$")
_MARKER: Final = re.compile(r"^endTxnMarker: (\w+) ")


@dataclass(frozen=True)
class DumpedRecord:
    """A line of the tool: a control record with its ``marker``, else ``key`` and ``value``."""

    topic_partition: TopicPartition
    offset: int
    producer_id: int
    marker: str | None = None
    key: dict[str, Any] | None = None
    value: dict[str, Any] | None = None


def dumped_records(case: str) -> Iterator[DumpedRecord]:
    """Return what the tool's ``--offsets-decoder`` and ``--transaction-log-decoder`` printed."""
    decoded = False
    place, producer_id = TopicPartition("", -1), -1
    lines = gzip.decompress((CORPUS / case / "dumplog.txt.gz").read_bytes()).decode()
    for line in lines.split("\n"):
        if line.startswith("###"):
            decoded = _SECTION.match(line) is not None
        elif not decoded:
            continue
        elif match := _LOG.match(line):
            place = TopicPartition(match[1], int(match[2]))
        elif match := _BATCH.match(line):
            producer_id = int(match[1])
        elif match := _RECORD.match(line):
            yield _dumped_record(place, int(match[1]), producer_id, match[2])


def _dumped_record(place: TopicPartition, offset: int, producer_id: int, text: str) -> DumpedRecord:
    if match := _MARKER.match(text):
        return DumpedRecord(place, offset, producer_id, marker=match[1])
    key, end = json.JSONDecoder().raw_decode(text, len("key: "))
    payload = text[end:].removeprefix(" payload: ")
    value = None if payload == "<DELETE>" else json.loads(payload)
    return DumpedRecord(place, offset, producer_id, key=key, value=value)


def internal_records(case: str, topic: str) -> pa.RecordBatch:
    """Return a topic's records as a ``read_uncommitted`` client got them, in order of their place.

    Columns as a reader of the log has them, and ``committed``: a ``read_committed`` client got it.
    """
    table = pq.read_table(CORPUS / case / "expected.parquet")
    table = table.filter(pc.equal(table["topic"], topic))
    micros = pc.multiply(table["timestamp"], 1000).cast(pa.timestamp("us", tz="UTC"))
    table = table.set_column(table.schema.get_field_index("timestamp"), "timestamp", micros)
    batches = table.sort_by([("partition", "ascending"), ("offset", "ascending")])
    return batches.combine_chunks().to_batches()[0]


def group_offsets(case: str) -> dict[str, dict[TopicPartition, tuple[int, int, str]]]:
    """Return what the broker answered: per group and partition offset, leader epoch, metadata."""
    groups = json.loads((CORPUS / case / "offsets.json").read_text())["groups"]
    return {
        group: {
            TopicPartition(entry["topic"], entry["partition"]): (
                entry["offset"],
                entry.get("leaderEpoch", -1),
                entry["metadata"],
            )
            for entry in described["offsets"]
        }
        for group, described in groups.items()
        if described["offsets"]
    }


def offsets_logs(case: str, directory: Path) -> list[PartitionLog]:
    """Unpack a case and give the partitions of its __consumer_offsets, in order."""
    unpacked = UnpackedCase(case, directory)
    return [
        PartitionLog(found.path, place)
        for place, found in LogDirs(unpacked.path.split(",")).partitions().items()
        if place.topic == OFFSETS_TOPIC
    ]
