"""What somebody meets who has just installed ``kafkalog``."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pyarrow as pa
from typer.testing import CliRunner

import kafkalog
from kafkalog.jobs.cli.app import FIRST_PAGE, app

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def call(*words: object, data: str = "") -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words], input=data)
    return done.exit_code, done.output


def test_the_command_alone_shows_a_page_to_begin_with() -> None:
    assert call() == (0, FIRST_PAGE + "\n")
    assert max(map(len, FIRST_PAGE.splitlines())) <= 92
    assert call("--version") == (0, kafkalog.__version__ + "\n")
    assert "--install-completion" in call("--help")[1]


def test_what_the_page_says_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line.strip() for line in FIRST_PAGE.splitlines() if "kafkalog " in line[:30]]
    said = [line for line in lines if "first-log" in line]
    assert len(said) == 3
    for line in said:
        given, _, command = line.rpartition(" | ")
        code, text = call(*shlex.split(command)[1:], data=given.removeprefix("echo ") + "\n")
        assert code == 0
    assert "hello" in text
    looking = [re.split(r"  +", line)[0] for line in lines if "LOG " in line]
    assert len(looking) == 6
    for line in looking:
        command = line.replace("LOG", "first-log").replace("4711", "hello")
        command = re.sub(r"\bT\b", "greetings", command)
        code, text = call(*shlex.split(command)[1:])
        assert code == 0, (line, text)


def test_folders_near_a_log_directory_are_named(tmp_path: Path) -> None:
    kafkalog.append(tmp_path / "data" / "log", "t", pa.table({"value": ["a"]}))
    (tmp_path / "data" / "log" / "more").mkdir()
    (tmp_path / "data" / "log" / "more" / "notes").touch()
    code, text = call("topics", tmp_path / "data")
    assert (code, f"Log directories in it: {tmp_path / 'data' / 'log'}" in text) == (2, True)
    code, text = call("topics", tmp_path / "data" / "log" / "more")
    assert (code, f"Its parent is a log directory: {tmp_path / 'data' / 'log'}" in text) == (
        2,
        True,
    )
    assert call("topics", tmp_path)[1].endswith("but data\n")


def test_the_time_as_of_which_to_look_is_text_or_milliseconds(tmp_path: Path) -> None:
    rows = {
        "key": ["k", "k"],
        "value": ["old", "new"],
        "timestamp": pa.array([1_700_000_000_000, 1_700_000_001_000], pa.timestamp("ms")),
    }
    kafkalog.append(tmp_path, "t", pa.table(rows))
    for time in ("1700000001000", "2023-11-14T22:13:21Z"):
        words = ("get", tmp_path, "--topic", "t", "--key", "k", "--as-of-timestamp", time)
        code, text = call(*words)
        assert (code, "old" in text, "new" in text) == (0, True, False)
    code, text = call(*words[:-1], 1_700_000_001)
    assert (code, "looks like seconds" in text) == (2, True)


def test_the_functions_are_listed() -> None:
    assert {"append", "get", "read", "tail", "__version__"} <= set(dir(kafkalog))
