"""``kafkalog create``, ``alter`` and ``delete``: what they print, how they end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from kafkalog.jobs.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path


def call(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(word) for word in words])
    return done.exit_code, done.output


def test_a_topic_is_created_altered_and_deleted_from_the_command_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code, text = call("create", log, "--topic", "t", "--config", "retention.ms=5", "--json")
    row = json.loads(text)
    assert code == 0
    assert row["partitions"] == 1
    assert row["settings"] == {"retention.ms": "5"}
    words = ("alter", log, "--topic", "t", "--partitions", 2, "--delete-config", "retention.ms")
    code, text = call(*words, "--config", "flush.ms=9", "--dry-run")
    assert code == 0
    assert "dry run: nothing was changed" in text
    assert not (log / "t-1").exists()
    code, text = call(*words, "--config", "flush.ms=9", "--json")
    row = json.loads(text)
    assert (code, row["partitionsBefore"], row["partitions"]) == (0, 1, 2)
    assert (row["settingsBefore"], row["settings"]) == ({"retention.ms": "5"}, {"flush.ms": "9"})
    code, text = call("alter", log, "--topic", "t", "--partitions", 2)
    assert (code, "nothing is changed: t has all of that already" in text) == (0, True)
    code, text = call("delete", log, "--topic", "t", "--dry-run")
    assert code == 0
    assert "dry run: nothing was changed" in text
    assert (log / "t-1").is_dir()
    code, text = call("delete", log, "--topic", "t", "--json")
    row = json.loads(text)
    assert (code, row["partitions"]) == (0, 2)
    assert row["paths"] == [str(log / "t-0"), str(log / "t-1")]
    assert not (log / "t-1").exists()


def test_bad_use_is_one_sentence_and_ends_with_2(tmp_path: Path) -> None:
    assert call("create", tmp_path, "--topic", "t")[0] == 0
    for words, told in (
        (("create", tmp_path, "--topic", "t"), "exists"),
        (("alter", tmp_path, "--topic", "t", "--config", "retention"), "NAME=VALUE"),
        (("alter", tmp_path, "--topic", "u", "--partitions", 3), "knows no topic"),
        (("delete", tmp_path, "--topic", "u"), "knows no topic"),
    ):
        code, text = call(*words)
        assert code == 2
        assert told in text
