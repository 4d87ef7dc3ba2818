"""A real broker serves what the Spark sink wrote: the same records at the same offsets."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from pyspark.sql import functions as sf
from tests.support.dump_log import dump_log_segments, partition_files
from tests.support.foreign import read_partition
from tests.support.kafka import Topic, serve
from tests.support.spark import small_session

from kafkalog.model import TopicPartition
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.records.columns import Columns, RecordDecoder

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from tests.support.kafka import Broker

pytestmark = [pytest.mark.interop, pytest.mark.spark]

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS: Final = 3
ROWS: Final = 900
FIRST_KEPT: Final = 20

# Null, empty and repeated keys; null, empty and long values; header lists from null to repeated
# keys; timestamps that go back.
RECORDS: Final = """
    SELECT
        CASE id % 5 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE concat('key ', id % 40) END AS key,
        CASE id % 7
            WHEN 0 THEN NULL WHEN 1 THEN '' ELSE repeat(concat(id, ' '), id % 50)
        END AS value,
        CASE id % 4
            WHEN 0 THEN NULL
            WHEN 1 THEN array(named_struct('key', 'h', 'value', CAST(id AS STRING)))
            ELSE array(
                named_struct('key', 'é', 'value', CAST(NULL AS STRING)),
                named_struct('key', 'é', 'value', ''))
        END AS headers,
        timestamp_millis(1700000000000 + 1000 * (id ^ 37)) AS timestamp
    FROM range(0, {rows}, 1, 2)
"""

ADDED: Final = [(b"key %d" % number, b"added " * number) for number in range(20)]

Headers = tuple[tuple[str, str | bytes | None], ...]


class Content(NamedTuple):
    """A record as it was put in; its timestamp in ms."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Written(NamedTuple):
    """What the fixture wrote, where to; in ``kept``, part of topic ``lz4`` at its offsets."""

    log_dirs: list[Path]
    rows: list[Content]
    kept: Path


class Served(NamedTuple):
    """What a client gets, without what only the broker knows."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Write a topic per codec, and one that is stamped when appended, over two log directories."""
    folder = tmp_path_factory.mktemp("written")
    log_dirs = [folder / "d1", folder / "d2"]
    with small_session() as spark:
        rows = input_rows(spark)
        for codec in CODECS:
            append(rows, log_dirs, codec, {"compression.type": codec})
        append(rows, log_dirs, "stamped", {"message.timestamp.type": "LogAppendTime"})
        copy_part(spark, log_dirs, folder / "kept")
        contents = contents_of(rows)
    return Written(log_dirs, contents, folder / "kept")


def input_rows(spark: SparkSession) -> DataFrame:
    binary = sf.expr("transform(headers, h -> struct(h.key, CAST(h.value AS BINARY) AS value))")
    return spark.sql(RECORDS.format(rows=ROWS)).withColumn("headers", binary)


def append(rows: DataFrame, log_dirs: list[Path], topic: str, options: dict[str, str]) -> None:
    """Append all rows twice, so that the second time continues segments and their indexes."""
    writer = rows.write.format("kafkalog").mode("append").option("topic", topic).options(**options)
    small = {"segment.bytes": "20000", "index.interval.bytes": "1000"}
    for _ in range(2):
        writer.options(numPartitions=str(PARTITIONS), **small).save(",".join(map(str, log_dirs)))


def is_copied(offset: int) -> bool:
    return offset >= FIRST_KEPT and offset % 3 != 1


def copy_part(spark: SparkSession, log_dirs: list[Path], target: Path) -> None:
    """Copy a topic with holes, in two steps, by several tasks at once."""
    source = spark.read.format("kafkalog").option("subscribe", "lz4").option("includeHeaders", True)
    part = source.load(",".join(map(str, log_dirs)))
    part = part.where(f"offset >= {FIRST_KEPT} AND offset % 3 != 1")
    sorted_part = part.repartition(2, "partition").sortWithinPartitions("partition", "offset")
    for some in ("offset < 150", "offset >= 150"):
        writer = sorted_part.where(some).write.format("kafkalog").mode("append")
        small = {"segment.bytes": "20000", "index.interval.bytes": "1000"}
        kept = {"topic": "kept", "numPartitions": str(PARTITIONS), "preserveOffsets": "true"}
        writer.options(**small, **kept, **{"compression.type": "gzip"}).save(str(target))


