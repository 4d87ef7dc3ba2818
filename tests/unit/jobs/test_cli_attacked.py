"""What a stranger does to the command line: closed pipes, odd terminals, huge numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import kafkalog
from kafkalog.errors import RowError
from kafkalog.jobs.cli import line_input
from kafkalog.jobs.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.long

MAIN = "from kafkalog.jobs.cli.app import main; main()"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attacked") / "log"
    kafkalog.append(folder, "t", pa.table({"key": ["k", "j"], "value": ["a", "\u0151"]}))
    return folder


def shell(line: str, log: Path, **variables: str) -> tuple[int, str, str]:
    """Run a line of a shell, in which ``kafkalog`` and ``$LOG`` are known, above the log.

    What it prints waits in memory, as it does for a user.
    """
    known = {"PYTHON": sys.executable, "MAIN": MAIN, "LOG": str(log), "PYTHONUNBUFFERED": ""}
    ran = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f'kafkalog() {{ "$PYTHON" -c "$MAIN" "$@"; }}\n{line}'],
        cwd=log.parent,
        env={**os.environ, **known, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return ran.returncode, ran.stdout, ran.stderr


def nightly(*words: str) -> list[Any]:
    """Commands that end no other way than those beside them: each takes a process a second."""
    return [pytest.param(each, marks=pytest.mark.nightly) for each in words]


@pytest.mark.parametrize(
    "words",
    [
        *("topics $LOG --json", "plot $LOG --topic t", "dump --help", ""),
        *nightly("topics $LOG", "verify $LOG --json", "describe $LOG", "offsets $LOG", "--help"),
        *nightly("stats $LOG --topic t", "get $LOG --topic t --key k"),
        *nightly("dump $LOG --topic t --records"),
    ],
)
def test_a_reader_that_has_had_enough_is_no_problem(log: Path, words: str) -> None:
    assert shell(f"kafkalog {words} | true", log) == (0, "", "")


@pytest.mark.parametrize("words", ["append $LOG --topic t", "sql $LOG"])
def test_a_closed_standard_input_is_told(log: Path, words: str) -> None:
    said = "standard input is closed: give a file, as by < FILE\n"
    assert shell(f"kafkalog {words} <&-", log) == (2, "", said)


@pytest.mark.parametrize(
    "words",
    ["topics $LOG", "sql $LOG 'select 1'", *nightly("stats $LOG", "find $LOG --text a")],
)
def test_a_closed_standard_output_is_told(log: Path, words: str) -> None:
    said = "standard output is closed: nothing can be shown\n"
    assert shell(f"kafkalog {words} >&-", log) == (2, "", said)


@pytest.mark.parametrize("words", ["--help", "dump --help", "dump $LOG --topic t --records"])
def test_letters_that_a_terminal_lacks_are_escaped(log: Path, words: str) -> None:
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code, out, err = shell(f"kafkalog {words}", log, **ascii_only)
    assert (code, err) == (0, "")
    assert "help" in words or "\\u0151" in out


@pytest.mark.parametrize(
    "words",
    [
        *("--version", "plot $LOG", "sql $LOG 'select 1'"),
        *nightly("topics $LOG", "verify $LOG", "report $LOG --json"),
    ],
)
def test_output_that_cannot_be_written_is_told(log: Path, words: str) -> None:
    code, _, err = shell(f"kafkalog {words} > /dev/full", log)
    assert code != 0
    assert err == "what this prints cannot be written: No space left on device\n"


def test_a_line_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device gives zeros for ever, and memory would end before them."""
    monkeypatch.setattr(line_input, "_MOST_BYTES", 1 << 20)
    with pytest.raises(RowError, match="a line has more than 1 MiB, and no end of line"):
        next(line_input.line_batches(lambda _: bytes(1 << 16), repeat(10), None))
    lines = [b"x" * 1000 + b"\n"] * 5000 + [b""]
    batches = line_input.line_batches(lambda _: lines.pop(0), repeat(5000), None)
    assert [len(batch) for batch in batches] == [5000]


