"""What pipelines say of themselves: examples stand as they are typed, and each can be run."""

from __future__ import annotations

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


def test_groups_names_its_second_words() -> None:
    command: Any = typer.main.get_command(commands)
    assert "groups reset" in command.commands["groups"].help
    assert "groups delete" in command.commands["groups"].help


@pytest.mark.parametrize("name", ["dump", "find", "get", "sql"])
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
        re.sub(r" (PATH|NAME|TARGET|QUERY|--).*", "", each)
        for row in table
        for each in re.findall("`(.+?)`", row)
    }
    command: Any = typer.main.get_command(commands)
    assert named == set(command.commands)
