"""Options that mean the same everywhere: the path, the form of output, times, sizes, -q and -v."""

from __future__ import annotations

import csv
import io
import json
import logging
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

import kafkalog
from kafkalog.errors import OptionError
from kafkalog.files.system import system
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.process.arguments import given_settings, point_in_time
from kafkalog.streaming.options.quantities import parse_iso_time
from kafkalog.streaming.sink.write_options import WriteOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOW = parse_iso_time("2026-11-28T09:30:00Z")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    log = tmp_path_factory.mktemp("a b") / "log"
    rows = pa.table({"key": list("abcde"), "value": ["1", 'two "2"', "3,3", "4\n4", "\x1b[2J"]})
    kafkalog.append(log, "t", rows)
    kafkalog.append(log, "u", rows.slice(0, 1))
    return str(log)


@pytest.fixture(scope="module")
def commands() -> dict[str, Any]:
    command: Any = typer.main.get_command(app)
    return {name: each for name, each in command.commands.items() if not each.hidden}


def ran(*words: str, code: int = 0, **environment: str) -> str:
    done = CliRunner().invoke(app, words, env=environment)
    assert done.exit_code == code, done.output
    return done.stdout


def test_an_option_means_the_same_in_every_command(commands: dict[str, Any]) -> None:
    meant = {
        "-t": "--topic",
        "-p": "--partition",
        "-o": "--offset",
        "-n": "--limit",
        "-g": "--group",
        "-k": "--key",
        "-q": "--quiet",
    }
    for name, command in commands.items():
        for option in command.params:
            for short in set(option.opts) & meant.keys():
                assert meant[short] in option.opts, (name, short)
            for long in set(option.opts) & {"--topic", "--partition", "--limit"}:
                short = next(s for s, each in meant.items() if each == long)
                assert short in option.opts, (name, long)


def test_what_changes_can_be_tried_and_what_destroys_can_be_told_not_to_ask(
    commands: dict[str, Any],
) -> None:
    options = {name: {o for p in c.params for o in p.opts} for name, c in commands.items()}
    changes = "topic create/topic alter/topic delete/topic trim/group reset/group delete/retain/"
    changes += "compact/recover/salvage/broker handover/broker takeover/node elect/node reassign/"
    changes += "node vote"
    with_dry_run = {name for name, has in options.items() if "--dry-run" in has}
    assert with_dry_run == set(changes.split("/"))
    asks = {name for name, has in options.items() if "--yes" in has}
    assert asks == with_dry_run - {"topic create", "recover", "broker handover", "broker takeover"}


def test_where_no_path_is_named_it_is_that_of_the_environment(log: str, tmp_path: Path) -> None:
    assert "t" in ran("topic", "list", KAFKALOG_PATH=log)
    assert ran("consume", "-t", "t", "-n", "1", "-f", "%k", KAFKALOG_PATH=log) == "a"
    assert ran("consume", log, "-t", "t", "-n", "1", "-f", "%k", KAFKALOG_PATH="nowhere") == "a"
    assert "nothing is damaged" in ran("salvage", "t-0", KAFKALOG_PATH=log)
    assert "nothing is damaged" in ran("salvage", KAFKALOG_PATH=log)
    assert "Missing argument 'PATH" in CliRunner().invoke(app, ["topic", "list"]).output
    target = tmp_path / "copy"
    ran("backup", str(target), KAFKALOG_PATH=log)
    assert (target / "t-0").is_dir()


def test_rows_are_a_table_or_json_or_csv(log: str) -> None:
    words = ("topic", "offsets", log)
    rows = [json.loads(line) for line in ran(*words, "--json").splitlines()]
    assert [json.loads(line) for line in ran(*words, "--output", "json").splitlines()] == rows
    table = ran(*words, "--output", "table")
    assert table == ran(*words)
    found = [*csv.DictReader(io.StringIO(ran(*words, "--output", "csv")))]
    assert [{name: str(value) for name, value in row.items()} for row in rows] == found


def test_records_as_csv_hold_no_line_ends_and_nothing_that_moves_the_cursor(log: str) -> None:
    text = ran("consume", log, "-t", "t,u", "--output", "csv")
    rows = [*csv.DictReader(io.StringIO(text))]
    assert len(text.splitlines()) == 1 + 6
    assert [row["value"] for row in rows][1:5] == ['two "2"', "3,3", r"4\n4", r"\x1b[2J"]
    assert text.isascii()
    assert "\x1b" not in text


def test_a_report_as_csv_is_its_partitions(log: str) -> None:
    rows = [*csv.DictReader(io.StringIO(ran("retain", log, "--dry-run", "--output", "csv")))]
    assert {row["topic"] for row in rows} <= {"t", "u"}
    assert ran("recover", log, "--dry-run", "--output", "csv").startswith("topic,partition,")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "time_ns", lambda: NOW * 1_000_000)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("now", "2026-11-28T09:30:00Z"),
        ("1h", "2026-11-28T08:30:00Z"),
        ("90m ago", "2026-11-28T08:00:00Z"),
        ("7d", "2026-11-21T09:30:00Z"),
        ("today", "2026-11-28"),
        ("Yesterday", "2026-11-27"),
        ("2026-11-22T10:15:00Z", "2026-11-22T10:15:00Z"),
        ("1795818992928", "2026-11-27T22:36:32.928Z"),
    ],
)
def test_a_time_is_said_as_people_say_it(text: str, time: str) -> None:
    assert point_in_time("--since", text) == parse_iso_time(time)


@pytest.mark.parametrize("text", ["1x", "tomorrow?", "-1h", "1700000000", "ago"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"^--since is "):
        point_in_time("--since", text)


def test_settings_take_units_and_are_kept_as_kafka_writes_them(log: str) -> None:
    words = ["retention.ms=7d", "retention.bytes=1g", "segment.bytes=64m", "segment.ms=1h"]
    expected = {
        "retention.ms": "604800000",
        "retention.bytes": "1073741824",
        "segment.bytes": "67108864",
        "segment.ms": "3600000",
    }
    assert given_settings(words) == expected
    options = [word for setting in words for word in ("--config", setting)]
    created = json.loads(ran("topic", "create", log, "-t", "kept", *options, "--json"))
    assert created["settings"] == expected
    given = dict(word.split("=") for word in words)
    assert WriteOptions.parse({"path": log, "topic": "x", **given}).settings == expected
    assert given_settings(["retention.ms=-1", "cleanup.policy=compact", "retention.bytes=x"]) == {
        "retention.ms": "-1",
        "cleanup.policy": "compact",
        "retention.bytes": "x",
    }


@pytest.fixture
def warns(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[logging.LogRecord]]:
    heard: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", heard.append)
    logging.getLogger("kafkalog").addHandler(handler)
    yield heard
    logging.getLogger("kafkalog").removeHandler(handler)


def test_quiet_is_without_warnings(
    log: str, tmp_path: Path, warns: list[logging.LogRecord]
) -> None:
    kafkalog.append(tmp_path, "t", pa.table({"value": ["a"]}))
    (tmp_path / "t-7").mkdir()
    said = ran("topic", "list", str(tmp_path))
    assert "t-7 has no .log file" in warns[-1].getMessage()
    warns.clear()
    assert ran("topic", "list", str(tmp_path), "-q") == said
    assert warns == []
    assert logging.getLogger("kafkalog").level == logging.NOTSET
