"""``kafkalog find`` looks through all partitions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.corpus import UnpackedCase
from typer.testing import CliRunner

import kafkalog
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.inspection.records import RecordFilter, RecordReader

if TYPE_CHECKING:
    from pathlib import Path

STAMP = 1_700_000_000_000


def call(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["find", *map(str, words)])
    return done.exit_code, done.output


def found(*words: object) -> list[tuple[str, int, int]]:
    code, text = call(*words, "--json")
    if code == 1:
        assert text.startswith("no such record is in ")
        return []
    rows: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    assert rows
    return [(row["topic"], row["partition"], row["offset"]) for row in rows]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give two topics: 60 records in three partitions, and one record."""
    table = pa.table(
        {
            "key": pa.array([f"k{n % 7}".encode() for n in range(60)]),
            "value": pa.array([b"\xff" + f"Value {n}".encode() for n in range(60)]),
            "partition": pa.array([n % 3 for n in range(60)], pa.int32()),
            "timestamp": pa.array([STAMP + n for n in range(60)], pa.timestamp("ms")),
        }
    )
    kafkalog.append(tmp_path, "t", table, options={"numPartitions": "3"})
    kafkalog.append(tmp_path, "u", pa.table({"value": ["Value 7", None]}))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--regex", "Value 7$"], [("t", 1, 2), ("u", 0, 0)]),
        (["--regex", "value 7$"], []),
        (["--regex", "value 7$", "-i", "--topic", "t"], [("t", 1, 2)]),
        (["--text", "Value 59"], [("t", 2, 19)]),
        (["--text", "k6", "--in", "key", "--partition", 0, "--topic", "t"], None),
        (["--text", "k6", "--in", "value"], []),
        (["--key", "k6", "--until", STAMP + 14], [("t", 0, 2), ("t", 1, 4)]),
        (["--key", "6b36", "--hex", "--topic", "t", "--count", 1], [("t", 0, 2)]),
    ],
)
def test_what_is_named_is_found_in_order(
    log: Path, words: list[object], expected: list[tuple[str, int, int]] | None
) -> None:
    if expected is None:
        expected = [("t", 0, n // 3) for n in range(60) if n % 7 == 6 and n % 3 == 0]
    assert found(log, *words) == expected


def test_a_table_shows_what_is_found_and_nothing_found_ends_with_1(log: Path) -> None:
    code, text = call(log, "--text", "Value 7", "--topic", "u")
    assert code == 0
    assert text.split()[7:12] == ["u", "0", "0", text.split()[10], "Value"]
    assert call(log, "--text", "nowhere") == (1, "no such record is in t, u\n")


def test_records_are_shown_as_kcat_shows_them(log: Path) -> None:
    words = ("--text", "Value 7", "--topic", "t,u", "--format", r"%t-%p@%o %k\n")
    assert call(log, *words) == (0, "t-1@2 k0\nu-0@0 \n")


def test_what_cannot_be_looked_for_is_refused_in_one_line(log: Path) -> None:
    for words, expected in [
        ([], "say what to look for"),
        (["--regex", "("], "is no regular expression"),
        (["--regex", "a", "--text", "b"], "not both"),
        (["--text", "a", "--format", "%k", "--json"], "--format and --json, not both"),
        (["--text", "a", "--format", "%y"], "%y"),
        (["--text", "a", "--topic", "none"], "none"),
        (["--text", "a", "--topic", "t,u", "--partition", 2], "u-2 is not in"),
    ]:
        code, text = call(log, *words)
        assert code == 2
        assert expected in text
        assert len(text.splitlines()) == 1


def test_threads_give_what_one_thread_gives_and_say_how_far_they_are(tmp_path: Path) -> None:
    path = UnpackedCase("p01-codecs", tmp_path).path
    topics = sorted({key["topic"] for key in _topics(path)})
    reader = RecordReader.of({"path": path, "splitBytes": "1000"}, topics, RecordFilter())
    told: list[tuple[int, int]] = []
    threaded = pa.Table.from_batches(reader.read_all(lambda *bytes_: told.append(bytes_)))
    alone = pa.Table.from_batches(b for split in reader.splits() for b in reader.read(split))
    assert threaded.equals(alone)
    assert told == sorted(told)
    assert told[0][0] == 0
    assert told[-1][0] == told[-1][1] > 0


def _topics(path: str) -> list[dict[str, Any]]:
    text = CliRunner().invoke(app, ["topics", path, "--json"]).output
    return [json.loads(line) for line in text.splitlines()]


def test_a_bar_is_shown_on_a_terminal_only(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["find", str(log), "--text", "Value 7", "--json"]
    assert CliRunner().invoke(app, words).stderr == ""
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = CliRunner().invoke(app, words)
    assert done.stderr != ""
    assert len([json.loads(line) for line in done.stdout.splitlines()]) == 2


def test_a_topic_of_ours_whose_name_begins_as_those_of_kafka_is_looked_through(
    tmp_path: Path,
) -> None:
    options = {"allowInternalTopics": "true"}
    for topic in ("__audit", "__consumer_offsets"):
        kafkalog.append(tmp_path, topic, pa.table({"value": ["needle"]}), options=options)
    assert found(tmp_path, "--text", "needle") == [("__audit", 0, 0)]


@pytest.mark.parametrize("option", ["--text", "--regex"])
def test_bytes_that_are_no_text_are_refused_where_a_text_is_looked_for(
    log: Path, option: str
) -> None:
    code, text = call(log, option, "\udcff")
    assert (code, text) == (
        2,
        f"{option} has bytes that are not UTF-8: '\\udcff', from ff on. Expected text\n",
    )


def test_a_key_may_be_any_bytes(log: Path) -> None:
    assert call(log, "--key", "\udcff")[0] == 1
