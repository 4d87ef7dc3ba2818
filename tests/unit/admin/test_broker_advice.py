"""Where a broker lived nothing is written; what permits it is said in the words of the writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.sinking import Writer, rows
from typer.testing import CliRunner

import kafkalog
from kafkalog.checkpoints.broker import META_PROPERTIES
from kafkalog.errors import LogDirectoryError
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.mirroring import Mirror
from kafkalog.jobs.pipelines.restore_plan import Until, check_target
from kafkalog.streaming.admin.topics import create
from kafkalog.streaming.groups.administration import GroupWriter, delete_group

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FLAG = "--allow-broker-directory"
OPTION = "allowBrokerDirectory"
FROM_PYTHON = "allows_broker=True"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    Writer(tmp_path / "from", topic="t").write(0, rows(["x"]))
    Writer(tmp_path / "log", topic="t").write(0, rows(["x"]))
    (tmp_path / "log" / META_PROPERTIES).write_text("version=1\nnode.id=1\ncluster.id=x\n")
    return tmp_path / "log"


def mirror(log: Path) -> None:
    source = str(log.parent / "from")
    Mirror(source=source, target=str(log), topics=("t",), checkpoint="c").check()


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (lambda log: Writer(log, topic="t").write(1, rows(["y"])), {OPTION}),
        (lambda log: kafkalog.append(log, "t", [{"value": "y"}]), {OPTION}),
        (lambda log: kafkalog.Consumer(log, "g", "t"), {OPTION}),
        (lambda log: delete_group([str(log)], "g"), {FLAG, FROM_PYTHON}),
        (lambda log: GroupWriter([str(log)], "g"), set()),
        (mirror, set()),
        (lambda log: check_target(str(log), ["t"], {}, Until({})), set()),
    ],
    ids=["sink", "append", "Consumer", "groups", "commitGroupOffsets", "mirror", "restore"],
)
def test_only_what_the_writer_has_is_named(
    log: Path, write: Callable[[Path], Any], named: set[str]
) -> None:
    with pytest.raises(LogDirectoryError, match="a broker lived here") as raised:
        write(log)
    text = str(raised.value)
    assert {name for name in (FLAG, OPTION, FROM_PYTHON) if name in text} == named


def test_a_new_set_likewise(log: Path) -> None:
    new = log.parent / "new"
    new.mkdir()
    (log / META_PROPERTIES).rename(new / META_PROPERTIES)
    with pytest.raises(LogDirectoryError, match=FLAG):
        create([str(new)], "t")
    told = CliRunner().invoke(app, ["create", str(new), "--topic", "t", FLAG])
    assert told.exit_code == 0, told.output


def test_the_command_that_appends_has_the_option_it_names(log: Path) -> None:
    words = ["append", str(log), "--topic", "t"]
    told = CliRunner().invoke(app, words, input="y\n")
    assert "--set allowBrokerDirectory=true" in " ".join(told.output.split())
    done = CliRunner().invoke(app, [*words, "--set", "allowBrokerDirectory=true"], input="y\n")
    assert done.exit_code == 0, done.output
