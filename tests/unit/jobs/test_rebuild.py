"""Indexes rebuilt: what Kafka's recovery makes of the log, under locks, never after damage."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
from typing import TYPE_CHECKING

import pytest
from tests.support.corpus import UnpackedCase
from tests.support.log_files import FLIGHTS, append, contents, flip, grow_with_zeros, make_batches
from typer.testing import CliRunner

from kafkalog.checkpoints.broker import LOCK
from kafkalog.errors import LogDirectoryError, UnknownTopicOrPartitionError
from kafkalog.jobs.rebuild import app, rebuild
from kafkalog.model import TopicPartition
from kafkalog.streaming.options.topic_settings import LogConfig

if TYPE_CHECKING:
    from pathlib import Path

INTERVAL = 400


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a log directory with one partition of four segments or so."""
    config = LogConfig(index_interval_bytes=INTERVAL, segment_bytes=2000)
    append(tmp_path / "flights-0", make_batches(0, [5] * 20), config)
    return tmp_path


def test_missing_foreign_and_preallocated_indexes_become_what_they_were(log: Path) -> None:
    folder = log / "flights-0"
    before = contents(folder)
    first, second, third, *_ = sorted(folder.glob("*.index"))
    first.unlink()
    second.write_bytes(bytes.fromhex("00000003 00000077"))
    grow_with_zeros(third.with_suffix(".timeindex"), 12_000)
    done = rebuild(str(log), index_interval_bytes=INTERVAL)
    assert contents(folder) == before
    assert [path for segment in done for path in segment.replaced] == [
        first,
        second,
        third.with_suffix(".timeindex"),
    ]
    assert all(segment.problem is None for segment in done)
    again = rebuild(str(log), FLIGHTS, index_interval_bytes=INTERVAL)
    assert [segment.replaced for segment in again] == [()] * len(done)


def test_a_brokers_indexes_are_rebuilt_byte_for_byte(tmp_path: Path) -> None:
    case = UnpackedCase("p01-codecs", tmp_path)
    for folder in case.live_folders:
        for path in tmp_path.glob(f"logdir/{folder}/*index"):
            path.unlink()
    rebuild(case.path)
    assert {path.rpartition("/")[2] for path in case.changed_files()} <= {"kafkalog.lock", LOCK}


def test_an_index_stays_where_the_log_is_damaged(log: Path) -> None:
    first = min((log / "flights-0").glob("*.log"))
    flip(first, first.stat().st_size // 2)
    kept = first.with_suffix(".index").read_bytes()
    first.with_suffix(".timeindex").unlink()
    segment = rebuild(str(log), index_interval_bytes=INTERVAL)[0]
    assert segment.replaced == (first.with_suffix(".timeindex"),)
    assert segment.problem is not None
    assert f"{first}: the batch at position " in str(segment.problem)
    assert first.with_suffix(".index").read_bytes() == kept


def _hold(path: str, held: multiprocessing.synchronize.Event) -> None:
    with open(path, "w") as file:  # noqa: PTH123 - as a broker opens it
        fcntl.lockf(file, fcntl.LOCK_EX)
        held.set()
        multiprocessing.Event().wait()


def test_a_directory_that_a_broker_holds_is_refused(log: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    broker = context.Process(target=_hold, args=(str(log / LOCK), held))
    broker.start()
    try:
        assert held.wait(60)
        before = contents(log / "flights-0")
        with pytest.raises(LogDirectoryError, match="a broker, or a tool of Kafka's, is running"):
            rebuild(str(log))
        assert contents(log / "flights-0") == before
    finally:
        broker.kill()
        broker.join()


def test_a_partition_that_is_not_there_is_an_error(log: Path) -> None:
    with pytest.raises(UnknownTopicOrPartitionError, match="flights-7 is not in"):
        rebuild(str(log), TopicPartition("flights", 7))


def test_the_command_says_what_it_did_and_exits_with_it(log: Path) -> None:
    run = CliRunner()
    first = min((log / "flights-0").glob("*.index"))
    first.unlink()
    arguments = [str(log), "--index-interval-bytes", str(INTERVAL)]
    done = run.invoke(app, [*arguments, "--json"])
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == 0
    assert lines[0] == {
        "log": str(first.with_suffix(".log")),
        "replaced": [first.name],
        "problem": None,
    }
    flip(first.with_suffix(".log"), 100)
    damaged = run.invoke(app, arguments)
    assert (damaged.exit_code, "nothing to do; but" in damaged.stdout) == (1, True)
    assert run.invoke(app, [str(log), "--topic", "nobody"]).exit_code == 2
