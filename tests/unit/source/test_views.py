"""What a query of another view than records may ask for, and what it gets."""

from __future__ import annotations

import gzip
import json
import re
import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from tests.support import cluster_records, remote_records
from tests.support.coordinator_corpus import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.support.corpus import CORPUS, UnpackedCase
from tests.support.logs import Row, batch_bytes, write_segment

import kafkalog
from kafkalog.errors import InvalidTopicError, OptionError, UnknownTopicOrPartitionError
from kafkalog.model import CLUSTER_METADATA_TOPIC, OffsetRange, TopicPartition
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.source.loss import LossPolicy
from kafkalog.streaming.source.planner import LogSplit, plan_splits
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import view_schema
from kafkalog.streaming.spark.datasource import KafkaLogDataSource
from kafkalog.streaming.spark.versions import arrow_type

if TYPE_CHECKING:
    from pathlib import Path

VIEWS = [
    {"subscribe": "t", "view": "batches"},
    {"subscribe": OFFSETS_TOPIC, "view": "offsets"},
    {"assign": f'{{"{TRANSACTIONS_TOPIC}":[3]}}', "view": "transactions"},
    {"subscribe": CLUSTER_METADATA_TOPIC, "view": "metadata"},
    {"subscribe": "__remote_log_metadata", "view": "remote"},
]


def options(**given: str) -> ReadOptions:
    return ReadOptions.parse({"path": "/logs"} | given)


def source(**given: str) -> KafkaLogDataSource:
    return KafkaLogDataSource({"path": "/logs"} | given)


def splits(log: Path, *ranges: OffsetRange, **given: str) -> list[LogSplit]:
    tail = EndOffsets([str(log)], lambda _: True)
    tail.look()
    return plan_splits(list(ranges), options(**given), tail, LossPolicy(fail=True))


def read(log: Path, *ranges: OffsetRange, **given: str) -> list[dict[str, Any]]:
    schema = pa.schema(list(arrow_type(view_schema(options(**given)))))
    rows = []
    for split in splits(log, *ranges, **given):
        for batch in read_split(split, options(**given), None):
            assert batch.schema == schema  # what Spark compares
            rows += batch.to_pylist()
    return rows


@pytest.mark.parametrize("given", VIEWS)
def test_a_view_has_columns_of_its_own_and_takes_no_others(given: dict[str, str]) -> None:
    schema = source(**given).schema()
    assert isinstance(schema, StructType)
    assert "error" in schema.fieldNames()
    source(**given).reader(schema)
    source(**given).streamReader(schema)
    with pytest.raises(OptionError, match="takes no schema; leave"):
        source(**given).reader(StructType().add("value", "string"))


@pytest.mark.parametrize("given", VIEWS)
def test_a_view_has_no_column_of_headers(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=f"view={given['view']} has columns of its own"):
        options(**given, includeHeaders="true")


def test_an_unknown_view_is_refused_with_those_there_are() -> None:
    with pytest.raises(OptionError, match=r"records, batches, offsets, transactions"):
        options(subscribe="t", view="rows")


@pytest.mark.parametrize("name", ["shallow", "decode"])
def test_what_the_views_were_called_is_refused_by_naming_view(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name}.*view="):
        options(subscribe="t", **{name: "true"})


@pytest.mark.parametrize(
    "given",
    [
        {"subscribe": "t"},
        {"subscribe": f"{OFFSETS_TOPIC},t"},
        {"subscribe": TRANSACTIONS_TOPIC},
        {"subscribePattern": "__consumer.*"},
        {"assign": f'{{"{OFFSETS_TOPIC}":[0],"t":[0]}}'},
    ],
)
def test_only_its_own_topic_is_decoded(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="view=offsets reads __consumer_offsets alone"):
        source(**given, view="offsets").schema()


def test_a_topic_s_name_is_checked_all_the_same() -> None:
    with pytest.raises(InvalidTopicError):
        source(subscribe="a/b", view="offsets").schema()


def test_each_batch_is_in_one_split(tmp_path: Path) -> None:
    data = b"".join(batch_bytes(base, [Row()] * 5) for base in (0, 5, 10, 15))
    write_segment(tmp_path / "t-7", 0, data)
    key = TopicPartition("t", 7)
    given = {"subscribe": "t", "view": "batches", "maxRecordsPerPartition": "3"}
    rows = read(tmp_path, OffsetRange(key, 2, 20), **given)
    assert len(splits(tmp_path, OffsetRange(key, 2, 20), **given)) > 4
    assert [(row["baseOffset"], row["lastOffset"]) for row in rows] == [
        (0, 4),
        (5, 9),
        (10, 14),
        (15, 19),
    ]
    assert {(row["topic"], row["partition"]) for row in rows} == {("t", 7)}


