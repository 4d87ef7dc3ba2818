"""``kafkalog retain`` and ``kafkalog topic trim``: what they print, how they end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.sinking import Writer, rows
from typer.testing import CliRunner

from kafkalog.files.system import system
from kafkalog.jobs.cli.app import app
from kafkalog.streaming.log.segments import list_base_offsets

if TYPE_CHECKING:
    from pathlib import Path


def call(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a log of two segments, one of them old, and a topic to which nothing was given."""
    for topic, options in (("t", {"retention__ms": "1000000"}), ("kept", {})):
        writer = Writer(tmp_path, topic=topic, name=topic, segment__bytes="80", **options)
        for number, stamp in enumerate((1, system.time_ns() // 1_000_000)):
            writer.write(number, rows(["a"], timestamps=[stamp]))
    return tmp_path


def test_retain_says_what_goes_and_what_is_left_alone(log: Path) -> None:
    code, text = call("retain", log, "--dry-run")
    assert code == 0
    assert "dry run: nothing was changed" in text
    assert list_base_offsets(log / "t-0") == [0, 1]
    code, text = call("retain", log, "--json")
    assert code == 0
    (done,) = map(json.loads, text.splitlines())
    shortened: dict[str, Any] = {each["topic"]: each for each in done["partitions"]}
    assert shortened["t"] | {"bytes": 0} == {
        "topic": "t",
        "partition": 0,
        "path": str(log / "t-0"),
        "startBefore": 0,
        "start": 1,
        "end": 2,
        "segments": 1,
        "bytes": 0,
    }
    assert shortened["kept"]["segments"] == 0
    assert "all records are kept" in done["leftAlone"]["kept"]
    assert list_base_offsets(log / "t-0") == [1]


def test_retain_takes_settings_for_topics_that_have_none(log: Path) -> None:
    code, _ = call("retain", log, "--topic", "kept", "--config", "retention.ms=1000000")
    assert code == 0
    assert list_base_offsets(log / "kept-0") == [1]
    assert list_base_offsets(log / "t-0") == [0, 1]


def test_describe_says_what_keeps_everything(log: Path) -> None:
    code, text = call("describe", log, "--json")
    found = {each["topic"]: each["retention"] for each in map(json.loads, text.splitlines())}
    assert (code, found) == (0, {"t": "by retention.ms", "kept": "keeps everything"})


def test_handover_warns_that_a_broker_deletes_by_its_own_setting(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code, _ = call("handover", log)
    assert code == 0
    (said,) = [each for each in caplog.messages if "retention.ms" in each]
    assert "keep their records: kept. A broker deletes by its own setting" in said


def test_delete_records_moves_the_starts_that_are_named(log: Path) -> None:
    code, _ = call("delete-records", log, "--offsets", '{"t":{"0":-1},"kept":{"0":1}}')
    assert code == 0
    code, text = call("offsets", log, "--json")
    found = {each["topic"]: each["start"] for each in map(json.loads, text.splitlines())}
    assert (code, found) == (0, {"t": 2, "kept": 1})


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["retain", "--config", "retention.ms=soon"], "retention.ms is 'soon'"),
        (["retain", "--config", "retention.mss=1"], "did you mean 'retention.ms'"),
        (["retain", "--topic", "u"], "no topic 'u'"),
        (["delete-records", "--offsets", '{"t":{"0":3}}'], "committed up to 2"),
        (["delete-records", "--offsets", '{"t":{"0":-2}}'], "accepts numbers from -1"),
        (["delete-records", "--offsets", "all"], "offsets"),
        (["delete-records", "--offsets", '{"u":{"0":3}}'], "u-0 is no partition"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    log: Path, words: list[str], text: str
) -> None:
    code, said = call(words[0], log, *words[1:])
    assert code == 2
    assert text in said
    assert len(said.splitlines()) == 1
    assert list_base_offsets(log / "t-0") == [0, 1]
