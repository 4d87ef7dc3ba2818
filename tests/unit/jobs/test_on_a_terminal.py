"""What a person sees: each command on a terminal of 80 columns, over our log and brokers'."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from rich.cells import cell_len
from tests.support.corpus import UnpackedCase
from typer.testing import CliRunner

import kafkalog
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.process.running import run

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = 80
LOOKING = [
    "topics LOG",
    "describe LOG",
    "offsets LOG",
    "groups LOG",
    "lag LOG --group GROUP",
    "stats LOG",
    "plot LOG",
    "report LOG",
    "verify LOG --all",
    "dump LOG --topic TOPIC",
    "dump LOG --topic TOPIC --records",
    "find LOG --topic TOPIC --regex .",
    "get LOG --topic TOPIC --prefix ''",
    "salvage LOG",
    "sql LOG QUERY",
]
CHANGING = [
    "recover LOG --dry-run",
    "handover LOG --dry-run",
    "takeover LOG --dry-run",
    "retain LOG --dry-run",
    "compact LOG --dry-run",
    "create LOG --topic new --partitions 3 --dry-run",
    "alter LOG --topic TOPIC --partitions 9 --config segment.ms=60000 --dry-run",
    "delete LOG --topic TOPIC --dry-run",
    'delete-records LOG --offsets {"TOPIC":{"0":0}}',
    "groups reset LOG --group GROUP --to earliest --dry-run",
    "groups delete LOG --group GROUP --dry-run",
]
SENTENCES = re.compile(
    r"((would be )?written|left alone|problem|note): |  Readers of |  If the |    kafka"
)
"""Lines of words or for a shell, which a terminal folds by itself."""
BROKERS = {"p09-groups": ("orders-0", "classic-b"), "p06-transactions": ("txn", "")}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a log of ours: two topics, headers, odd texts, and a group that has read some."""
    log = tmp_path_factory.mktemp("own") / "log"
    header = [{"key": "client", "value": b"web-3"}]
    values = ["a", "x" * 300, "[/]", "\x1b[2J", "日本"]
    rows = pa.table({"key": list("abcde"), "value": values, "headers": [header] * 5})
    kafkalog.append(log, "flights", rows, options={"numPartitions": 2, "includeHeaders": "true"})
    kafkalog.append(log, "seats", rows.select(["key"]).add_column(0, "value", [values]))
    with kafkalog.Consumer(
        log, "readers", "flights", options={"startingOffsets": "earliest"}
    ) as consumer:
        assert consumer.poll(timeout=5.0) is not None
        consumer.commit()
    return log


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: UnpackedCase(name, tmp_path_factory.mktemp(name)).path for name in BROKERS}


def seen(
    words: list[str], monkeypatch: pytest.MonkeyPatch, *, styled: bool = False
) -> tuple[int, list[str]]:
    """Run a command on a terminal; give its exit code and its lines, without what styles them.

    With ``styled`` that stays.
    """
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    read: list[bytes] = []

    def listen() -> None:
        while True:
            try:
                if not (piece := os.read(ours, 1 << 16)):
                    return
            except OSError:  # nobody has the other end any more
                return
            read.append(piece)

    listener = threading.Thread(target=listen)
    listener.start()
    with os.fdopen(its, "w", encoding="utf-8") as stdout, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stdout)
        patch.setattr(sys, "__stdout__", stdout)  # whose width is asked for
        patch.delenv("COLUMNS", raising=False)
        patch.setattr(sys, "argv", ["kafkalog", *words])
        with pytest.raises(SystemExit) as ended:
            run(app)
    listener.join()
    os.close(ours)
    text = b"".join(read).decode()
    text = text if styled else re.sub(r"\x1b\[\d*m", "", text)
    return int(ended.value.code or 0), text.replace("\r\n", "\n").splitlines()


def words_of(line: str, log: object, topic: str, group: str) -> list[str]:
    places = {"LOG": str(log), "TOPIC": topic, "GROUP": group, "''": ""}
    places["QUERY"] = f'select * from "{topic}"'
    words = [places.get(word, word) for word in line.split()]
    return [word.replace("TOPIC", topic) for word in words]