def test_a_folder_that_is_in_the_way_of_a_new_topic_is_named(log: Path) -> None:
    (log / "n-0").mkdir()
    code, text = call("create", log, "--topic", "n")
    assert code == 2
    assert f"'n' is not created: {log / 'n-0'} is there already, without a .log file in it" in text
    (log / "n-0").rmdir()
    assert call("create", log, "--topic", "n")[0] == 0
    assert "topic 'n' exists" in call("create", log, "--topic", "n")[1]


def call(*words: object, data: str = "") -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words], input=data)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.mark.parametrize("out", ["> /dev/full", ">&-"])
def test_an_append_that_cannot_be_told_is_told_to_be_done(tmp_path: Path, out: str) -> None:
    kafkalog.append(tmp_path / "log", "t", pa.table({"value": ["a"]}))
    line = f"echo b | kafkalog produce $LOG --topic t {out}"
    code, _, err = shell(line, tmp_path / "log")
    assert (code, len(err.splitlines())) == (1, 1)
    assert err.startswith("appended up to t-0=2; only this cannot be printed: ")
    assert kafkalog.read(tmp_path / "log", "t").read_all().num_rows == 2


def test_more_records_than_an_arrow_can_count_are_all(log: Path) -> None:
    code, text = call("dump", log, "--topic", "t", "--records", "--json", "--count", 10**23)
    assert (code, len(text.splitlines())) == (0, 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("lag LOG --offsets {}", "--offsets is {}, expected offsets of 0 or more"),
        ("lag LOG --offsets null", "--offsets is null, expected offsets of 0 or more"),
        ('lag LOG --offsets {"t":{"0":-5}}', "expected offsets of 0 or more"),
        ("lag LOG --offsets {} --watch --every inf", "86400"),
        ("create LOG --topic n --partitions 100000000", "100000"),
        ("alter LOG --topic t --partitions 100000000", "100000"),
        ("dump LOG --topic t --records --parquet ABOVE", "which is a folder"),
        ("append LOG --topic a/b", "topic name 'a/b'"),
        ("append LOG/t-0/00000000000000000000.log --topic t", "is a file"),
        ("append LOG --topic t --set numPartitions=x", "'numPartitions' is 'x'"),
        ("plot LOG --topic t --png ABOVE/nowhere/x.png", "nowhere is no folder"),
    ],
)
def test_what_cannot_be_meant_is_told_before_anything_is_read(
    log: Path, words: str, said: str
) -> None:
    given = [
        word.replace("LOG", str(log)).replace("ABOVE", str(log.parent)) for word in words.split()
    ]
    code, text = call(*given)
    assert code == 2
    assert said in text


def test_a_partition_that_is_not_there_is_told(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    code, _ = call("lag", log, "--offsets", '{"nowhere":{"0":1}}')
    assert code == 1
    assert "offsets in nowhere-0: the partition is not there" in caplog.text


def test_a_line_break_in_a_name_is_escaped(tmp_path: Path) -> None:
    code, text = call("topics", tmp_path / "a\nb")
    assert (code, len(text.splitlines())) == (2, 1)
    assert "a\\nb does not exist" in text


def test_json_has_no_words_that_json_lacks(log: Path) -> None:
    code, text = call("sql", log, "select 'nan'::double as n, 'inf'::double as i", "--json")

    def refuse(word: str) -> None:
        raise AssertionError(word)

    assert code == 0
    assert json.loads(text, parse_constant=refuse) == {"n": "nan", "i": "inf"}


@pytest.mark.parametrize("name", ["mirror", "archive"])
def test_an_empty_checkpoint_is_told(log: Path, name: str) -> None:
    words = f"kafkalog run {name} $LOG there --topic t --checkpoint ''"
    code, out, err = shell(words, log)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith("--checkpoint is ")
