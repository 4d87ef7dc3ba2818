"""A broker serves what was archived and restored: by the commands, as a person runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.distributions import ROOT
from tests.support.kafka import Record, Topic, serve
from tests.support.reading import read_batch
from tests.support.sinking import Writer, rows

from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.topics import Bounds, create, set_bounds

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
