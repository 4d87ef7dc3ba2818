"""Look-ups of many keys give what the newest of all records are, in order, from any memory."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.newest import newest_of, open_spills
from tests.support.reading import read_batch
from typer.testing import CliRunner

import kafkalog
from kafkalog.errors import OptionError, SpillError, UnknownTopicOrPartitionError
from kafkalog.jobs.cli.app import app
from kafkalog.streaming.lookup import ordered_rows

if TYPE_CHECKING:
    from pathlib import Path

START = 1_700_000_000_000
COUNT = 3000
SPILLING = {"table.memory": 1 << 16}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give three partitions, with keys in both halves of the bytes, some of them deleted."""
    path = tmp_path_factory.mktemp("log")
    for number in range(3):
        keys = [_key(n * 37 % 700) for n in range(COUNT)]
        rows = pa.table(
            {
                "key": keys,
                "value": [
                    None if n % 11 == number else b"%d.%d" % (number, n) for n in range(COUNT)
                ],
                "partition": pa.array([n % 3 for n in range(COUNT)], pa.int32()),
                "timestamp": pa.array([START + number] * COUNT, pa.timestamp("ms")),
            }
        )
        kafkalog.append(path, "t", rows, options={"numPartitions": "3"})
    return path


def _key(number: int) -> bytes:
    return bytes([number % 7 * 42]) + b"%d" % (number // 7)


def expected(log: Path, low: bytes, high: bytes | None, **options: str) -> list[dict[str, Any]]:
    newest = newest_of(read_batch(path=str(log), subscribe="t", **options))
    rows = sorted(newest.values(), key=lambda row: (row["key"], row["partition"]))
    return [row for row in rows if row["key"] >= low and (high is None or row["key"] < high)]


def scanned(log: Path, **given: Any) -> list[dict[str, Any]]:
    return [row for batch in kafkalog.scan(log, "t", **given) for row in batch.to_pylist()]


BOUNDS = st.one_of(st.binary(max_size=2), st.integers(0, 699).map(_key))


@settings(deadline=None, max_examples=25)
@given(BOUNDS, st.one_of(st.none(), BOUNDS), st.sampled_from([{}, SPILLING]), st.integers(0, 4))
def test_keys_between_two_come_in_order_as_of_any_time(
    log: Path, low: bytes, high: bytes | None, options: dict[str, Any], time: int
) -> None:
    found = scanned(log, low=low, high=high, as_of_timestamp=START + time, options=options)
    assert found == expected(log, low, high, endingTimestamp=str(START + time))


def test_keys_that_begin_with_a_prefix_and_those_of_one_partition(log: Path) -> None:
    stem = bytes([42])
    assert scanned(log, prefix=stem) == expected(log, stem, bytes([43]))
    every = expected(log, b"", None)
    assert len(every) > 1000
    assert scanned(log, prefix="") == scanned(log) == every
    assert scanned(log, partition=1) == [row for row in every if row["partition"] == 1]
    ending = {"endingOffsets": json.dumps({"t": {"0": -1, "1": 900, "2": -1}})}
    then = expected(log, b"", None, **ending)
    found = scanned(log, partition=1, as_of_offset=900)
    assert found == [row for row in then if row["partition"] == 1]


def test_a_scan_with_little_memory_spills_and_leaves_nothing(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    batches = kafkalog.scan(log, "t", options=SPILLING)
    first = next(batches)
    assert open_spills(tmp_path)
    rest = [row for batch in batches for row in batch.to_pylist()]
    assert first.to_pylist() + rest == expected(log, b"", None)
    assert open_spills(tmp_path) == []
    abandoned = kafkalog.scan(log, "t", options=SPILLING)
    next(abandoned)
    del abandoned
    assert open_spills(tmp_path) == []


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(SpillError, match="No space left on device"):
        scanned(log, options=SPILLING)
    assert open_spills(tmp_path) == []
    words = ["get", str(log), "--topic", "t", "--prefix", "", "--set", "table.memory=64k"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert done.output.count("\n") == 1
    assert "No space left on device; make room there" in done.output


def test_the_command_shows_them_from_any_memory(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ordered_rows.OrderedRows] = []
    begin = ordered_rows.OrderedRows.__init__

    def note(self: ordered_rows.OrderedRows, memory: int) -> None:
        made.append(self)
        begin(self, memory)

    monkeypatch.setattr(ordered_rows.OrderedRows, "__init__", note)
    monkeypatch.setattr(ordered_rows.SortedRuns, "close", lambda _: None)
    words = ["get", str(log), "--topic", "t", "--from", "2a", "--to", "7f", "--hex", "--json"]
    shown = [
        CliRunner().invoke(app, [*words, *more]) for more in ([], ["--set", "table.memory=64k"])
    ]
    assert shown[0].exit_code == shown[1].exit_code == 0
    assert shown[0].output == shown[1].output
    keys = [json.loads(line)["key"] for line in shown[0].output.splitlines()]
    assert keys == [row["key"].hex() for row in expected(log, b"\x2a", b"\x7f")]
    assert [each.spilled for each in made] == [False, True]


def test_arguments_that_contradict_each_other_are_refused(log: Path) -> None:
    with pytest.raises(OptionError, match="not both"):
        scanned(log, prefix="a", high="b")
    with pytest.raises(OptionError, match="needs a partition"):
        scanned(log, as_of_offset=3)
    with pytest.raises(UnknownTopicOrPartitionError, match="t-7 is not in"):
        scanned(log, partition=7)
