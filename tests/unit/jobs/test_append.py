"""``kafkalog produce`` makes records of standard input."""

from __future__ import annotations

import json
import os
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import kafkalog
from kafkalog.files.system import system
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.cli.line_input import line_batches, pieces_of

if TYPE_CHECKING:
    from pathlib import Path

SUMMARY = {"topic": "t", "lines": 3, "records": 3, "commits": 1, "ends": {"t-0": 3}}


def append(log: Path, data: str | bytes, *words: object) -> tuple[int, str]:
    given = ["append", str(log), "--topic", "t", *map(str, words)]
    done = CliRunner().invoke(app, given, input=data)
    return done.exit_code, done.output


def records(log: Path) -> list[tuple[Any, Any]]:
    table = kafkalog.read(log, "t", columns=["key", "value"]).read_all()
    return [(row["key"], row["value"]) for row in table.to_pylist()]


def test_each_line_is_a_record_and_the_last_one_needs_no_end(tmp_path: Path) -> None:
    code, text = append(tmp_path, b"one\n\n\xffthree", "--json")
    assert (code, json.loads(text)) == (0, SUMMARY)
    assert records(tmp_path) == [(None, b"one"), (None, b""), (None, b"\xffthree")]
    code, text = append(tmp_path, "four\n")
    assert (code, text.split()[-5:]) == (0, ["t", "1", "1", "1", "t-0=4"])


def test_keys_nulls_and_headers_are_given_as_to_kcat(tmp_path: Path) -> None:
    words = ("-K", "::", "-Z", "-H", "h=1", "-H", "h=2", "--partition", 0)
    assert append(tmp_path, "k::v\nno key\nk::\n::v\n", *words)[0] == 0
    assert records(tmp_path) == [(b"k", b"v"), (None, b"no key"), (b"k", None), (None, b"v")]
    (headers, *_) = kafkalog.read(tmp_path, "t", columns=["headers"]).read_all()["headers"]
    assert headers.as_py() == [{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}]


@pytest.mark.parametrize(
    ("word", "line"),
    [
        (r"\t", b"k\tv"),
        (r"\x09", b"k\tv"),
        (r"\x1f:", b"k\x1f:v"),
        (r"\\", rb"k\v"),
        ("\\", rb"k\v"),
        ("%", b"k%v"),
        (r"a\0b", b"ka\0bv"),
        ("\udcff", b"k\xffv"),
    ],
)
def test_a_delimiter_may_be_written_by_an_escape(tmp_path: Path, word: str, line: bytes) -> None:
    assert append(tmp_path, line, "-K", word)[0] == 0
    assert records(tmp_path) == [(b"k", b"v")]


@pytest.mark.parametrize("word", ["h=\udcff", "\udcff=h"])
def test_a_header_is_text_at_the_command_line(tmp_path: Path, word: str) -> None:
    code, text = append(tmp_path, "v", "-H", word)
    assert (code, text.startswith("--header has bytes that are not UTF-8")) == (2, True)
    line = {"value": "76", "headers": [{"key": "h", "value": "ff"}]}
    assert append(tmp_path, json.dumps(line), "--input", "json", "--hex")[0] == 0
    (headers,) = kafkalog.read(tmp_path, "t", columns=["headers"]).read_all()["headers"]
    assert headers.as_py() == [{"key": "h", "value": b"\xff"}]


@pytest.mark.parametrize("is_hex", [False, True])
def test_what_dump_prints_is_appended_as_it_was(tmp_path: Path, is_hex: bool) -> None:
    data = b"\x00\xff" if is_hex else "é".encode()
    line = {
        "key": data.hex() if is_hex else "é",
        "value": None,
        "headers": [{"key": "h", "value": None}, {"key": "g", "value": "61" if is_hex else "a"}],
        "timestamp": 1_700_000_000_000,
        "partition": 1,
    }
    words = ["--input", "json", *(["--hex"] if is_hex else [])]
    code, text = append(tmp_path / "a", json.dumps(line), *words, "--set", "numPartitions=2")
    assert code == 0, text
    shown = ["dump", str(tmp_path / "a"), "--topic", "t", "--records", "--json", *words[2:]]
    printed = CliRunner().invoke(app, shown).output
    assert json.loads(printed) == {"topic": "t", "offset": 0, **line}
    assert append(tmp_path / "b", printed, *words, "--set", "numPartitions=2")[0] == 0
    first, second = (
        kafkalog.read(tmp_path / name, "t", options={"includeHeaders": True}).read_all()
        for name in "ab"
    )
    assert first.equals(second)


def test_values_of_json_may_be_json_and_headers_an_object(tmp_path: Path) -> None:
    line = '{"key": 7, "value": {"a": [1, "é"]}, "headers": {"h": "x"}}\n'
    assert append(tmp_path, line, "--input", "json")[0] == 0
    assert records(tmp_path) == [(b"7", '{"a": [1, "é"]}'.encode())]


def test_there_is_a_commit_for_so_many_lines(tmp_path: Path) -> None:
    code, text = append(tmp_path, "a\nb\nc\nd\ne\n", "--commit-lines", 2, "--json")
    assert (code, json.loads(text)["commits"]) == (0, 3)
    batches = CliRunner().invoke(app, ["dump", str(tmp_path), "--topic", "t", "--json"]).output
    assert [json.loads(line)["count"] for line in batches.splitlines()] == [2, 2, 1]


def test_a_line_that_waits_is_committed_when_its_time_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr(system, "monotonic", lambda: clock[0])
    asked: list[float | None] = []
    script = iter([(0, b"a\nb"), (0.4, b"c\n"), (0.6, None), (50, b"d\n"), (2, b"e\nf"), (0, b"")])

    def pieces(timeout: float | None) -> bytes | None:
        asked.append(timeout)
        passed, piece = next(script)
        clock[0] += passed
        return piece

    assert list(line_batches(pieces, repeat(99), 1.0)) == [[b"a", b"bc"], [b"d", b"e"], [b"f"]]
    assert asked == [None, 1.0, pytest.approx(0.6), None, 1.0, None]


