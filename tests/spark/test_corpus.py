"""What real brokers wrote reads back exactly as real clients read it: case by case, by each way.

=================  ===========================================================================
aspect             where it is held against the corpus
=================  ===========================================================================
rows               here: batch and stream, at either isolation level, internal topics included
batches            here (view=batches), and ``unit/records/test_batch_rows.py`` file by file
offsets            ``unit/log/test_log_corpus.py``: starts, ends, LSO, timestamps, groups
bytes of a record  ``unit/records/test_broker_logs.py``: segments decoded directly
=================  ===========================================================================
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tests.support.corpus import CAPTURED_LIVE, CASES, CORPUS, UnpackedCase
from tests.support.dumped_batches import comparable, dumped_batches, file_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def committed_column(name: str) -> pa.ChunkedArray:
    return pq.read_table(CORPUS / name / "expected.parquet", columns=["committed"])["committed"]


UNCOMMITTED, COMMITTED = "read_uncommitted", "read_committed"
WITH_TRANSACTIONS = [name for name in CASES if not pc.all(committed_column(name)).as_py()]
WITHOUT = [name for name in CASES if name not in WITH_TRANSACTIONS]
# where nothing was aborted, the two levels differ in nothing
EVERY_WAY = [
    *((name, UNCOMMITTED) for name in CASES),
    *((name, COMMITTED) for name in WITH_TRANSACTIONS),
    *(pytest.param(name, COMMITTED, marks=pytest.mark.nightly) for name in WITHOUT),
]
STREAMED = [
    *((name, UNCOMMITTED) for name in WITHOUT),
    *((name, COMMITTED) for name in WITH_TRANSACTIONS),
    *(pytest.param(name, UNCOMMITTED, marks=pytest.mark.nightly) for name in WITH_TRANSACTIONS),
]


@pytest.fixture
def case(name: str, tmp_path: Path) -> UnpackedCase:
    return UnpackedCase(name, tmp_path / "case")


def options(name: str, case: UnpackedCase, **more: str) -> dict[str, str]:
    return {
        "subscribe": case.topics,
        "readUpTo": "logEnd" if name in CAPTURED_LIVE else "highWatermark",
        **more,
    }


def record_options(name: str, case: UnpackedCase, level: str) -> dict[str, str]:
    wanted = {"includeHeaders": "true", "kafka.isolation.level": level}
    # so that the larger partitions are cut
    return options(name, case, splitBytes="16k", **wanted)


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """Collect rows in the order of tasks, with timestamps in ms."""
    in_ms = frame.withColumn("timestamp", frame["timestamp"].cast("decimal(38, 6)") * 1000)
    rows = [row.asDict(recursive=True) for row in in_ms.collect()]
    return [row | {"timestamp": int(row["timestamp"])} for row in rows]


def streamed(stream: DataFrame, checkpoint: Path) -> list[dict[str, Any]]:
    """Give the rows of all micro-batches until a stream has caught up."""
    rows: list[dict[str, Any]] = []
    query = (
        stream.writeStream.foreachBatch(lambda frame, _: rows.extend(rows_of(frame)))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(300)
        assert query.exception() is None
    finally:
        query.stop()
    return rows


def assert_offset_order(rows: list[dict[str, Any]]) -> None:
    """Each task reads one partition, so that neighbours of one partition are in order."""
    ordered = sorted(rows, key=lambda row: (row["topic"], row["partition"]))
    for _, group in groupby(ordered, key=lambda row: (row["topic"], row["partition"])):
        offsets = [row["offset"] for row in group]
        assert offsets == sorted(offsets)


@pytest.mark.parametrize(("name", "level"), EVERY_WAY)
def test_a_batch_read_gives_the_rows_of_the_corpus(
    spark: SparkSession, name: str, level: str, case: UnpackedCase
) -> None:
    reader = spark.read.format("kafkalog").options(**record_options(name, case, level))
    rows = rows_of(reader.load(case.path))
    assert case.differences(rows, isolation=level) == []
    assert_offset_order(rows)
    assert case.changed_files() == []


@pytest.mark.parametrize(("name", "level"), STREAMED)
def test_a_stream_gives_the_rows_of_the_corpus(
    spark: SparkSession, name: str, level: str, case: UnpackedCase, tmp_path: Path
) -> None:
    stream = (
        spark.readStream.format("kafkalog")
        .options(**record_options(name, case, level))
        .options(startingOffsets="earliest", maxOffsetsPerTrigger="1000")
        .load(case.path)
    )
    rows = streamed(stream, tmp_path / "checkpoint")
    assert case.differences(rows, isolation=level) == []
    assert_offset_order(rows)
    assert case.changed_files() == []


def by_file(rows: Iterable[Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        assert row["error"] is None
        found.setdefault(file_of(row["file"]), []).append(comparable(row.asDict()))
    return {file: sorted(each, key=lambda row: row["position"]) for file, each in found.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_view_of_batches_gives_every_batch_that_the_dump_tool_printed(
    spark: SparkSession, name: str, case: UnpackedCase
) -> None:
    reader = spark.read.format("kafkalog").options(**options(name, case, view="batches"))
    found = by_file(reader.load(case.path).collect())
    assert found == {
        file: rows
        for file, rows in dumped_batches(name).items()
        if file.split("/")[0] in case.live_folders
    }


METADATA = "__cluster_metadata"


@pytest.mark.parametrize("name", ["p10-many-partitions-deleted"])
def test_folders_that_no_broker_serves_as_topics_are_read_when_they_are_named(
    spark: SparkSession, name: str, case: UnpackedCase
) -> None:
    printed: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for file, batches in dumped_batches(name).items():
        folder = file.split("/")[0]
        if folder not in case.live_folders:
            printed.setdefault(folder, {})[file] = batches
    assert len(printed) > 1
    for folder, expected in printed.items():
        name_of = folder if folder.startswith(METADATA) else folder.rpartition(".")[0]
        topic = name_of.rpartition("-")[0]
        reader = spark.read.format("kafkalog").options(subscribe=topic, view="batches")
        assert by_file(reader.load(case.folder(folder)).collect()) == expected
