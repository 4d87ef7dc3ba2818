"""``kafkalog compact``: what it prints, how it ends."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.compacting import read, updates, writer
from typer.testing import CliRunner

import kafkalog
from kafkalog.jobs.cli.app import app
from kafkalog.model import TopicPartition
from kafkalog.streaming.store.locks import CleanerLock

if TYPE_CHECKING:
    from pathlib import Path

T0 = TopicPartition("t", 0)


def call(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a log of three segments, and a topic to which nothing was given."""
    updates(writer(tmp_path), [{"a": "1"}, {"a": "2"}, {"b": "1"}])
    updates(writer(tmp_path, topic="kept", cleanup__policy="delete"), [{"a": "1"}])
    return tmp_path


def test_compact_says_what_it_cleans_and_what_it_leaves_alone(log: Path) -> None:
    code, text = call("compact", log, "--dry-run")
    assert code == 0
    assert "dry run: nothing was changed" in text
    assert "skipped kept: cleanup.policy is delete" in text
    assert len(read(log, T0)) == 3
    _, text = call("compact", log, "--json", "--dry-run")
    (planned,) = json.loads(text)["partitions"]
    code, text = call("compact", log, "--json")
    assert code == 0
    (done,) = map(json.loads, text.splitlines())
    (row,) = done["partitions"]
    assert planned == row | {"segments": None, "bytes": None}, "what is left is found out later"
    assert row | {"bytes": 0, "bytesBefore": 0, "path": ""} == {
        "topic": "t",
        "partition": 0,
        "path": "",
        "dirtyRatio": 1.0,
        "rounds": 1,
        "cleanTo": 2,
        "segmentsBefore": 2,
        "segments": 2,
        "bytesBefore": 0,
        "bytes": 0,
    }
    assert [*read(log, T0)] == [1, 2]
    code, text = call("compact", log, "--topic", "t")
    assert code == 0
    assert "0.0" in text


def test_one_active_segment_is_said_to_be_left_alone_where_compaction_is_asked_for(
    tmp_path: Path,
) -> None:
    kafkalog.append(tmp_path, "t", pa.table({"key": ["k"], "value": ["v"]}))
    words = ["--force", "--config", "cleanup.policy=compact"]
    code, text = call("compact", tmp_path, *words)
    assert code == 0
    assert "skipped t-0: there is nothing to compact: " in text
    assert list(json.loads(call("compact", tmp_path, *words, "--json")[1])["leftAlone"]) == ["t-0"]


def test_records_without_a_key_that_go_are_counted(tmp_path: Path) -> None:
    log, copy = tmp_path / "log", tmp_path / "copy"
    for batch in range(3):
        rows = pa.table({"value": [str(batch)]})
        kafkalog.append(log, "t", rows, options={"segment.bytes": 80})
    shutil.copytree(log, copy)
    words = ["--force", "--config", "cleanup.policy=compact"]
    code, text = call("compact", log, *words)
    assert code == 0
    assert "deleted: 2 records of t-0 had no key" in text
    _, text = call("compact", copy, *words, "--json")
    assert json.loads(text)["partitions"][0]["keyless"] == 2


def test_compact_names_the_cleaner_that_works_there(log: Path) -> None:
    with CleanerLock.of(log, T0, holder="a job"):
        code, text = call("compact", log, "--force", "--topic", "t", "--partition", "0")
    assert code == 0
    assert "skipped t-0: it is cleaned at this moment by a job of t-0, process" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--partition", "0"], "--partition goes with --topic"),
        (["--topic", "u"], "no topic 'u'"),
        (["--config", "min.compaction.lag.ms=soon"], "expected an integer"),
    ],
)
def test_compact_is_called_wrongly(log: Path, words: list[str], said: str) -> None:
    code, text = call("compact", log, *words)
    assert (code, said in text) == (2, True)
