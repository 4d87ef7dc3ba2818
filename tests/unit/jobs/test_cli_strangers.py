"""A directory that is no member, given to a command that looks after a set: a typing error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.sinking import Writer, rows
from typer.testing import CliRunner

from kafkalog.jobs.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "words",
    [
        ["recover"],
        ["recover", "--dry-run"],
        ["handover"],
        ["retain"],
        ["compact"],
        ["delete-records", "--offsets", '{"t":{"0":1}}'],
        ["alter", "--topic", "t", "--partitions", "2"],
        ["delete", "--topic", "t"],
    ],
    ids=" ".join,
)
def test_an_empty_directory_does_not_join_the_set(tmp_path: Path, words: list[str]) -> None:
    log, other = tmp_path / "log", tmp_path / "lgo"
    Writer(log, topic="t").write(0, rows(["a", "b"]))
    other.mkdir()
    state = (log / "kafkalog.commit").read_bytes()

    name, *options = words
    done = CliRunner().invoke(app, [name, str(log), str(other), *options])

    assert done.exit_code != 0
    assert f"{other} does not belong to the set of {log}: leave it out" in done.output
    assert (log / "kafkalog.commit").read_bytes() == state
    assert not (other / "kafkalog.commit").exists()
    assert not (log / "t-1").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["create", "", "--topic", "t"],
        ["create", " , ", "--topic", "t"],
        ["alter", "", "--topic", "t", "--partitions", "2"],
        ["takeover", "", "--dry-run"],
        ["stats", ""],
        ["report", "", "--html", "report.html"],
    ],
    ids=" ".join,
)
def test_a_path_that_names_nothing_is_refused(words: list[str]) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "no log directory" in done.output
