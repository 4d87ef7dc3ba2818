"""What other tools call a command is told by the name that it has here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from kafkalog.jobs.cli import app as other_words
from kafkalog.jobs.cli.app import PIPELINES, app
from kafkalog.model import TopicPartition, nearest, said_there

if TYPE_CHECKING:
    from pathlib import Path

WORDS: dict[str, str] = vars(other_words)["_WORDS"]


def ran(*words: str) -> Any:
    return CliRunner().invoke(app, words)


def test_each_word_leads_to_a_command_that_is_there_and_is_none_itself() -> None:
    commands = ran("--help").stdout
    every = [word for words in WORDS.values() for word in words.split()]
    assert len(set(every)) == len(every)
    for name in WORDS:
        first, *rest = name.split()
        if first == "run":
            assert rest[0] in PIPELINES
        elif rest and not rest[0].startswith("-"):
            assert f" {name} " in commands
        else:
            assert f" {first} " in commands
    assert get_command(app).commands.keys().isdisjoint(every)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("read", "consume"),
        ("cat", "consume"),
        ("tail", "consume --follow"),
        ("ls", "topic list"),
        ("pub", "produce"),
        ("add-topic", "topic create"),
        ("maintain", "run maintain"),
        ("help", "--help"),
    ],
)
def test_a_word_of_another_tool_is_answered(word: str, meant: str) -> None:
    result = ran(word, "LOG")
    assert result.exit_code == 2
    assert f"No such command '{word}'. Did you mean '{meant}'?" in " ".join(result.stderr.split())


def test_a_folder_that_is_called_nearly_like_a_command_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "groups reset" in ran("groups", "rest").stderr
    (tmp_path / "rest").mkdir()
    assert "groups reset" not in ran("groups", "rest").stderr


def test_a_topic_that_is_nearly_there_is_named() -> None:
    there = [TopicPartition(f"topic-{number:03}", 0) for number in range(200)]
    there.append(TopicPartition("Flights", 0))
    said = said_there("flihgts", there)
    assert said.startswith("Did you mean Flights? Topics there: Flights, topic-000, ")
    assert said.endswith(" and 191 more")
    assert said_there("entirely-else", there).startswith("Topics there: ")
    assert nearest("flights", ["delays"]) is None
