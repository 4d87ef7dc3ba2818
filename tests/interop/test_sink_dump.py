"""Kafka's dump tool on what the sink wrote: each format and codec, in small appends, recovered."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.dump_log import dump_log_segments
from tests.support.killing import count_calls, run_and_kill
from tests.support.sinking import Writer, rows

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.interop

CODECS = ("none", "gzip", "snappy", "lz4")
MADE = (*product(("v0", "v1", "v2"), CODECS), ("v2", "zstd"))
START_MS = 1_700_000_000_000


def _batch(batch_id: int, count: int = 300) -> pa.RecordBatch:
    numbers = range(batch_id * count, (batch_id + 1) * count)
    return rows(
        [f"value {number} " * (number % 17) for number in numbers],
        keys=[f"key {number % 50}" if number % 7 else None for number in numbers],
        # Not in order, so that the largest timestamp is not always the last one.
        timestamps=[START_MS + 1000 * (number ^ 5) for number in numbers],
    )


def _findings(folder: Path) -> list[str]:
    files = [path for kind in ("log", "index", "timeindex") for path in folder.rglob(f"*.{kind}")]
    indexes = [path for path in files if path.suffix != ".log"]
    sane = dump_log_segments(indexes, deep=False, index_sanity=True)
    # An index without entries is reported as one that is empty, which is no fault.
    return dump_log_segments([path for path in files if path.stat().st_size]).findings + [
        finding for finding in sane.findings if "is empty" not in finding
    ]


def test_the_dump_tool_finds_nothing_wrong(tmp_path: Path) -> None:
    for message_format, codec in MADE:
        folder = tmp_path / message_format / codec
        writer = Writer(
            folder,
            topic="t",
            numPartitions="2",
            message__format=message_format,
            compression__type=codec,
            segment__bytes="4000" if codec != "none" else "30000",
            index__interval__bytes="500",
        )
        for batch_id in range(6):
            writer.write(batch_id, _batch(batch_id))
        assert len(list(folder.rglob("*.log"))) > 2
    assert _findings(tmp_path) == []


def test_the_dump_tool_finds_holes_alone_where_offsets_were_kept(tmp_path: Path) -> None:
    for message_format, codec in MADE:
        writer = Writer(
            tmp_path / message_format / codec,
            topic="t",
            preserveOffsets="true",
            message__format=message_format,
            compression__type=codec,
            segment__bytes="9000",
            index__interval__bytes="500",
        )
        for batch_id in range(2):
            kept = pa.array([3 * (300 * batch_id + n) + n % 2 for n in range(300)], pa.int64())
            writer.write(batch_id, _batch(batch_id).append_column("offset", kept))
    findings = _findings(tmp_path)
    # The tool names the file, and each pair of offsets in a line of its own.
    assert any("Non-consecutive offsets in" in finding for finding in findings)
    others = [
        f for f in findings if "Non-consecutive offsets in" not in f and "is followed by" not in f
    ]
    assert others == []


def test_the_dump_tool_finds_nothing_wrong_after_a_commit_was_cut_off(tmp_path: Path) -> None:
    def writer(folder: Path) -> Writer:
        return Writer(folder, topic="t", segment__bytes="9000", index__interval__bytes="0")

    def write(folder: Path, batch_id: int) -> None:
        writer(folder).write(batch_id, _batch(batch_id, count=100))

    write(tmp_path / "count", 0)
    calls = count_calls(lambda: write(tmp_path / "count", 1))
    for call in range(calls // 4, calls, calls // 8):
        folder = tmp_path / str(call)
        write(folder, 0)
        assert run_and_kill(lambda folder=folder: write(folder, 1), call, half=True)
        # Another writer recovers, and writes nothing of that batch.
        Writer(folder, name="another", topic="other").write(0, _batch(0, count=3))
    assert _findings(tmp_path) == []
