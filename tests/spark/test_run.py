"""``kafkalog run`` and plain scripts: what they say, how they end, and that they continue."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.delta_table import values_in
from tests.support.distributions import ROOT
from tests.support.sinking import Writer, rows

import kafkalog

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark

_COMMAND = [sys.executable, "-c", "from kafkalog.jobs.cli.app import main; main()", "run"]


def started(*words: object) -> subprocess.Popen[str]:
    command = [*_COMMAND, *(str(word) for word in words)]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_pipeline_that_is_asked_to_end_ends_between_two_micro_batches_and_continues(
    tmp_path: Path,
) -> None:
    log, table, checkpoint = (tmp_path / name for name in ("log", "table", "checkpoint"))
    words = ("archive", log, table, "--topic=t", f"--checkpoint={checkpoint}", "--follow")
    into = Writer(log, topic="t")
    number = 0
    into.write(number, rows(["0", "1"]))
    for asked in (signal.SIGTERM, signal.SIGINT):
        follower = started(*words)
        for _ in range(2):
            while len(values_in(table)) < 2 * number + 2:
                assert follower.poll() is None, follower.communicate()
                time.sleep(0.2)
            number += 1
            into.write(number, rows([str(2 * number), str(2 * number + 1)]))
        follower.send_signal(asked)
        out, err = follower.communicate()

        assert (follower.returncode, out) == (128 + asked, ""), err
        assert err.splitlines()[-1].startswith("archive t: "), err
        there = Counter(values_in(table))
        assert there == Counter(str(value).encode() for value in range(len(there)))


def test_an_interrupt_while_spark_starts_leaves_no_trace_and_begins_nothing(tmp_path: Path) -> None:
    log, table, checkpoint = (tmp_path / name for name in ("log", "table", "checkpoint"))
    Writer(log, topic="t").write(0, rows(["0", "1"]))
    starting = started("archive", log, table, "--topic=t", f"--checkpoint={checkpoint}")
    assert starting.stderr is not None
    said = starting.stderr.readline()  # of the JVM, which has begun
    starting.send_signal(signal.SIGINT)
    out, err = starting.communicate()
    assert (starting.returncode, out) == (130, ""), err
    assert "This ends as soon as Spark has started" in err
    assert not re.search(r"Traceback|Exception|ERROR|^\s+at ", said + err, re.MULTILINE), said + err
    assert not checkpoint.exists()
    assert not table.exists()


def ended(*command: object) -> tuple[int, str, str]:
    """Run a command to its end; give its exit code, stdout, and the last line of stderr."""
    words = [sys.executable, *map(str, command)]
    ran = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return ran.returncode, ran.stdout, (ran.stderr.splitlines() or [""])[-1]


def test_what_a_query_fails_of_is_the_last_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    Writer(log, topic="t").write(0, rows(["0", "1"]))
    segment = log / "t-0" / "00000000000000000000.log"
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    words = ("archive", log, tmp_path / "table", "--topic=t", f"--checkpoint={tmp_path / 'c'}")
    code, out, said = ended(*_COMMAND[1:], *words)
    assert (code, out) == (1, ""), said
    assert said.startswith("t-0: offsets [0, 2) cannot be read: "), said
    assert "do not match its checksum" in said, said


@pytest.mark.nightly
def test_what_is_wrong_with_an_expression_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    command = [*_COMMAND, "ingest", tmp_path, tmp_path / "log", "--topic=t", "--format=text"]
    words = [*map(str, command), "--key=nocolumn", f"--checkpoint={tmp_path / 'c'}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.count("nocolumn") == 1, done.stderr


def test_what_a_task_of_a_job_fails_of_is_the_last_line(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    kafkalog.append(log, "t", pa.table({"value": [b"x" * 1000]}))
    words = ("replay", log, tmp_path / "to", "--topic=t", "--target-set=max.message.bytes=100")
    code, out, said = ended(*_COMMAND[1:], *words)
    assert (code, out) == (1, ""), said
    assert "max.message.bytes" in said, said
    assert "AssertionError" not in said, said


_UNTOLD: Final = """
import typer
from kafkalog.jobs.process.running import run
from kafkalog.jobs.session import session

app = typer.Typer()


@app.command()
def main() -> None:
    with session("x") as spark:
        spark._jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(
            "no.such.Format", spark._jsparkSession.sessionState().conf()
        )


run(app)
"""


@pytest.mark.nightly
def test_an_error_that_pyspark_has_no_class_for_is_one_line() -> None:
    code, out, said = ended("-c", _UNTOLD)
    assert (code, out) == (1, ""), said
    assert "Failed to find the data source: no.such.Format" in said, said


@pytest.mark.nightly
def test_plain_scripts_take_files_in_bring_a_table_back_and_look_after_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    jobs, log, copy = ROOT / "jobs", tmp_path / "log", tmp_path / "copy"
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "a.csv").write_text("id\n1\n2\n", encoding="utf-8")
    ingest = (jobs / "ingest.py", tmp_path / "input", log, "--topic=t", "--value=id")
    code, out, said = ended(*ingest, f"--checkpoint={tmp_path / 'checkpoint'}")
    assert (code, out) == (0, ""), said
    assert said.startswith("ingest t: 2 rows in 1 micro-batch, ")

    code, out, said = ended(jobs / "maintain.py", log)
    assert (code, out.splitlines()[-1]) == (0, "0 partitions to compact, 0 compacted"), said
    code, out, said = ended(*_COMMAND[1:], "maintain", log, "--topic=t")
    assert (code, out.splitlines()[-1]) == (0, "0 partitions to compact, 0 compacted"), said

    table = kafkalog.read(log, "t").read_all().select(["partition", "offset", "value"])
    pq.write_table(table, tmp_path / "table.parquet")
    restore = (jobs / "restore.py", tmp_path / "table.parquet", copy, "--topic=t")
    assert ended(*restore, "--format=parquet") == (0, "", "restore t: 2 records in 1 topic")
    restored = kafkalog.read(copy, "t").read_all().column("value").to_pylist()
    assert sorted(restored) == [b"1", b"2"]


@pytest.mark.parametrize(
    ("script", "words", "code", "sentence"),
    [
        ("ingest", ["nowhere", "log", "--topic=t", "--checkpoint=c"], 2, "nowhere does not exist"),
        ("restore", ["table", "copy"], 2, "Missing option '--topic'"),
        ("maintain", ["nowhere"], 2, "nowhere is no log directory: there is no such folder"),
    ],
)
def test_a_plain_script_tells_wrong_words_and_ends_with_a_code(
    script: str, words: list[str], code: int, sentence: str
) -> None:
    found, out, said = ended(ROOT / "jobs" / f"{script}.py", *words)
    assert (found, out, sentence in said) == (code, "", True), said


def test_columns_of_files_in_another_order_are_not_taken_for_each_other(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("user,city\nann,Bern\n")
    (tmp_path / "in" / "2.csv").write_text("city,user\nRome,bob\n")
    words = (tmp_path / "in", tmp_path / "log", "--topic=t", f"--checkpoint={tmp_path / 'c'}")
    follower = started("ingest", *words)
    _, err = follower.communicate()
    assert follower.returncode == 1
    assert "error while reading file" in err
    assert not [*(tmp_path / "log").glob("t-0/*.log")]
