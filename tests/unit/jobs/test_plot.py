"""``kafkalog plot`` shows what is in topics: as numbers, as bars, and as a picture."""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.corpus import UnpackedCase
from typer.testing import CliRunner

import kafkalog
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.inspection.figures import Timeline

if TYPE_CHECKING:
    from pathlib import Path

STAMP = 1_700_000_000_000
DAY = 86_400_000
NOISE = np.random.default_rng(1).bytes(300)
PNG = b"\x89PNG\r\n\x1a\n"


def call(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["plot", *(str(word) for word in words)])
    return done.exit_code, done.output


def numbers(*words: object) -> list[dict[str, Any]]:
    code, text = call(*words, "--json")
    assert code == 0, text
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a topic of two partitions, with batches of two days: of t-0 in two segments."""
    for day in range(2):
        stamps = pa.array([STAMP + day * DAY] * 4, pa.timestamp("ms"))
        rows = {"value": [NOISE] * 4, "partition": pa.array([0, 0, 0, 1], pa.int32())}
        table = pa.table({**rows, "timestamp": stamps})
        codec = {"compression.type": ("zstd", "none")[day]}
        sizes = {"segment.bytes": "1100", "max.message.bytes": "1100", "numPartitions": "2"}
        kafkalog.append(tmp_path / "log", "t", table, options={**codec, **sizes})
    return tmp_path / "log"


def test_each_kind_of_row_sums_up_to_what_stats_counts(log: Path) -> None:
    found = numbers(log)
    done = CliRunner().invoke(app, ["stats", str(log), "--json"])
    for counted in map(json.loads, done.output.splitlines()):
        ours = [row for row in found if row["partition"] == counted["partition"]]
        for kind in ("time", "segment", "batchSize", "codec"):
            rows = [row for row in ours if row["kind"] == kind]
            assert sum(row["bytes"] for row in rows) == counted["bytes"]
        times = [row for row in ours if row["kind"] == "time"]
        assert [row["from"] for row in times] == [STAMP, STAMP + DAY]
        assert sum(row["records"] for row in times) == counted["records"]
        segments = [row for row in ours if row["kind"] == "segment"]
        ends = {0: {0: STAMP, 3: STAMP + DAY}, 1: {0: STAMP + DAY}}[counted["partition"]]
        assert {row["baseOffset"]: row["lastTimestamp"] for row in segments} == ends
        codecs = {row["codec"]: row["batches"] for row in ours if row["kind"] == "codec"}
        assert codecs == {"none": 1, "zstd": 1}
        for row in ours:
            if row["kind"] == "batchSize":
                assert row["minBytes"] * row["batches"] <= row["bytes"]
                assert row["bytes"] <= row["maxBytes"] * row["batches"]


def test_bars_are_for_people(log: Path) -> None:
    code, text = call(log)
    assert code == 0
    for shown in ("t: 8 records, ", "t-1  ", "2023-11-15T22:13:20.000Z", "1 y or more", "zstd"):
        assert shown in text
    longest, shorter = (
        next(line for line in text.splitlines() if line.strip().startswith(name))
        for name in ("t-0", "t-1")
    )
    assert longest.count("\u2588") == 32 > shorter.count("\u2588") > 0


def test_a_picture_is_drawn(log: Path, tmp_path: Path) -> None:
    assert call(log, "--topic", "t", "--png", tmp_path / "t.png") == (0, "")
    assert (tmp_path / "t.png").read_bytes().startswith(PNG)
    code, text = call(log, "--png", tmp_path / "missing" / "t.png")
    assert (code, str(tmp_path / "missing" / "t.png") in text) == (2, True)


def test_without_matplotlib_it_says_what_to_install(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, text = call(log, "--png", tmp_path / "t.png")
    assert (code, "pip install 'kafkalog[plot]'" in text) == (2, True)
    assert call(log)[0] == 0


@pytest.mark.parametrize("name", ["p06-transactions", "p13-v0v1", "p08-retention-deleterecords"])
def test_what_brokers_wrote_is_shown(name: str, tmp_path: Path) -> None:
    path = UnpackedCase(name, tmp_path).path
    rows = numbers(path)
    kinds = Counter(row["kind"] for row in rows)
    assert set(kinds) == {"time", "segment", "batchSize", "codec"}
    sums = {kind: sum(row["bytes"] for row in rows if row["kind"] == kind) for kind in kinds}
    assert len(set(sums.values())) == 1
    assert call(path)[0] == 0
    assert call(path, "--png", tmp_path / "all.png") == (0, "")


def test_what_has_no_records_is_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["create", str(tmp_path / "log"), "--topic", "empty"])
    assert done.exit_code == 0
    code, text = call(tmp_path / "log")
    assert (code, "empty: 0 records, 0 B" in text) == (0, True)
    assert numbers(tmp_path / "log") == []
    assert call(tmp_path / "log", "--png", tmp_path / "t.png") == (0, "")
    code, text = call(tmp_path / "log", "--topic", "other")
    assert (code, "other" in text) == (2, True)


@given(
    st.lists(
        st.tuples(st.integers(-1, 2**63 - 1), st.integers(0, 1000), st.integers(1, 1000)),
        max_size=60,
    )
)
def test_any_times_are_in_the_span_that_they_lie_in(batches: list[tuple[int, int, int]]) -> None:
    timeline = Timeline(8)
    for part in (batches[::2], batches[1::2]):
        timeline.add(*np.array(part or np.empty((0, 3)), np.int64).T)
    width = timeline.width_ms
    expected: dict[int, list[int]] = {}
    for stamp, records, size in batches:
        if stamp >= 0:
            counts = expected.setdefault(stamp // width, [0, 0])
            counts[0] += records
            counts[1] += size
    assert timeline.spans == expected
    assert len(timeline.spans) <= 8 or width == 864_000_000_000
    assert timeline.untimed[1] == sum(size for stamp, _, size in batches if stamp < 0)
