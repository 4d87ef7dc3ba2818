"""What pipelines say of themselves: examples stand as they are typed, and each can be run."""

from __future__ import annotations

import inspect
import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from kafkalog.jobs.cli.app import PIPELINES
from kafkalog.jobs.cli.app import app as commands

if TYPE_CHECKING:
    from collections.abc import Iterator

INDENT = "      "
ROOT = Path(__file__).parents[3]


def examples(help_text: str) -> Iterator[str]:
    """Give the commands of a help text, each of one line."""
    for line in re.sub(r"\\\n\s*", "", help_text).splitlines():
        if line.startswith((f"{INDENT}kafkalog run", f"{INDENT}spark-submit")):
            yield line.strip()


@pytest.mark.parametrize("name", PIPELINES)
def test_examples_stand_in_the_help_as_they_are_written_and_can_be_parsed(name: str) -> None:
    module: Any = import_module(f"kafkalog.jobs.{name}")
    shown = CliRunner().invoke(module.app, ["--help"], terminal_width=60).output
    written = [line for line in module.__doc__.splitlines() if line.startswith("    ")]
    assert written
    for line in written:
        assert f"  {line}\n" in shown
    command: Any = typer.main.get_command(module.app)
    found = list(examples(shown))
    assert len(found) >= 2, shown
    for example in found:
        words = [word.strip("[]") for word in shlex.split(example) if word != "[OPTIONS]"]
        start = 3 if words[0] == "kafkalog" else words.index(f"{name}.py") + 1
        assert words[:3] == ["kafkalog", "run", name] or words[0] == "spark-submit"
        command.make_context(name, words[start:])


def shown_commands() -> list[str]:
    command: Any = typer.main.get_command(commands)
    return [name for name, each in command.commands.items() if not each.hidden]


@pytest.mark.parametrize("columns", [40, 59, 80])
def test_no_option_is_cut_in_the_help_of_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = CliRunner().invoke(commands, ["topic", "create", "--help"]).output
    assert "--replication-factor" in shown
    assert "--allow-broker-directory" in shown
    assert ("╭" in shown) is (columns == 80)


def test_each_command_is_in_a_panel_and_those_that_only_look_come_first() -> None:
    shown = CliRunner().invoke(commands, ["--help"], terminal_width=100).output
    panels = ["Look", "Write", "Groups", "Care", "Brokers and nodes", "Pipelines"]
    places = [shown.index(f"─ {panel} ─") for panel in panels]
    assert places == sorted(places)
    for name in shown_commands():
        assert re.search(rf"│ {name} +\w", shown), name
    assert [name for name in HIDDEN if re.search(rf"│ {name} +\w", shown)] == []


HIDDEN = {
    "topics": "topic list",
    "describe": "topic describe",
    "offsets": "topic offsets",
    "stats": "topic stats",
    "append": "produce",
    "create": "topic create",
    "alter": "topic alter",
    "delete": "topic delete",
    "delete-records": "topic trim",
    "groups": "group describe",
    "groups reset": "group reset",
    "groups delete": "group delete",
    "handover": "broker handover",
    "takeover": "broker takeover",
    "replicas": "node list",
    "elect": "node elect",
    "reassign": "node reassign",
}


@pytest.mark.parametrize(("before", "name"), HIDDEN.items())
def test_a_name_that_a_command_had_before_does_the_same(before: str, name: str) -> None:
    command: Any = typer.main.get_command(commands)
    old, new = command.commands[before], command.commands[name]
    assert old.hidden
    assert inspect.unwrap(old.callback) is inspect.unwrap(new.callback)
    assert [each.opts for each in old.params] == [each.opts for each in new.params]


@pytest.mark.parametrize("noun", ["topic", "group", "broker", "node"])
def test_a_noun_alone_shows_its_verbs(noun: str) -> None:
    command: Any = typer.main.get_command(commands)
    result = CliRunner().invoke(commands, [noun, "--help"], terminal_width=100)
    for name in (each for each in command.commands if each.startswith(f"{noun} ")):
        assert re.search(rf"│ {name.removeprefix(noun).strip()} +\w", result.output), name
    assert CliRunner().invoke(commands, [noun]).exit_code == 2
    wrong = CliRunner().invoke(commands, [noun, "frobnicate"])
    assert (wrong.exit_code, "No such command 'frobnicate'" in wrong.output) == (2, True)


@pytest.mark.parametrize("name", [*shown_commands(), *(f"run {each}" for each in PIPELINES)])
def test_help_is_short_and_speaks_of_no_types_of_python(name: str) -> None:
    first, second = (
        CliRunner().invoke(commands, [*name.split(), option], terminal_width=80).output
        for option in ("-h", "--help")
    )
    assert first == second
    assert not re.search(r"<\w+|list\[|\[x>=", first), first
    assert "{" not in first.partition("Usage:")[2].partition("\n")[0]
    assert max(len(line) for line in first.splitlines() if not line.startswith(INDENT)) <= 80


@pytest.mark.parametrize("name", ["consume", "dump", "find", "get", "sql"])
def test_what_reads_speaks_of_no_copy(name: str) -> None:
    command: Any = typer.main.get_command(commands)
    (option,) = (each for each in command.commands[name].params if each.name == "isolation")
    assert option.help.startswith("read_committed leaves out")


@pytest.mark.parametrize("name", PIPELINES)
def test_no_pipeline_takes_the_last_of_two_values(name: str) -> None:
    module: Any = import_module(f"kafkalog.jobs.{name}")
    example = next(examples(module.__doc__.replace("    kafkalog", INDENT + "kafkalog")))
    words = [word for word in shlex.split(example)[3:] if not word.startswith("[")]
    command: Any = typer.main.get_command(module.app)
    option = next(each for each in command.params if each.name in {"grace", "every", "until"})
    again = [option.opts[0], "1s"] * 2
    with pytest.raises(typer.BadParameter, match="given twice"):
        command.make_context(name, [*words, *again])


def test_the_page_of_pipelines_has_each_of_them_and_its_options() -> None:
    page = (ROOT / "docs" / "pipelines.md").read_text()
    missing = []
    for name in PIPELINES:
        assert f"\n## {name}\n" in page
        module: Any = import_module(f"kafkalog.jobs.{name}")
        command: Any = typer.main.get_command(module.app)
        options = [option for each in command.params for option in each.opts]
        missing += [
            each for each in options if each.startswith("--") and not re.search(rf"{each}\b", page)
        ]
    assert missing == []


def test_the_page_of_operations_has_each_command_in_its_table() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| (`.*?) \| ", page.partition("\n| command |")[2], re.MULTILINE)
    table = rows[: next(i for i, row in enumerate(rows) if "kafka-" in row)]
    named = {
        re.sub(r" (PATH|NAME|TARGET|QUERY|-).*", "", each)
        for row in table
        for each in re.findall("`(.+?)`", row)
    }
    assert named == set(shown_commands())
