"""Every view and command over logs that a broker accepts and that few have seen."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.consuming import consumer
from tests.support.odd_logs import ODD_LOGS, OddRecord, batch, rows_in_ms
from typer.testing import CliRunner

import kafkalog
from kafkalog.errors import CorruptRecordError, TimestampOutOfRangeError
from kafkalog.jobs.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path

READABLE = {name: odd for name, odd in ODD_LOGS.items() if not odd.is_refused}
OLD = ["magic 0, empty and null", "magic 1, bytes", "magic 1, times without end"]
PLAIN = [name for name in READABLE if "gzip" not in name and (name[:5] != "magic" or name in OLD)]
REFUSED = {name: odd for name, odd in ODD_LOGS.items() if odd.is_refused}
COMMANDS = [
    "dump LOG --topic t",
    "dump LOG --topic t --records",
    "dump LOG/t-0 --records --json --hex",
    "dump SEGMENT",
    "dump LOG --topic t --format %t%p%o%T%k%K%s%S%h",
    "find LOG --text last",
    "get LOG --topic t --key k",
    "topics LOG",
    "describe LOG --topic t",
    "stats LOG",
    'lag LOG --offsets {"t":{"0":1}}',
    "report LOG",
    "plot LOG",
]
QUERIES = ["from t", "from t where timestamp > '1960-01-01' order by value_text", "from batches"]


def call(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.mark.parametrize("name", READABLE)
def test_rows_are_what_the_records_say_whatever_the_header_says(name: str, tmp_path: Path) -> None:
    odd = READABLE[name]
    odd.write(tmp_path)
    assert rows_in_ms(tmp_path) == odd.rows


@pytest.mark.parametrize("name", READABLE)
def test_every_view_reads_it(name: str, tmp_path: Path) -> None:
    odd = READABLE[name]
    odd.write(tmp_path)
    options = {"onTimestampOverflow": "null"}
    for view, count in (("records", len(odd.offsets)), ("batches", odd.batches), ("latest", None)):
        found = kafkalog.read(tmp_path, "t", options={**options, "view": view}).read_all()
        assert count in {None, found.num_rows}, view
    tailed = kafkalog.tail(tmp_path, "t", options={**options, "startingOffsets": "earliest"})
    seen = 0
    while seen < len(odd.offsets):
        seen += next(tailed).num_rows
    assert seen == len(odd.offsets)
    newest = kafkalog.get(tmp_path, "t", b"k", options=options)
    assert newest is not None
    assert newest["value"] == b"last"
    wanted = {record.key for record in odd.all_records if record.key is not None}
    scanned = kafkalog.scan(tmp_path, "t", prefix=b"", options={**options, "tombstones": "true"})
    assert {key for batch in scanned for key in batch.column("key").to_pylist()} == wanted


THIRDS = [
    pytest.param(name, part, marks=() if number % 3 == part else pytest.mark.nightly)
    for number, name in enumerate(PLAIN)
    for part in range(3)
]
"""Each log with a third of the commands, in turn; `make nightly` runs the other two."""


@pytest.mark.parametrize(("name", "part"), THIRDS)
def test_every_command_shows_it(name: str, part: int, tmp_path: Path) -> None:
    segment = READABLE[name].write(tmp_path)
    for line in COMMANDS[part::3]:
        words = [
            word.replace("LOG", str(tmp_path)).replace("SEGMENT", str(segment))
            for word in line.split()
        ]
        code, text = call(*words)
        assert code == 0, (line, text)
        if "%" not in line:
            assert all(each.isprintable() for each in text.splitlines()), line
    for query in QUERIES[part::3]:
        for words in ([], ["--json"]):
            code, text = call("sql", tmp_path, f"select * {query}", *words)
            assert code == 0, (query, text)


@pytest.mark.parametrize("name", REFUSED)
def test_a_count_that_is_wrong_is_refused_and_hides_no_other_record(
    name: str, tmp_path: Path
) -> None:
    odd = REFUSED[name]
    odd.write(tmp_path)
    with pytest.raises(CorruptRecordError, match="onCorruptRecord=skip"):
        kafkalog.read(tmp_path, "t").read_all()
    found = kafkalog.read(tmp_path, "t", options={"onCorruptRecord": "skip"}).read_all()
    assert found.column("offset").to_pylist() == odd.offsets


@pytest.mark.parametrize("name", ODD_LOGS)
def test_verify_names_a_header_that_disagrees_with_its_records(name: str, tmp_path: Path) -> None:
    odd = ODD_LOGS[name]
    segment = odd.write(tmp_path)
    code, text = call("verify", tmp_path, "--json")
    problem = json.loads(text.splitlines()[0])["problem"]
    if odd.finding is None:
        assert (code, problem) == (0, None)
        return
    assert code == 1
    assert odd.finding in problem
    position = segment.read_bytes().index(odd.data)
    assert f"{segment}: " in problem or f"{segment} at " in problem
    assert f" {position}" in problem


@pytest.mark.parametrize("name", REFUSED)
def test_a_batch_that_is_refused_is_named_at_the_end_of_a_log_too(
    name: str, tmp_path: Path
) -> None:
    odd = REFUSED[name]
    segment = odd.write(tmp_path)
    data = segment.read_bytes()
    segment.write_bytes(data[: data.index(odd.data) + len(odd.data)])
    assert call("verify", tmp_path)[0] == 1
    with pytest.raises(CorruptRecordError, match="onCorruptRecord=skip"):
        kafkalog.read(tmp_path, "t").read_all()
    found = kafkalog.read(tmp_path, "t", options={"onCorruptRecord": "skip"}).read_all()
    assert found.column("offset").to_pylist() == [0]


def test_of_many_batches_with_odd_headers_the_first_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    segment = folder / f"{0:020d}.log"
    segment.write_bytes(b"".join(batch([OddRecord()], at, max_time=1) for at in range(40)))
    code, text = call("verify", tmp_path)
    assert code == 1
    assert text.count("its records' largest timestamp") == 5
    assert "35 more batches with such headers" in text


def test_a_time_beyond_sparks_is_ruled_by_one_option(tmp_path: Path) -> None:
    odd = ODD_LOGS["times without end"]
    odd.write(tmp_path)
    with pytest.raises(TimestampOutOfRangeError, match="onTimestampOverflow to null"):
        kafkalog.read(tmp_path, "t").read_all()
    found = kafkalog.read(tmp_path, "t", options={"onTimestampOverflow": "null"}).read_all()
    shown = found.column("timestamp").cast(pa.int64()).to_pylist()
    fits = [-(2**63) <= record.time * 1000 < 2**63 for record in odd.all_records]
    assert [each is not None for each in shown] == fits


@given(times=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5))
@settings(max_examples=15, deadline=None)
def test_a_copy_keeps_all_64_bits_of_a_time(
    times: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = tmp_path_factory.mktemp("log")
    table = pa.table({"value": ["v"] * len(times), "timestamp": pa.array(times, pa.int64())})
    kafkalog.append(log, "t", table)
    assert [row["timestamp"] for row in rows_in_ms(log)] == times
    assert call("verify", log)[0] == 0


def test_a_member_of_a_group_polls_it(tmp_path: Path) -> None:
    source, log = tmp_path / "source", tmp_path / "log"
    times = [0, -1, -2, -86_400_001]
    table = pa.table(
        {
            "key": pa.array([b"", None, b"\xff", b"k"]),
            "value": pa.array([None, b"", b"\x1b", b"v"]),
            "timestamp": pa.array(times, pa.int64()),
        }
    )
    kafkalog.append(source, "in", table)
    kafkalog.append(log, "in", table)
    with consumer(log) as member:
        polled = member.poll(5)
    assert polled is not None
    assert polled.column("value").to_pylist() == table.column("value").to_pylist()
    code, text = call("dump", log, "--topic", "in", "--records", "--json", "--hex")
    assert code == 0
    assert [json.loads(line)["timestamp"] for line in text.splitlines()] == times
    copy = tmp_path / "copy"
    given = ["append", copy, "--topic", "in", "--input", "json", "--hex"]
    done = CliRunner().invoke(app, list(map(str, given)), input=text)
    assert done.exit_code == 0, done.output
    assert call("dump", copy, "--topic", "in", "--records", "--json", "--hex") == (0, text)