def test_a_pipe_gives_what_is_there_and_none_when_nothing_comes() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream:
        read = pieces_of(stream)
        assert read(0.0) is None
        os.write(writing, b"x\n")
        assert read(None) == b"x\n"
        os.close(writing)
        assert read(None) == b""


def test_a_line_that_is_no_record_is_named_and_what_is_committed_stays(tmp_path: Path) -> None:
    for bad, reason in [
        ("{", "is no record"),
        ("hello", 'it is no JSON, such as {"key": "k", "value": "v"}'),
        ("[]", "no JSON object"),
        ('{"valuex": 1}', "'valuex' is none of"),
        ('{"partition": "0"}', "'partition' is '0'"),
        ('{"value": "x", "value": "y"}', "it has 'value' twice"),
        ('{"headers": {"h": "x", "h": "y"}}', "it has 'h' twice"),
        ('{"value": ' + 20_000 * "[", "nested too deep"),
    ]:
        log = tmp_path / str(len(bad))
        lines = '{"value": "a"}\n{"value": "b"}\n{"value": "c"}\n' + bad
        code, text = append(log, lines, "--input", "json", "--commit-lines", 2, "--json")
        assert code == 2
        assert "line 4" in text.splitlines()[-1]
        assert reason in text.splitlines()[-1]
        assert json.loads(text.splitlines()[0])["lines"] == 2
        assert [value for _, value in records(log)] == [b"a", b"b"]


def test_an_interrupt_leaves_what_was_committed_and_the_same_again_adds_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kafkalog.streaming import api as library

    once = ("--transactional-id", "load", "--commit-lines", 2, "--json")
    real = library.append

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if kwargs["version"] == 4:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(library, "append", interrupted)
        code, text = append(tmp_path, "a\nb\nc\nd\ne\n", *once)
    assert code != 0
    assert json.loads(text.splitlines()[0])["lines"] == 2
    assert "interrupted amid a commit: lines 3 to 4 are there, or none of them" in text
    assert [value for _, value in records(tmp_path)] == [b"a", b"b"]
    code, text = append(tmp_path, "a\nb\nc\nd\ne\n", *once)
    summary = json.loads(text)
    assert (code, summary["lines"], summary["records"], summary["commits"]) == (0, 5, 3, 2)
    assert [value for _, value in records(tmp_path)] == [b"a", b"b", b"c", b"d", b"e"]


LINES = [f"l{number}" for number in range(12)]


def lines_of(count: int) -> str:
    return "".join(f"{line}\n" for line in LINES[:count])


@pytest.mark.parametrize("before", [1, 4, 100])
@pytest.mark.parametrize("after", [1, 5, 100])
@pytest.mark.parametrize("there", [6, 7])
def test_an_append_continues_whatever_its_commits_are_now(
    tmp_path: Path, before: int, after: int, there: int
) -> None:
    once = ("--transactional-id", "load", "--json", "--commit-lines")
    assert append(tmp_path, lines_of(there), *once, before)[0] == 0
    for records_now in (12 - there, 0):
        code, text = append(tmp_path, lines_of(12), *once, after)
        assert (code, json.loads(text)["records"]) == (0, records_now), text
        assert json.loads(text)["lines"] == 12
        assert [value.decode() for _, value in records(tmp_path)] == LINES


def test_an_append_of_another_input_under_a_name_is_refused(tmp_path: Path) -> None:
    once = ("--transactional-id", "load", "--commit-lines", 4)
    assert append(tmp_path, lines_of(6), *once)[0] == 0
    for other, said in (
        (lines_of(5), "6 lines are in topic t under the name 'load', and the input has fewer"),
        (lines_of(3), "and the input has fewer"),
        ("", "and the input has fewer"),
        (lines_of(4) + "other\nlines\nof\nanother\n", "is in topic 't' already, with other rows"),
    ):
        code, text = append(tmp_path, other, *once)
        assert (code, said in text) == (1, True), text
    assert append(tmp_path, lines_of(5), "--transactional-id", "another")[0] == 0
    kafkalog.append(tmp_path, "t", [], transactional_id="own", version=1)
    rows = kafkalog.read(tmp_path, "t").read_all()
    kafkalog.append(tmp_path, "t", rows, transactional_id="own", version=2)
    code, text = append(tmp_path, lines_of(12), "--transactional-id", "own")
    assert (code, "was given to other appends to topic t" in text) == (1, True), text


def test_an_append_to_a_topic_that_was_deleted_begins_with_the_first_line(tmp_path: Path) -> None:
    once = ("--transactional-id", "load")
    assert append(tmp_path, lines_of(6), *once)[0] == 0
    assert CliRunner().invoke(app, ["delete", str(tmp_path), "--topic", "t"]).exit_code == 0
    assert append(tmp_path, lines_of(12), *once)[0] == 0
    assert [value.decode() for _, value in records(tmp_path)] == LINES


def test_no_line_is_said_to_be_none(tmp_path: Path) -> None:
    code, text = append(tmp_path, b"")
    assert (code, text.splitlines()[-1]) == (0, "nothing is appended: standard input had no line")


def test_digits_that_are_no_hexadecimal_ones_are_shown_with_an_example(tmp_path: Path) -> None:
    code, text = append(tmp_path, "6b31\nzz\n", "--hex")
    assert code == 2
    assert "line 2 is no record: with --hex, 'zz' is read as hexadecimal digits" in text
    assert "such as 6b31" in text