def contents_of(rows: DataFrame) -> list[Content]:
    encoded = rows.select(
        sf.encode("key", "UTF-8"),
        sf.encode("value", "UTF-8"),
        "headers",
        sf.unix_millis("timestamp"),
    )
    return [
        Content(
            timestamp,
            None if key is None else bytes(key),
            None if value is None else bytes(value),
            tuple((name, None if data is None else bytes(data)) for name, data in headers or ()),
        )
        for key, value, headers, timestamp in encoded.collect()
    ]


def test_the_dump_tool_finds_nothing_in_what_spark_wrote(written: Written) -> None:
    log_dirs = written.log_dirs
    files = [path for log_dir in log_dirs for path in partition_files(log_dir)]
    indexes = [path for path in files if path.suffix != ".log"]

    report = dump_log_segments(files)

    assert report.findings == []
    assert dump_log_segments(indexes, index_sanity=True).findings == []
    codecs = Counter(
        batch["compresscodec"] for batches in report.batches.values() for batch in batches
    )
    assert set(codecs) == set(CODECS)
    assert len(files) - len(indexes) > 2 * PARTITIONS * len(CODECS)


def test_another_library_reads_what_was_put_in(written: Written) -> None:
    log_dirs, rows = written.log_dirs, written.rows
    for topic in CODECS:
        found = Counter(
            Content(record.timestamp, record.key, record.value, tuple(record.headers))
            for partition in range(PARTITIONS)
            for record in read_partition(folder_of(log_dirs, topic, partition))
        )
        assert found == Counter(rows + rows), topic


def test_rows_that_keep_their_offsets_are_a_copy_with_holes(written: Written) -> None:
    for partition in range(PARTITIONS):
        original = read_partition(folder_of(written.log_dirs, "lz4", partition))
        copied = read_partition(folder_of([written.kept], "kept", partition))
        assert copied == [record for record in original if is_copied(record.offset)]
        assert len(copied) > 100


def test_a_broker_serves_the_same_records_and_has_no_complaint(
    written: Written, tmp_path: Path
) -> None:
    log_dirs = [*written.log_dirs, written.kept]
    topics = [Topic(name, PARTITIONS) for name in (*CODECS, "stamped", "kept")]
    with serve(tmp_path / "broker", log_dirs, topics) as broker:
        ends = {}
        for topic in topics:
            assert served(broker, topic.name) == {
                partition: [
                    Served(*record[:4], tuple(record.headers))
                    for record in read_partition(folder_of(log_dirs, topic.name, partition))
                ]
                for partition in range(PARTITIONS)
            }
            # ... and goes on where the sink left off.
            ends[topic.name] = broker.offsets(topic.name)
            codec = topic.name if topic.name in CODECS else "none"
            broker.produce(topic.name, ADDED, **{"compression.type": codec})
        assert broker.complaints() == []
        broker.stop()
        (data,) = broker.log_dirs
        for topic in topics:
            check_read_behind(data, topic.name, ends[topic.name])


def check_read_behind(data: Path, topic: str, ends: dict[int, tuple[int, int]]) -> None:
    """We read what the broker appended, behind all that we had written."""
    added = []
    for partition, (_, end) in ends.items():
        with PartitionLog(data / f"{topic}-{partition}", TopicPartition(topic, partition)) as log:
            rows = read_rows(log)
        offsets = [row["offset"] for row in rows]
        assert offsets == sorted(set(offsets))
        behind = [row for row in rows if row["offset"] >= end]
        assert [row["offset"] for row in behind] == [*range(end, end + len(behind))]
        foreign = read_partition(data / f"{topic}-{partition}")
        assert [row["value"] for row in rows] == [record.value for record in foreign]
        added += [(row["key"], row["value"]) for row in behind]
    assert sorted(added) == sorted(ADDED)


def read_rows(log: PartitionLog) -> list[dict[str, Any]]:
    end = log.log_end_offset(verify_from=0)
    decoder = RecordDecoder(Columns.OFFSET | Columns.KEY | Columns.VALUE)
    return [
        row
        for part in log.slices(log.log_start_offset, end)
        for batch in log.read_slice(part, decoder, committed_end=end)
        for row in batch.to_pylist()
    ]


def served(broker: Broker, topic: str) -> dict[int, list[Served]]:
    found: dict[int, list[Served]] = {partition: [] for partition in range(PARTITIONS)}
    for record in broker.consume_all(topic):
        headers = tuple(record.headers or ())
        found[record.partition].append(
            Served(record.offset, record.timestamp, record.key, record.value, headers)
        )
    return found


def folder_of(log_dirs: list[Path], topic: str, partition: int) -> Path:
    (folder,) = [
        path for log_dir in log_dirs if (path := log_dir / f"{topic}-{partition}").is_dir()
    ]
    return folder
