"""Kafka's dump tool on segments that were staged files before."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.dump_log import dump_log_segments
from tests.support.sinking import Writer, adopt_small_files, rows, values_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_the_dump_tool_finds_nothing_wrong_with_adopted_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    adopt_small_files(monkeypatch)
    writer = Writer(
        tmp_path,
        topic="t",
        numPartitions="2",
        compression__type=codec,
        segment__bytes="60000",
        index__interval__bytes="500",
    )
    values = [f"{number} " * 20 for number in range(1500)]
    adopted = set()
    for batch_id in range(3):
        part = values[500 * batch_id : 500 * (batch_id + 1)]
        stamps = [1_700_000_000_000 + 7 * (number ^ 3) for number in range(len(part))]
        tasks = [
            rows(part[start::2], partitions=[start] * 250, timestamps=stamps[:250])
            for start in range(2)
        ]
        runs = writer.stage(batch_id, *tasks)
        staged = {(tmp_path / run.file).stat().st_ino for run in runs if run.whole_file}
        writer.commit(batch_id, runs)
        adopted |= staged & {path.stat().st_ino for path in tmp_path.rglob("*.log")}
    assert len(adopted) >= 2
    found = [value for part in values_of([tmp_path], "t").values() for value in part]
    assert sorted(found) == sorted(values)
    files = [path for kind in ("log", "index", "timeindex") for path in tmp_path.rglob(f"*.{kind}")]
    assert dump_log_segments([path for path in files if path.stat().st_size]).findings == []
