"""A broker serves what was archived and restored: by the commands, as a person runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.bucket_model import without_rests
from tests.support.distributions import ROOT
from tests.support.dump_log import dump_log_segments
from tests.support.kafka import Record, Topic, serve
from tests.support.reading import read_batch
from tests.support.sinking import Writer, rows

import kafkalog
from kafkalog.files.objects import FolderObjects
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin import retention
from kafkalog.streaming.admin.backup import back_up
from kafkalog.streaming.admin.compaction import Wanted, compact
from kafkalog.streaming.admin.topics import Bounds, create, set_bounds
from kafkalog.streaming.objects import bucket_store
from kafkalog.streaming.objects.bucket_store import bucket_of
from kafkalog.streaming.objects.merging import merge

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.interop, pytest.mark.spark]

BOUNDS = {0: (500, 520), 1: (0, 9), 2: (3, 3)}
"""By partition: one that starts at 500 and ends in a gap, one with all records, one without any."""


def write(log: Path) -> None:
    create([str(log)], "t", partitions=3, starts={0: 500, 2: 3})
    batch = rows(
        [None, b"", b"v", b"w", b"x", b"y"],
        keys=[b"k", None, b"", b"k", b"k", b"k"],
        partitions=[0, 0, 0, 1, 1, 1],
        timestamps=[5, 7, 6, 1_700_000_000_123, 1_700_000_000_123, 3],
    )
    headers: Any = [None, [("h", None)], [("h", b""), ("h", b"1")], None, None, [("é", b"2")]]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = batch.append_column("headers", pa.array(headers, kind))
    batch = batch.append_column("offset", pa.array([500, 501, 510, 0, 2, 8], pa.int64()))
    batch = batch.append_column("timestampType", pa.array([0, 0, 0, 1, 1, 0], pa.int32()))
    Writer(log, topic="t", preserveOffsets="true").write(0, batch)
    bounds = {TopicPartition("t", number): Bounds(*each) for number, each in BOUNDS.items()}
    set_bounds([str(log)], bounds)


def run(*words: object) -> str:
    """Run a pipeline; give the last line that it said."""
    ran = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    return ran.stderr.splitlines()[-1]


def test_a_broker_serves_what_was_archived_and_restored(tmp_path: Path) -> None:
    log, table, copy = (tmp_path / name for name in ("log", "table", "copy"))
    write(log)
    archive = (ROOT / "jobs" / "archive.py", log, table)
    said = run(*archive, "--topic=t", f"--checkpoint={tmp_path / 'checkpoint'}")
    assert said.startswith("archive t: 6 rows in 1 micro-batch, ")
    module = "from kafkalog.jobs.cli.app import main; main()"
    said = run("-c", module, "run", "restore", table, copy, "--topic=t")
    assert said == "restore t: 6 records in 1 topic"

    with serve(tmp_path / "broker", [copy], [Topic("t", 3)]) as broker:
        assert broker.offsets("t") == BOUNDS
        served = sorted(broker.consume_all("t"))
        assert broker.complaints() == []
    assert served == [
        Record(
            *(row["partition"], row["offset"], row["timestampType"] + 1, row["timestamp"]),
            *(row["key"], row["value"]),
            [(each["key"], each["value"]) for each in row["headers"] or []] or None,
        )
        for row in sorted(
            read_batch(path=str(log), subscribe="t"),
            key=lambda row: (row["partition"], row["offset"]),
        )
    ]


def fill_bucket(place: str) -> None:
    """Append to two topics, one of which is compacted; merge, compact and trim; append again."""
    root = bucket_of([place])
    assert root is not None
    for number in range(24):
        if number == 20:
            assert merge(root).segments
            assert not compact([place], Wanted(forces=True)).problems
            retention.delete_records([place], {TopicPartition("t", 1): 30})
        count = number % 7 + 3
        batch = pa.table(
            {
                "key": [f"k{row % 5}" for row in range(count)],
                "value": [f"{number} {row} " * 9 for row in range(count)],
                "partition": pa.array([row % 3 for row in range(count)], pa.int32()),
                "timestamp": pa.array([1_700_000_000_000 + number * 1000] * count, pa.int64()),
            }
        )
        given = {"numPartitions": "3", "segment.bytes": "2000", "index.interval.bytes": "300"}
        kafkalog.append(place, "t", batch, options=given)
        kafkalog.append(place, "c", batch, options={**given, "cleanup.policy": "compact"})


@pytest.mark.nightly
def test_a_broker_serves_a_backup_of_a_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_rests(monkeypatch)
    stores: dict[str, FolderObjects] = {}
    monkeypatch.setattr(
        bucket_store,
        "open_objects",
        lambda place: stores.setdefault(str(place), FolderObjects(tmp_path / str(place)[-3:])),
    )
    bucket, again = (f"s3a://bucket{tmp_path}/{name}" for name in ("one", "two"))
    copy, second = tmp_path / "copy", tmp_path / "second"
    fill_bucket(bucket)
    done = back_up([bucket], str(copy))
    assert (done.at_one_moment, done.problems) == (True, ())
    files = [path for kind in ("log", "index", "timeindex") for path in copy.rglob(f"*.{kind}")]
    report = dump_log_segments([path for path in files if path.stat().st_size])
    holes = ("Non-consecutive offsets", " is followed by ")  # of the topic that is compacted
    assert [each for each in report.findings if not any(some in each for some in holes)] == []
    consecutive = dump_log_segments([p for p in copy.glob("t-*/*.log") if p.stat().st_size])
    assert consecutive.findings == []

    expected = {}
    for topic in ("t", "c"):
        table = kafkalog.read(bucket, topic, options={"includeHeaders": "true"}).read_all()
        assert kafkalog.read(copy, topic, options={"includeHeaders": "true"}).read_all() == table
        expected[topic] = table
        kept = {"preserveOffsets": "true", "numPartitions": "3"}
        kafkalog.append(again, topic, table.drop_columns(["topic"]), options=kept)
        assert kafkalog.read(again, topic, options={"includeHeaders": "true"}).read_all() == table
    assert back_up([again], str(second)).problems == ()

    with serve(tmp_path / "broker", [copy], [Topic("t", 3), Topic("c", 3)]) as broker:
        for topic, table in expected.items():
            served = [(r.partition, r.offset, r.value) for r in broker.consume_all(topic)]
            rows_read = table.select(["partition", "offset", "value"]).to_pylist()
            assert sorted(served) == sorted(tuple(each.values()) for each in rows_read)
        assert broker.complaints() == []
