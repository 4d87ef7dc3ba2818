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
from kafkalog.files.system import system
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.process.running import run
from kafkalog.streaming.options.quantities import parse_iso_time

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
    r"((would be )?written|left alone|problem|note): |skipped |  Readers of |  If the |    kafka"
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
    assert "problem: tx-group in orders-1-0: committed offset 120 is beyond the" in done.stderr
    assert "is beyond the" not in done.stdout


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
    assert "`kafkalog broker takeover` lets the sink continue" in done.stderr


def test_batches_of_all_partitions_are_dumped(brokers: dict[str, str]) -> None:
    words = words_of("dump LOG --topic TOPIC", brokers["p06-transactions"], "txn", "")
    objects = CliRunner().invoke(app, [*words, "--json"])
    assert objects.stdout.count("txn-1/") == 153
    assert len(objects.stdout.splitlines()) == 300
    table = CliRunner().invoke(app, words)
    assert len(table.stdout.splitlines()) == 1 + 100
    assert table.stderr == "the first 100 rows; --limit shows more\n"
    counted = CliRunner().invoke(app, [*words, "--count", "100"])
    assert (len(counted.stdout.splitlines()), counted.stderr) == (1 + 100, "")


NOON = parse_iso_time("2026-11-22T12:00:00Z")
GOLDEN = {
    "topic list log": """\
topic               topicId                 partitions      bytes
flights             ID                               4  760.8 KiB
seats               ID                               1   91.5 KiB
__consumer_offsets  ID                              50    N KiB
""",
    "topic offsets log -t flights": """\
topic    partition  start    end  uncommitted  missing
flights          0      0  6,000            0        0
flights          1      0  6,000            0        0
flights          2      0  6,000            0        0
flights          3      0  6,000            0        0
""",
    "topic stats log -t flights": """\
in all rows: topic flights, records 6,000, batches 2, bytes 190.2 KiB,
recordsPerBatch 3000.0, bytesPerBatch 95.1 KiB, lastTimestamp
2026-11-22T12:00:11Z (1 h 29 min ago), codecs none=2, producers 0, markers 0
partition  firstTimestamp
        0  2026-11-22T12:00:00.000Z
        1  2026-11-22T12:00:00.001Z
        2  2026-11-22T12:00:00.002Z
        3  2026-11-22T12:00:00.003Z
""",
    "group list log": """\
group    state  members  partitions     lag      bytes  behind
billing  Empty        0           4  12,000  380.4 KiB  1 h 30 min
loaders  Empty        0           5  12,000  380.4 KiB  1 h 30 min
""",
    "group describe log -g loaders": """\
in all rows: group loaders, state Empty, generation N, offset 3,000
topic    partition    end    lag     bytes  behind
flights          0  6,000  3,000  95.1 KiB  1 h 30 min
flights          1  6,000  3,000  95.1 KiB  1 h 29 min
flights          2  6,000  3,000  95.1 KiB  1 h 29 min
flights          3  6,000  3,000  95.1 KiB  1 h 29 min
seats            0  3,000      0       0 B  0 ms
""",
    "lag log -g billing": """\
reader   topic    partition  offset    end    lag     bytes  behind
billing  flights          0   3,000  6,000  3,000  95.1 KiB  1 h 30 min
billing  flights          1   3,000  6,000  3,000  95.1 KiB  1 h 29 min
billing  flights          2   3,000  6,000  3,000  95.1 KiB  1 h 29 min
billing  flights          3   3,000  6,000  3,000  95.1 KiB  1 h 29 min
""",
    "consume log -t flights -o 2,999 -n 3": """\
in all rows: topic flights, partition 0
offset  timestamp                 key     value
 2,999  2026-11-22T12:00:11.996Z  k11996  value 11996 is long
 3,000  2026-11-22T12:00:00.000Z  k0      value 0 is long
 3,001  2026-11-22T12:00:00.004Z  k4      value 4 is long
""",
    "verify log": "55 partitions, 55 segments, N batches, 855.4 KiB, 0 problems\n",
}


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a log with known times, sizes, and groups that are behind."""

    def rows(partitions: int) -> pa.Table:
        numbers = range(partitions * 3000)
        places = pa.array([number % partitions for number in numbers], pa.int32())
        times = pa.array([NOON + number for number in numbers], pa.timestamp("ms", tz="UTC"))
        values = [f"value {number} is long" for number in numbers]
        keys = [f"k{number}" for number in numbers]
        return pa.table({"key": keys, "value": values, "partition": places, "timestamp": times})

    folder = tmp_path_factory.mktemp("figures")
    log = folder / "log"
    options = {"numPartitions": "4", "compression.type": "none"}
    kafkalog.append(log, "flights", rows(4), options=options)
    kafkalog.append(log, "seats", rows(1))
    for group, topics in (("billing", ["flights"]), ("loaders", ["flights", "seats"])):
        start = {"startingOffsets": "earliest"}
        with kafkalog.Consumer(log, group, topics, options=start) as consumer:
            left = 3000 * (4 + (len(topics) > 1))
            while left:
                batch = consumer.poll(timeout=30.0)
                assert batch is not None
                left -= batch.num_rows
            consumer.commit()
    kafkalog.append(log, "flights", rows(4))
    return folder


@pytest.mark.parametrize("line", GOLDEN)
def test_what_matters_first_is_shown_first(
    figures: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(figures)
    with monkeypatch.context() as patch:
        patch.setattr(system, "time_ns", lambda: (NOON + 90 * 60_000) * 1_000_000)
        code, lines = seen(line.split(), monkeypatch)
    assert code == 0
    text = re.sub(r"[\w-]{22}(?= )", f"{'ID':<22}", "\n".join(lines)) + "\n"
    text = re.sub(r"(?<= )\d\.\d(?= KiB\n)|(?<=generation )\d+|\d+(?= batches)", "N", text)
    assert text == GOLDEN[line]


@pytest.mark.parametrize("line", ["topic describe", "topic offsets", "group list", "lag"])
def test_no_table_is_longer_than_the_screen_unless_somebody_asks(
    figures: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal has 40 lines."""
    monkeypatch.chdir(figures)
    row = {"group": "g", "reader": "g", "topic": "t", "lag": 5, "problems": 0, "missing": 0}
    rows = [{**row, "partition": n, "end": n * 1000} for n in range(1000)]
    for name in ("topics.describe_partitions", "topics.list_offsets", "groups.summarize_groups"):
        monkeypatch.setattr(f"kafkalog.jobs.inspection.{name}", lambda *_: rows)
    monkeypatch.setattr("kafkalog.jobs.inspection.lag.LagMeter.look", lambda _: rows)
    _, lines = seen([*line.split(), "log"], monkeypatch)
    assert len(lines) < 40
    assert re.fullmatch(r"… and 9\d\d more: -v shows them", lines[-1])
    _, every = seen([*line.split(), "log", "-v"], monkeypatch)
    assert len(every) >= 1000
