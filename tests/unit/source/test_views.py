"""What a query of another view than records may ask for, and what it gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from tests.support.coordinator_corpus import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tests.support.logs import Row, batch_bytes, write_segment

from kafkalog.errors import InvalidTopicError, OptionError
from kafkalog.model import OffsetRange, TopicPartition
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.end_offsets import EndOffsets
from kafkalog.streaming.source.loss import LossPolicy
from kafkalog.streaming.source.planner import LogSplit, plan_splits
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import view_schema
from kafkalog.streaming.spark.datasource import KafkaLogDataSource

if TYPE_CHECKING:
    from pathlib import Path

VIEWS = [
    {"subscribe": "t", "view": "batches"},
    {"subscribe": OFFSETS_TOPIC, "view": "offsets"},
    {"assign": f'{{"{TRANSACTIONS_TOPIC}":[3]}}', "view": "transactions"},
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
    schema = to_arrow_schema(view_schema(options(**given)), timezone="UTC")
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
