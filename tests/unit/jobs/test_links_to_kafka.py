"""The table that says what to use instead of Kafka's commands: each command and option is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from kafkalog.jobs.cli.app import app

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


def rows() -> list[tuple[str, str]]:
    table = PAGE.read_text().partition("| Kafka | kafkalog |\n| --- | --- |\n")[2]
    lines = table.partition("\n\n")[0].splitlines()
    return [(theirs.strip(), ours.strip()) for _, theirs, ours, _ in map(split, lines)]


def split(line: str) -> list[str]:
    return line.split("|")


@pytest.mark.parametrize(("theirs", "ours"), rows(), ids=[each[0] for each in rows()])
def test_each_command_of_ours_is_there_with_its_options(theirs: str, ours: str) -> None:
    commands = get_command(app)
    assert isinstance(commands, TyperGroup)
    named = re.findall(r"`([^`]+)`", ours)
    assert theirs.startswith("`k")
    assert named
    for line in named:
        name, *options = re.split(r" (?=--)", line)
        assert name in commands.commands, f"kafkalog {name} is no command"
        known = {word for each in commands.commands[name].params for word in each.opts}
        assert set(options) <= known, f"kafkalog {line}: options are {sorted(known)}"
