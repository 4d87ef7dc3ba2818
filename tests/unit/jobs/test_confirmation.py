"""Whatever destroys asks who sits at a terminal, by its plan; a script is asked nothing."""

from __future__ import annotations

import io
import shlex
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.log_files import flip
from tests.support.replicated import append, path_of
from tests.unit.jobs.test_on_a_terminal import seen

import kafkalog
from kafkalog.jobs.cli import output
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.process.running import run

if TYPE_CHECKING:
    from pathlib import Path


class Terminal(io.StringIO):
    """Where a person sits."""

    def isatty(self) -> bool:
        return True


def numbers(*partitions: int) -> pa.Array:
    return pa.array(partitions, pa.int32())


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give topics with old segments, keys that come again, and a group that reads one."""
    log = tmp_path / "log"
    options = {"segment.bytes": "200", "numPartitions": "2"}
    rows = pa.table(
        {"key": ["k", "k", "l"], "value": ["x" * 40] * 3, "partition": numbers(0, 0, 1)}
    )
    for _ in range(3):
        kafkalog.append(log, "t", rows, options=options)
    with kafkalog.Consumer(log, "readers", "t", options={"startingOffsets": "earliest"}) as reader:
        assert reader.poll(timeout=5.0) is not None
        reader.commit()
    kafkalog.append(log, "other", rows.select(["value"]))
    return log


def asked(
    log: Path, line: str, answer: str, monkeypatch: pytest.MonkeyPatch, *, terminal: bool = True
) -> tuple[int, str]:
    """Run a command, with this typed; give its exit code and what stands on standard error."""
    kind = Terminal if terminal else io.StringIO
    errors = kind()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", kind(answer))
        patch.setattr(sys, "stderr", errors)
        patch.setattr(sys, "stdout", io.StringIO())
        patch.setattr(sys, "argv", ["kafkalog", *shlex.split(line.replace("LOG", str(log)))])
        with pytest.raises(SystemExit) as ended:
            run(app)
    return int(ended.value.code or 0), errors.getvalue()


DESTROYING = {
    "topic delete LOG -t t": "delete topic t, ",
    "topic trim LOG -t t -o latest": "delete records, and whole segments of them, ",
    "topic alter LOG -t t --delete-config segment.bytes": "change topic t.",
    "topic alter LOG -t t --config retention.ms=1d": "change topic t.",
    "retain LOG -t t --config retention.bytes=0": "delete records, and whole segments of them, ",
    "compact LOG -t t --config cleanup.policy=compact --force": "keep only the newest record",
    "group reset LOG -g readers --to earliest": "set ",
    "group delete LOG -g readers": "forget 2 positions of group readers.",
}


def state_of(log: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in sorted(log.rglob("*")) if each.is_file()}


@pytest.mark.parametrize(("line", "said"), DESTROYING.items())
def test_what_destroys_asks_first(
    log: Path, line: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state_of(log)
    is_seen = output._is_seen
    streams: list[object] = []
    monkeypatch.setattr(output, "_is_seen", lambda: (streams.append(sys.stderr), is_seen())[1])
    for answer in ("n\n", ""):
        code, text = asked(log, line, answer, monkeypatch)
        assert code == 1
        assert isinstance(streams.pop(), Terminal)  # and not what takes its place below bars
        assert f"This would {said}" in text
        assert "nothing was changed: --yes does it without asking" in text
        assert state_of(log) == before
    if "group" not in line and "alter" not in line:
        assert "  partitions: t-0" in text
        assert "  groups that read there: readers" in text
    code, text = asked(log, f"{line} --dry-run", "", monkeypatch)
    assert (code, "Go on?" in text) == (0, False)
    assert state_of(log) == before
    code, text = asked(log, line, "y\n", monkeypatch)
    assert (code, "Go on?" in text) == (0, True)
    assert state_of(log) != before


@pytest.mark.parametrize(
    ("line", "said"),
    {
        "node reassign LOG -t t -p 0 --to 2,3": "move replicas",
        "node vote LOG --replace A=NEW": "give up node 0: NEW takes its place",
    }.items(),
)
def test_what_takes_a_replica_away_asks_first(
    tmp_path: Path, line: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [tmp_path / name for name in "abcd"]
    append(nodes, 0, ["x", "y"], **{"replication.factor": "2"})
    named = {"LOG": f"'{path_of(nodes)}'", "A": str(nodes[0]), "NEW": str(tmp_path / "new")}
    for name, path in named.items():
        line, said = line.replace(name, path), said.replace(name, path)
    _asks_and_does(tmp_path, line, said, monkeypatch)


def test_what_cuts_a_log_asks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("first", "second"):
        kafkalog.append(tmp_path / "log", "t", pa.table({"value": [value]}))
    flip(next((tmp_path / "log" / "t-0").glob("*.log")), 65)
    line = f"salvage {tmp_path / 'log'} --drop t-0@0"
    _asks_and_does(tmp_path, line, "give up what is damaged", monkeypatch)


def _asks_and_does(folder: Path, line: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = state_of(folder)
    code, text = asked(folder, line, "n\n", monkeypatch)
    assert (code, f"This would {said}" in text, state_of(folder) == before) == (1, True, True), text
    code, text = asked(folder, f"{line} --dry-run", "", monkeypatch)
    assert (code, "Go on?" in text, state_of(folder) == before) == (0, False, True), text
    code, text = asked(folder, line, "y\n", monkeypatch)
    assert (code, "Go on?" in text, state_of(folder) != before) == (0, True, True), text


@pytest.mark.parametrize("terminal", [True, False])
def test_nobody_is_asked_with_yes_or_where_nobody_can_answer(
    log: Path, monkeypatch: pytest.MonkeyPatch, *, terminal: bool
) -> None:
    before = state_of(log)
    for line in (
        "group delete LOG -g readers",
        "topic trim LOG -t t -o 1",
        "topic delete LOG -t t",
    ):
        words = f"{line} --yes" if terminal else line
        code, text = asked(log, words, "", monkeypatch, terminal=terminal)
        assert (code, "Go on?" in text, state_of(log) == before) == (0, False, False), text
        before = state_of(log)


def test_what_takes_nothing_away_asks_nothing(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for line in (
        "topic alter LOG -t t --partitions 3",
        "topic alter LOG -t t --config retention.ms=-1",
        "topic trim LOG -t t -o 0",
        "retain LOG -t t",
        "topic create LOG -t new",
    ):
        code, text = asked(log, line, "", monkeypatch)
        assert (code, "Go on?" in text) == (0, False), text


def test_what_was_written_while_somebody_thought_is_planned_anew(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"value": ["later"], "partition": numbers(0)})

    def agree(_: str) -> bool:
        kafkalog.append(log, "t", rows)
        return True

    monkeypatch.setattr(output, "_agrees", agree)
    code, text = asked(log, "topic trim LOG -t t -p 0 -o latest", "", monkeypatch)
    assert (code, "t-0 starts at 6 instead of 0" in text) == (0, True)
    start = kafkalog.read(log, "t", columns=["partition", "offset"]).read_all().to_pylist()
    assert [row["offset"] for row in start if row["partition"] == 0] == []

    def delete(_: str) -> bool:
        asked(log, "topic delete LOG -t other --yes", "", monkeypatch)
        return True

    monkeypatch.setattr(output, "_agrees", delete)
    code, text = asked(log, "topic trim LOG -t other -o latest", "", monkeypatch)
    assert (code, "other-0 is no partition that the commit state" in text) == (2, True)


def test_many_partitions_are_named_by_their_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    rows = pa.table({"value": ["x"] * 12, "partition": numbers(*range(12))})
    kafkalog.append(log, "t", rows, options={"numPartitions": "12"})
    _, text = asked(log, "topic trim LOG -t t -o latest", "n\n", monkeypatch)
    assert "  partitions: 12 partitions of t (12)" in text
    assert "… and 7 more of these: -v lists them" in text
    assert "  groups that read there: none" in text


def test_on_a_real_terminal_the_table_alone_is_on_standard_output(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, lines = seen(["topic", "delete", str(log), "-t", "t", "--yes"], monkeypatch)
    assert code == 0
    assert lines[0].split() == ["topic", "partitions", "bytes", "directories"]