def test_records_that_cannot_be_decoded_are_rows_with_an_error(tmp_path: Path) -> None:
    write_segment(tmp_path / f"{OFFSETS_TOPIC}-3", 0, batch_bytes(0, [Row(b"v", b"k"), Row(None)]))
    key = TopicPartition(OFFSETS_TOPIC, 3)
    rows = read(tmp_path, OffsetRange(key, 0, 2), subscribe=OFFSETS_TOPIC, view="offsets")
    assert [(row["logPartition"], row["logOffset"]) for row in rows] == [(3, 0), (3, 1)]
    assert all(row["error"] for row in rows)


ID, SEGMENT = "AAECAwQFBgcICQoLDA0ODw", "AAECAwQFBgcICQoLDA0OEA"


def rows_of(log: Path, view: str, topic: str) -> list[dict[str, Any]]:
    given = {"view": view, "readUpTo": "logEnd"}
    found = kafkalog.read(str(log), topic, options=given).read_all()
    return found.to_pylist()  # type: ignore[no-any-return]


def some(row: dict[str, Any], *left_out: str) -> dict[str, Any]:
    """Give the columns that have a value, but those."""
    return {
        name: value for name, value in row.items() if value is not None and name not in left_out
    }


def test_metadata_shows_topics_partitions_settings_and_brokers(tmp_path: Path) -> None:
    records = [
        cluster_records.topic("t", ID),
        cluster_records.partition(ID, 0, [2, 1], epoch=4),
        cluster_records.change(ID, 0, leader=struct.pack(">i", 1), isr=cluster_records.ids(1)),
        b"\x01\x04\x00\x02\x02t\x0dretention.ms\x025\x00",
        cluster_records.registered(1, 9),
        b"\x01\x0c\x00\x02f\x00\x07\x00",
        cluster_records.removed(ID),
        b"\x01\x63\x00",
        b"\x01\x02\x00\x09t",
        b"\x02",
    ]
    rows = rows_of(
        cluster_records.write_metadata(tmp_path, *records), "metadata", CLUSTER_METADATA_TOPIC
    )
    assert [row["logOffset"] for row in rows] == [*range(10)]
    place = ("logPartition", "logOffset", "logTimestamp", "valueJson", "version")
    topic = {"topic": "t", "topicId": ID}
    assert [some(row, *place) for row in rows[:8]] == [
        {"recordType": "TopicRecord", "apiKey": 2} | topic,
        {
            "recordType": "PartitionRecord",
            "apiKey": 3,
            "partition": 0,
            "leader": 2,
            "leaderEpoch": 4,
            "replicas": [2, 1],
            "isr": [2, 1],
        }
        | topic,
        {"recordType": "PartitionChangeRecord", "apiKey": 5, "partition": 0, "leader": 1}
        | {"isr": [1]}
        | topic,
        {"recordType": "ConfigRecord", "apiKey": 4, "resourceType": "TOPIC", "resourceName": "t"}
        | {"configName": "retention.ms", "configValue": "5"},
        {"recordType": "RegisterBrokerRecord", "apiKey": 0, "brokerId": 1, "brokerEpoch": 9},
        {"recordType": "FeatureLevelRecord", "apiKey": 12, "featureName": "f", "featureLevel": 7},
        {"recordType": "RemoveTopicRecord", "apiKey": 9} | topic,
        {"recordType": "Unknown", "apiKey": 99},
    ]
    assert "'name' at byte" in rows[8]["error"]
    assert "frame version 2 is not known" in rows[9]["error"]
    assert json.loads(rows[1]["valueJson"])["partitionEpoch"] == 0


def test_metadata_begins_with_the_snapshot_that_its_log_goes_on_from(tmp_path: Path) -> None:
    folder = tmp_path / "__cluster_metadata-0"
    records = [Row(cluster_records.topic("t", ID)), Row(cluster_records.registered(1, 9))]
    write_segment(folder, 5, batch_bytes(5, [Row(cluster_records.partition(ID, 0, [1]))] * 3))
    name = "00000000000000000005-0000000001.checkpoint"
    (folder / name).write_bytes(batch_bytes(0, records))
    (folder / "00000000000000000007-0000000001.checkpoint").write_bytes(batch_bytes(0, records[:1]))
    rows = rows_of(tmp_path, "metadata", CLUSTER_METADATA_TOPIC)
    assert [(row["snapshot"], row["logOffset"]) for row in rows] == [
        *((name, None), (name, None)),
        *((None, 5), (None, 6), (None, 7)),
    ]
    assert [row["topic"] for row in rows] == ["t", None, "t", "t", "t"]
    later = {"view": "metadata", "readUpTo": "logEnd"}
    later["startingOffsets"] = f'{{"{CLUSTER_METADATA_TOPIC}":{{"0":6}}}}'
    found = kafkalog.read(str(tmp_path), CLUSTER_METADATA_TOPIC, options=later).read_all()
    assert found.column("logOffset").to_pylist() == [6, 7]


