"""A broker serves a copy whose logs start and end where no record is, and continues after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.dump_log import dump_log_segments, partition_files
from tests.support.kafka import Topic, serve
from tests.support.sinking import Writer, rows

import kafkalog
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.topics import Bounds, create, set_bounds

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.interop

BOUNDS = {0: (3, 10), 1: (0, 7), 2: (500, 500), 3: (500, 503)}
"""By partition: a last record at 7, no record, no offset, the last record where it should be."""


def write(log: Path) -> None:
    create([str(log)], "t", partitions=4, starts={0: 3, 2: 500, 3: 500})
    writer = Writer(log, topic="t", preserveOffsets="true")
    batch = rows(["a", "b", "c", "d"], partitions=[0, 0, 3, 3])
    writer.write(0, batch.append_column("offset", pa.array([3, 7, 500, 502], pa.int64())))
    bounds = {TopicPartition("t", number): Bounds(*each) for number, each in BOUNDS.items()}
    set_bounds([str(log)], bounds)


def test_a_broker_keeps_starts_and_ends_and_appends_after_them(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write(log)
    findings = dump_log_segments(partition_files(log)).findings
    assert [f for f in findings if "onsecutive" not in f and "followed" not in f] == []
    with serve(tmp_path / "broker", [log], [Topic("t", 4)]) as broker:
        assert broker.offsets("t") == BOUNDS
        assert [(r.partition, r.offset, r.value) for r in broker.consume_all("t")] == [
            (0, 3, b"a"),
            (0, 7, b"b"),
            (3, 500, b"c"),
            (3, 502, b"d"),
        ]
        broker.produce("t", [(None, b"new")] * 4, over=4)
        added = [(r.partition, r.offset) for r in broker.consume_all("t") if r.value == b"new"]
        assert added == [(number, end) for number, (_, end) in BOUNDS.items()]
        assert broker.complaints() == []
        broker.stop()
        (data,) = broker.log_dirs
        found = kafkalog.read(str(data), "t").read_all().to_pylist()
    ours = sorted((row["partition"], row["offset"]) for row in found)
    assert ours == sorted([(0, 3), (0, 7), (3, 500), (3, 502), *added])
