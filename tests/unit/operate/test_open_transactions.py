"""Transactions that a dead broker left open are aborted as its coordinator would do it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from tests.support.killing import count_calls, run_and_kill
from tests.support.sinking import Writer, rows
from tests.support.transactions import ABORT, COMMIT, BrokerLog

from kafkalog.checkpoints.broker import CLEAN_SHUTDOWN, META_PROPERTIES, write_clean_shutdown_marker
from kafkalog.errors import CommitError
from kafkalog.streaming.library import read
from kafkalog.streaming.log.index.txn import AbortedTransaction, TxnIndex
from kafkalog.streaming.operate.handover import take_over
from kafkalog.streaming.records.control import abort_marker

if TYPE_CHECKING:
    from pathlib import Path

COMMITTED = {"kafka.isolation.level": "read_committed"}
LAST = 7


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give a log with two open transactions, of producers 1 (from 4) and 2 (from 6), end 7."""
    found = BrokerLog(tmp_path / "log" / "t-0")
    found.append(1)
    found.end(1, ABORT)
    found.append(3)
    found.end(3, COMMIT)
    found.append(1)
    found.append(3, transactional=False)
    found.append(2)
    found.write()
    (tmp_path / "log" / META_PROPERTIES).write_text("version=1\n")
    return tmp_path / "log"


def committed(log: Path) -> list[bytes]:
    return list(read(str(log), "t", options=COMMITTED).read_all()["value"].to_pylist())


def index(log: Path) -> list[AbortedTransaction]:
    entries = []
    for path in sorted((log / "t-0").glob("*.txnindex")):
        with TxnIndex(path, int(path.stem)) as found:
            entries += list(found)
    return entries


def test_the_marker_is_the_one_that_a_coordinator_writes() -> None:
    marker = abort_marker(
        7,
        leader_epoch=3,
        timestamp_ms=123456789,
        producer_id=1234,
        producer_epoch=5,
        coordinator_epoch=9,
    )
    assert marker.hex() == (
        "00000000000000070000004200000003029581677a00300000000000000000075bcd1500000000075bcd15"
        "00000000000004d20005ffffffff000000012000000008000000000c00000000000900"
    )


def test_open_transactions_are_aborted_and_the_sink_continues(log: Path) -> None:
    assert take_over([str(log)]).problems != []
    write_clean_shutdown_marker(log)
    done = take_over([str(log)], aborts_open=True)
    assert done.problems == []
    assert [text.partition(" is ")[2] for text in done.aborted] == [
        f"aborted at offset {LAST}",
        f"aborted at offset {LAST + 1}",
    ]
    assert not (log / CLEAN_SHUTDOWN).exists()
    assert index(log) == [
        AbortedTransaction(1, 0, 1, 2),
        AbortedTransaction(1, 4, LAST, 6),
        AbortedTransaction(2, 6, LAST + 1, LAST + 2),
    ]
    assert committed(log) == [b"2", b"5"]
    Writer(log, topic="t", allowBrokerDirectory="true").write(0, rows(["new"]))
    assert committed(log) == [b"2", b"5", b"new"]
    assert take_over([str(log)], aborts_open=True).aborted == []


def test_without_being_asked_nothing_is_aborted(log: Path) -> None:
    before = (log / "t-0" / f"{0:020d}.log").read_bytes()
    (problem,) = take_over([str(log)]).problems
    assert "--abort-open-transactions" in problem
    assert (log / "t-0" / f"{0:020d}.log").read_bytes() == before
    with pytest.raises(CommitError, match="abort-open-transactions"):
        Writer(log, topic="t", allowBrokerDirectory="true").write(0, rows(["new"]))


@pytest.mark.long
def test_an_abort_that_is_cut_off_anywhere_is_run_again(log: Path, tmp_path: Path) -> None:
    def act(folder: Path) -> None:
        assert take_over([str(folder)], aborts_open=True).problems == []

    shutil.copytree(log, tmp_path / "counted")
    calls = count_calls(lambda: act(tmp_path / "counted"))
    for call in range(0, calls, 3):
        folder = tmp_path / "copy"
        shutil.copytree(log, folder)
        assert run_and_kill(lambda folder=folder: act(folder), call, half=True)
        act(folder)
        assert committed(folder) == [b"2", b"5"]
        entries = index(folder)
        assert [entry[:2] for entry in entries] == [(1, 0), (1, 4), (2, 6)]
        assert [entry.last_offset for entry in entries] == [1, LAST, LAST + 1]
        shutil.rmtree(folder)