def check(words: list[str], monkeypatch: pytest.MonkeyPatch, *, codes: set[int]) -> None:
    code, lines = seen(words, monkeypatch)
    assert code in codes, lines
    too_wide = [line for line in lines if cell_len(line) > COLUMNS]
    assert not [line for line in too_wide if not SENTENCES.match(line)]
    assert not [line for line in lines if not line.isprintable()]
    assert lines or words[0] == "groups", words


@pytest.mark.parametrize("line", LOOKING + CHANGING)
def test_our_log_fits_into_a_terminal(
    own: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(words_of(line, own, "flights", "readers"), monkeypatch, codes={0})


@pytest.mark.parametrize("line", LOOKING)
@pytest.mark.parametrize("name", BROKERS)
def test_logs_of_brokers_fit_into_a_terminal(
    brokers: dict[str, str], name: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, group = BROKERS[name]
    if group or "GROUP" not in line:
        # some groups of the corpus stand above the end of a log: a problem
        check(words_of(line, brokers[name], topic, group), monkeypatch, codes={0, 1})


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("groups LOG", "group state topic partition offset end lag behind"),
        ("stats LOG", "topic partition records bytes lastTimestamp"),
        ("lag LOG", "reader topic partition offset end lag bytes behind"),
    ],
)
def test_many_rows_are_a_table(
    brokers: dict[str, str], line: str, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, lines = seen(words_of(line, brokers["p09-groups"], "", ""), monkeypatch)
    assert names.split() in [each.split() for each in lines]


@pytest.mark.parametrize("line", ["groups LOG", "lag LOG"])
def test_groups_are_sorted_by_their_names(brokers: dict[str, str], line: str) -> None:
    done = CliRunner().invoke(app, words_of(line, brokers["p09-groups"], "", ""))
    names = [each.split()[0] for each in done.stdout.splitlines()[1:]]
    assert names == sorted(names)
    assert names[0] != names[-1]


def test_problems_of_groups_stand_below_the_table(brokers: dict[str, str]) -> None:
    done = CliRunner().invoke(app, words_of("groups LOG", brokers["p09-groups"], "", ""))
    assert done.exit_code == 1
    assert "problem: tx-group in orders-1-0: offset 120 lies above the end" in done.stderr
    assert "lies above" not in done.stdout


def test_no_color_asks_for_no_escapes(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = words_of("topics LOG", own, "", "")
    assert "\x1b[1m" in seen(words, monkeypatch, styled=True)[1][0]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in "".join(seen(words, monkeypatch, styled=True)[1])


@pytest.mark.parametrize("line", ["groups LOG", "groups LOG --json"])
def test_that_there_is_no_group_is_said(brokers: dict[str, str], line: str) -> None:
    words = words_of(line, brokers["p06-transactions"], "txn", "")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0
    assert done.stdout == ""
    assert ("no consumer group has" in done.stderr) == ("--json" not in line)


@pytest.mark.parametrize("command", ["recover", "handover", "retain", "compact"])
def test_what_is_for_our_directories_names_the_way_from_a_brokers(
    brokers: dict[str, str], command: str
) -> None:
    done = CliRunner().invoke(app, [command, brokers["p06-transactions"], "--dry-run"])
    assert done.exit_code == 2
    assert "the sink never wrote here" in done.stderr
    assert "`kafkalog takeover` lets the sink continue" in done.stderr


def test_batches_of_all_partitions_are_dumped(brokers: dict[str, str]) -> None:
    words = words_of("dump LOG --topic TOPIC", brokers["p06-transactions"], "txn", "")
    objects = CliRunner().invoke(app, [*words, "--json"])
    assert objects.stdout.count("txn-1/") == 153
    assert len(objects.stdout.splitlines()) == 300
    table = CliRunner().invoke(app, words)
    assert len(table.stdout.splitlines()) == 1 + 100
    assert table.stderr == "the first 100 rows; --count shows more\n"
    counted = CliRunner().invoke(app, [*words, "--count", "100"])
    assert (len(counted.stdout.splitlines()), counted.stderr) == (1 + 100, "")