def test_metadata_of_several_brokers_is_the_copy_that_reaches_furthest(tmp_path: Path) -> None:
    made = [cluster_records.topic("t", ID), cluster_records.partition(ID, 0, [1])]
    one = cluster_records.write_metadata(tmp_path / "one", *made[:1])
    two = cluster_records.write_metadata(tmp_path / "two", *made)
    for paths in ([one, two], [two, one], [two, tmp_path]):
        found = kafkalog.read(
            [*map(str, paths)], CLUSTER_METADATA_TOPIC, options={"view": "metadata"}
        )
        assert found.read_all().column("topic").to_pylist() == ["t", "t"]
    with pytest.raises(UnknownTopicOrPartitionError, match=r"metadata\.log\.dir says"):
        kafkalog.read(str(tmp_path), CLUSTER_METADATA_TOPIC, options={"view": "metadata"})


def test_metadata_of_real_brokers_is_what_kafka_s_tool_prints(tmp_path: Path) -> None:
    case = UnpackedCase("p09-groups", tmp_path)
    dumped = gzip.decompress((CORPUS / "p09-groups" / "dumplog.txt.gz").read_bytes()).decode()
    printed = {}
    for line in dumped.splitlines():
        found = re.search(r"^\| offset: (\d+) .* payload: (\{\"type\":.*\})$", line)
        if found is not None:
            printed[int(found[1])] = json.loads(found[2])
    rows = kafkalog.read(
        case.path.split(","), CLUSTER_METADATA_TOPIC, options={"view": "metadata"}
    ).read_all()
    assert [row["logOffset"] for row in rows.to_pylist()] == sorted(printed)
    for row in rows.to_pylist():
        expected = printed[row["logOffset"]]
        assert row["error"] is None
        if row["recordType"] == "Unknown":
            continue
        assert row["version"] == expected["version"]
        assert expected["type"] == re.sub(r"(?<!^)(?=[A-Z])", "_", row["recordType"]).upper()
        for name, value in json.loads(row["valueJson"]).items():
            assert value == expected["data"].get(name, value), (row, name)
    known = [row["topic"] for row in rows.to_pylist() if row["recordType"] == "TopicRecord"]
    assert "__consumer_offsets" in known


def test_remote_shows_what_was_copied_and_deleted(tmp_path: Path) -> None:
    where = ("t", ID, 3)
    values = [
        remote_records.segment_added(*where, SEGMENT, (10, 19), size=77, epochs=[(2, 10)]),
        remote_records.segment_updated(*where, SEGMENT),
        remote_records.partition_deleted(*where),
        None,
        b"\x01\x09\x00",
    ]
    rows = [Row(value) for value in values]
    write_segment(tmp_path / "__remote_log_metadata-7", 0, batch_bytes(0, rows))
    found = rows_of(tmp_path, "remote", "__remote_log_metadata")
    place = ("logPartition", "logOffset", "logTimestamp", "eventTimestamp", "maxTimestamp")
    of_partition = {"topic": "t", "topicId": ID, "partition": 3, "brokerId": 1}
    of_segment = of_partition | {"segmentId": SEGMENT}
    assert [some(row, *place) for row in found[:4]] == [
        {"recordType": "RemoteLogSegmentMetadataRecord", "state": "COPY_SEGMENT_STARTED"}
        | {"startOffset": 10, "endOffset": 19, "sizeInBytes": 77, "txnIndexEmpty": True}
        | {"leaderEpochs": [{"leaderEpoch": 2, "offset": 10}]}
        | of_segment,
        {"recordType": "RemoteLogSegmentMetadataUpdateRecord", "state": "COPY_SEGMENT_FINISHED"}
        | of_segment,
        {"recordType": "RemotePartitionDeleteMetadataRecord", "state": "DELETE_PARTITION_MARKED"}
        | of_partition,
        {},
    ]
    assert "api key 9 is not known" in found[4]["error"]
    assert {row["logPartition"] for row in found} == {7}
