"""Transactions that a dead broker left open are aborted as its coordinator would do it."""

from __future__ import annotations

import json
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.handed_nodes import format_nodes, give, know
from tests.support.killing import count_calls, run_and_kill
from tests.support.logs import Row, append_batch, batch_bytes, write_checkpoint, write_segment
from tests.support.replicated import append, check_equal, check_in_sync, newest_state, path_of
from tests.support.sinking import Writer, rows
from tests.support.transactions import (
    ABORT,
    COMMIT,
    BrokerLog,
    marker,
    producer_batch,
    state_record,
)
from typer.testing import CliRunner

from kafkalog.checkpoints.broker import CLEAN_SHUTDOWN, META_PROPERTIES, write_clean_shutdown_marker
from kafkalog.errors import CommitError, OptionError
from kafkalog.jobs.cli.app import app
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover import take_over
from kafkalog.streaming.api import read
from kafkalog.streaming.coordinator.group_metadata import encode_position, encode_position_key
from kafkalog.streaming.groups.group_commits import GroupCommits
from kafkalog.streaming.log.indexes import AbortedTransaction, TxnIndex
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.records.control import MarkerType, end_transaction_marker
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.admin.recovery import RecoveryReport

COMMITTED = {"kafka.isolation.level": "read_committed"}
LAST = 7
end = partial(take_over, aborts_open=True, abort_producers=[1, 2])
"""There is no ``__transaction_state`` beside the log: the producers are named."""


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
    marker = end_transaction_marker(
        MarkerType.ABORT,
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
    done = end([str(log)])
    assert done.problems == []
    assert [text.partition(" is ")[2].partition(" (")[0] for text in done.aborted] == [
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
    assert end([str(log)]).aborted == []


def test_without_being_asked_nothing_is_aborted(log: Path) -> None:
    decide(log, ("a", ONGOING, 1), ("b", ONGOING, 2), named={"t": [0]})
    before = (log / "t-0" / f"{0:020d}.log").read_bytes()
    (problem,) = take_over([str(log)]).problems
    assert "--abort-open-transactions" in problem
    assert (log / "t-0" / f"{0:020d}.log").read_bytes() == before
    with pytest.raises(CommitError, match="abort-open-transactions"):
        Writer(log, topic="t", allowBrokerDirectory="true").write(0, rows(["new"]))


@pytest.mark.long
def test_an_abort_that_is_cut_off_anywhere_is_run_again(log: Path, tmp_path: Path) -> None:
    def act(folder: Path) -> None:
        assert end([str(folder)]).problems == []

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


# What coordinators have decided

ONGOING, PREPARE_COMMIT, COMMITTED_ALL = 1, 2, 4


def decide(
    folder: Path,
    *states: tuple[str, int, int],
    named: dict[str, list[int]],
    at: int = 0,
    number: int = 0,
) -> None:
    """Write what a coordinator noted: transactional id, status and producer."""
    records = [state_record(name, status, producer, 0, named) for name, status, producer in states]
    made = batch_bytes(at, [Row(value, key) for key, value in records])
    write_segment(folder / f"__transaction_state-{number}", 0, made)


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    """Give a broker's log: producer 1 is committed in t-0 and open in t-1, 2 is open in t-1."""
    first, second = (BrokerLog(tmp_path / "log" / f"t-{number}") for number in (0, 1))
    first.append(1)
    first.end(1, COMMIT)
    second.append(2)
    second.append(1)
    first.write()
    second.write()
    (tmp_path / "log" / META_PROPERTIES).write_text("version=1\n")
    return tmp_path / "log"


def both(log: Path) -> list[tuple[int, bytes]]:
    found = read(str(log), "t", options=COMMITTED).read_all().to_pydict()
    return sorted(zip(found["partition"], found["value"], strict=True))


def test_what_was_prepared_to_commit_is_committed_and_what_is_undecided_aborted(
    halves: Path,
) -> None:
    decide(halves, ("a", PREPARE_COMMIT, 1), ("b", ONGOING, 2), named={"t": [0, 1]})
    done = take_over([str(halves)], aborts_open=True)
    assert done.problems == []
    assert [line.partition(" is ")[2].partition(" (")[0] for line in done.committed] == [
        "committed at offset 3"
    ]
    assert [line.partition(" is ")[2].partition(" (")[0] for line in done.aborted] == [
        "aborted at offset 2"
    ]
    assert both(halves) == [(0, b"0"), (1, b"1")]


def test_where_the_coordinators_records_are_not_here_nothing_is_guessed(
    halves: Path, tmp_path: Path
) -> None:
    """Its advice, followed, ends well: with the records of the other broker, or with its id."""
    before = (halves / "t-1" / f"{0:020d}.log").read_bytes()
    (problem,) = take_over([str(halves)], aborts_open=True).problems
    assert "there is no __transaction_state" in problem
    assert "--abort-producer 2 --abort-producer 1" in problem
    assert "--transaction-state DIR" in problem
    assert (halves / "t-1" / f"{0:020d}.log").read_bytes() == before

    shutil.copytree(halves, tmp_path / "named")
    words = ["--abort-open-transactions", "--abort-producer", "2", "--abort-producer", "1"]
    done = CliRunner().invoke(app, ["takeover", str(tmp_path / "named"), *words, "--json"])
    assert (done.exit_code, len(json.loads(done.stdout)["aborted"])) == (0, 2)
    assert both(tmp_path / "named") == [(0, b"0")]

    other = tmp_path / "other broker"
    decide(other, ("a", PREPARE_COMMIT, 1), ("b", ONGOING, 2), named={"t": [0, 1]})
    words = ["--abort-open-transactions", "--transaction-state", str(other), "--json"]
    done = CliRunner().invoke(app, ["takeover", str(halves), *words])
    assert (done.exit_code, len(json.loads(done.stdout)["committed"])) == (0, 1)
    assert both(halves) == [(0, b"0"), (1, b"1")]


def test_of_several_copies_of_a_coordinators_records_the_newest_counts(
    halves: Path, tmp_path: Path
) -> None:
    """A follower's copy may have missed the decision."""
    decide(halves, ("a", ONGOING, 1), ("b", ONGOING, 2), named={"t": [0, 1]})
    states = [("a", ONGOING, 1), ("b", ONGOING, 2), ("a", PREPARE_COMMIT, 1)]
    decide(tmp_path / "leader", *states, named={"t": [0, 1]})
    leader = [str(tmp_path / "leader")]
    assert take_over([str(halves)], aborts_open=True, transaction_state=leader).problems == []
    assert both(halves) == [(0, b"0"), (1, b"1")]


def test_what_is_known_of_one_transaction_is_done_beside_one_that_stays_open(halves: Path) -> None:
    decide(halves, ("a", PREPARE_COMMIT, 1), named={"t": [0, 1]})
    forecast = take_over([str(halves)], aborts_open=True, dry_run=True)
    done = take_over([str(halves)], aborts_open=True)
    (problem,) = done.problems
    assert "producer 2 (epoch 0, from offset 0 on)" in problem
    assert "producer 1" not in problem
    assert (len(done.committed), done.aborted) == (1, [])
    assert (forecast.problems, forecast.committed) == (done.problems, done.committed)
    done = take_over([str(halves)], aborts_open=True, abort_producers=[2])
    assert (done.problems, len(done.aborted), done.committed) == ([], 1, [])
    assert both(halves) == [(0, b"0"), (1, b"1")]


def test_a_marker_of_another_producer_is_not_that_which_the_end_of_a_log_has_lost(
    tmp_path: Path,
) -> None:
    found = BrokerLog(tmp_path / "log" / "t-0")
    found.append(3)
    found.end(3, COMMIT)
    found.append(1)
    found.write()
    (tmp_path / "log" / META_PROPERTIES).write_text("version=1\n")
    decide(tmp_path / "log", ("a", PREPARE_COMMIT, 1), ("a", COMMITTED_ALL, 1), named={"t": [0]})
    assert end([str(tmp_path / "log")]).problems == []
    assert committed(tmp_path / "log") == [b"0", b"2"]


def test_damaged_records_of_a_coordinator_let_nothing_be_aborted(halves: Path) -> None:
    decide(halves, ("a", PREPARE_COMMIT, 1), ("b", ONGOING, 2), named={"t": [0, 1]})
    states = halves / "__transaction_state-0" / f"{0:020d}.log"
    states.write_bytes(states.read_bytes()[:-1] + b"\xff" + batch_bytes(2, [Row()]))
    (problem,) = take_over([str(halves)], aborts_open=True).problems
    assert "is damaged after offset 0" in problem


def test_how_transactions_end_is_said_only_where_they_are_to_be_ended(halves: Path) -> None:
    with pytest.raises(OptionError, match="--abort-open-transactions"):
        take_over([str(halves)], abort_producers=[1])


POSITIONS = TopicPartition("__consumer_offsets", 0)


@pytest.mark.parametrize(("status", "at"), [(PREPARE_COMMIT, 6), (ONGOING, 3)])
def test_positions_of_a_group_end_as_decided_also_where_only_a_broker_knows_them(
    tmp_path: Path, status: int, at: int
) -> None:
    """The high watermark lags behind a log whose broker was killed, and does not hide them."""
    log, key = tmp_path / "log", TopicPartition("t", 0)
    (log / META_PROPERTIES).parent.mkdir()
    (log / META_PROPERTIES).write_text("version=1\n")
    write_segment(log / "t-0", 0, batch_bytes(0, [Row()] * 9))
    positions = [
        producer_batch(
            0, 1, 1, row=Row(encode_position(3, timestamp_ms=0), encode_position_key("g", key))
        ),
        marker(1, 1, COMMIT),
        producer_batch(
            2, 1, 1, row=Row(encode_position(6, timestamp_ms=0), encode_position_key("g", key))
        ),
    ]
    write_segment(log / str(POSITIONS), 0, b"".join(positions))
    write_checkpoint(log, "replication-offset-checkpoint", {"t-0": 9, str(POSITIONS): 1})
    decide(log, ("a", status, 1), named={POSITIONS.topic: [0]})
    (problem,) = take_over([str(log)]).problems
    assert "__consumer_offsets-0 is still open" in problem
    assert take_over([str(log)], aborts_open=True).problems == []
    policy = SetPolicy(allows_broker=True)
    assert GroupCommits([log], "g", policy).look().positions == {key: at}
    words = ["groups", "reset", str(log), "--group", "g", "--topic", "t", "--to", "earliest"]
    done = CliRunner().invoke(app, [*words, "--allow-broker-directory"])
    assert done.exit_code == 0, done.output
    assert take_over([str(log)], aborts_open=True).problems == []
    assert GroupCommits([log], "g", policy).look().positions == {key: 0}


# On several nodes


@pytest.fixture
def handed_over(tmp_path: Path) -> list[Path]:
    """Give three nodes that brokers have; of t-0 one lags, and has missed the end of a transaction.

    Producer 1 is committed in t-0 on two nodes, and open in t-1 on all of them.
    """
    nodes = [tmp_path / name for name in "abc"]
    append(nodes, 0, [f"a{n}" for n in range(12)])
    format_nodes(nodes)
    assert give(nodes, know(tmp_path / "metadata", nodes)).problems == []
    for node in nodes:
        for folder in (node / "t-0", node / "t-1"):
            append_transaction(folder, b"in it")
        if node != nodes[2]:
            append_transaction(node / "t-0", None)
    return nodes


def append_transaction(folder: Path, value: bytes | None) -> None:
    """Append a record of producer 1, or the marker that commits it."""
    key = TopicPartition("t", int(folder.name[-1]))
    with PartitionLog(folder, key) as found:
        at = found.log_end_offset()
    made = marker(at, 1, COMMIT) if value is None else producer_batch(at, 1, 1, row=Row(value))
    append_batch(max(folder.glob("*.log")), made)


def take_nodes(nodes: list[Path], metadata: Path, **given: Any) -> RecoveryReport:
    return take_over([path_of(nodes)], cluster_metadata=[str(metadata)], **given)


def rows_in(nodes: list[Path]) -> list[str]:
    found = read(path_of(nodes), "t", options=COMMITTED).read_all()["value"].to_pylist()
    return sorted(each.decode() for each in found if not each.startswith(b"a"))


@pytest.mark.parametrize(("status", "rows"), [(PREPARE_COMMIT, 2), (ONGOING, 1)])
def test_the_replica_that_counts_gets_the_marker_and_others_become_equal(
    handed_over: list[Path], tmp_path: Path, status: int, rows: int
) -> None:
    """The newest copy of the coordinator's records decides, not the largest: one is compacted."""
    named = {"t": [0, 1]}
    decide(handed_over[1], *[("a", ONGOING, 1)] * 9, named=named)
    decide(handed_over[2], ("a", status, 1), named=named, at=9)
    (problem,) = take_nodes(handed_over, tmp_path / "metadata").problems
    assert "of t-1 is still open" in problem  # that of t-0 is over: who lags counts for nothing
    assert "--abort-open-transactions" in problem
    forecast = take_nodes(handed_over, tmp_path / "metadata", aborts_open=True, dry_run=True)
    assert newest_state(handed_over).handed_to == "c"
    done = take_nodes(handed_over, tmp_path / "metadata", aborts_open=True)
    assert done == forecast
    assert (done.problems, len(done.committed)) == ([], rows - 1)
    check_equal(handed_over)
    check_in_sync(handed_over)
    assert rows_in(handed_over) == ["in it"] * rows
    append(handed_over, 1, ["on"], allowBrokerDirectory="true")
    assert rows_in(handed_over) == [*["in it"] * rows, "on"]


def test_of_several_nodes_nothing_is_taken_over_while_nothing_tells_how_a_transaction_ends(
    handed_over: list[Path], tmp_path: Path
) -> None:
    """Each of the two ways that are advised ends well."""
    (problem,) = take_nodes(handed_over, tmp_path / "metadata", aborts_open=True).problems
    assert "there is no __transaction_state" in problem
    assert newest_state(handed_over).handed_to == "c"
    for folder in [*handed_over, tmp_path / "metadata"]:
        shutil.copytree(folder, tmp_path / "named" / folder.name)
    named = [tmp_path / "named" / node.name for node in handed_over]
    done = take_nodes(named, tmp_path / "metadata", aborts_open=True, abort_producers=[1])
    assert (done.problems, len(done.aborted)) == ([], 1)
    assert rows_in(named) == ["in it"]
    decide(tmp_path / "other", ("a", PREPARE_COMMIT, 1), named={"t": [0, 1]})
    words = ["--cluster-metadata", str(tmp_path / "metadata"), "--abort-open-transactions"]
    words += ["--transaction-state", str(tmp_path / "other")]
    done = CliRunner().invoke(app, ["takeover", path_of(handed_over), *words])
    assert done.exit_code == 0, done.output
    assert rows_in(handed_over) == ["in it"] * 2


def test_positions_in_the_brokers_own_topic_are_as_decided_on_all_nodes(
    handed_over: list[Path], tmp_path: Path
) -> None:
    """One node has the newest record only, which its high watermark does not show."""
    key = TopicPartition("t", 0)
    for node, numbers in zip(handed_over, ([3], [3, 6], [3]), strict=True):
        batches = [
            producer_batch(
                at, 1, 2, row=Row(encode_position(n, timestamp_ms=0), encode_position_key("g", key))
            )
            + (marker(at + 1, 2, COMMIT) if n == 3 else b"")
            for at, n in zip((0, 2), numbers, strict=False)
        ]
        write_segment(node / str(POSITIONS), 0, b"".join(batches))
        write_checkpoint(node, "replication-offset-checkpoint", {str(POSITIONS): 1})
    decide(handed_over[0], ("a", PREPARE_COMMIT, 1), named={"t": [0, 1]})
    decide(handed_over[0], ("b", PREPARE_COMMIT, 2), named={POSITIONS.topic: [0]}, number=1)
    done = take_nodes(handed_over, tmp_path / "metadata", aborts_open=True)
    assert (done.problems, len(done.committed)) == ([], 2)
    policy = SetPolicy(allows_broker=True)
    for nodes in (handed_over, handed_over[1:], handed_over[:2]):
        assert GroupCommits([*nodes], "g", policy).look().positions == {key: 6}
