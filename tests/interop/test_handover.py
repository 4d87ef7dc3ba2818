"""Sink and broker take turns on one log directory, both are killed; a consumer group goes on."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pytest
from tests.support.consumer_group import read_as_group
from tests.support.dump_log import dump_log_segments, partition_files
from tests.support.kafka import Broker, Topic
from tests.support.killing import count_calls, run_and_kill
from tests.support.sinking import Writer, rows
from typer.testing import CliRunner

from kafkalog.checkpoints.commit_state import UNFINISHED_FOLDER
from kafkalog.errors import CommitError
from kafkalog.jobs.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.interop, pytest.mark.crash]

SECONDS = 90
TOPIC = Topic("t", 2)
QUICK = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.max.timeout.ms": "60000",
}


class Sink:
    """Our writer on a directory in which a broker lives."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.batches = 0
        self._runs = itertools.count()

    def write(self, batch_id: int, data: Path | None = None) -> None:
        """Write a batch, as a run of its own."""
        values = [f"{batch_id}/{number}" for number in range(20)]
        run = f"run {next(self._runs)}"
        writer = Writer(data or self._data, topic="t", run=run, allowBrokerDirectory="true")
        writer.write(batch_id, rows(values, keys=values))

    def commit(self) -> None:
        self.write(self.batches)
        self.batches += 1

    def die(self, call: int) -> None:
        """Be killed at a call of the next commit that changes a file."""
        assert run_and_kill(lambda: self.write(self.batches), call)
        next(self._runs)  # the child's

    @property
    def values(self) -> set[str]:
        return {f"{batch}/{number}" for batch in range(self.batches) for number in range(20)}


def command(*words: object) -> tuple[int, Any]:
    done = CliRunner().invoke(app, [*map(str, words), "--json"])
    objects = [json.loads(line) for line in done.stdout.splitlines()]
    return done.exit_code, objects[0]


def leave_a_transaction_open(broker: Broker) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": "left open",
            "transaction.timeout.ms": 5_000,
        }
    )
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce("t", b"never committed", b"k")
    assert producer.flush(SECONDS) == 0


def wait_until_nothing_is_open(broker: Broker) -> None:
    """Wait until readers of committed records come to the end."""
    deadline = time.monotonic() + SECONDS
    while True:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "looks",
                "isolation.level": "read_committed",
            }
        )
        with contextlib.closing(consumer):
            ends = [
                consumer.get_watermark_offsets(
                    confluent_kafka.TopicPartition("t", number), timeout=SECONDS
                )[1]
                for number in range(2)
            ]
        if (
            ends == [broker.offsets("t")[number][1] for number in range(2)]
            and not command("offsets", broker.log_dirs[0])[0]
        ):
            return
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_sink_and_broker_take_turns_whoever_is_killed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    broker = Broker(tmp_path / "broker", log_dirs=[data], settings=QUICK)
    sink = Sink(data)
    with contextlib.closing(broker):
        try:
            take_turns(broker, sink, data, tmp_path)
        finally:
            broker.kill()


def take_turns(broker: Broker, sink: Sink, data: Path, scratch: Path) -> None:
    broker.start()
    broker.create_topics(TOPIC)
    broker.stop()

    # Our turn: killed everywhere, and recovered each time.
    assert command("takeover", data)[0] == 0
    sink.commit()
    Writer(scratch / "count", topic="t", numPartitions="2").write(0, rows(["a"]))
    calls = count_calls(lambda: sink.write(1, scratch / "count"))
    for call in range(calls // 8, calls, calls // 8):
        sink.die(call)
        code, done = command("recover", data)
        assert (code, done["problems"]) == (0, [])
        assert not (data / UNFINISHED_FOLDER).exists()
        sink.commit()
    sink.die(calls // 2)
    assert (data / UNFINISHED_FOLDER).is_dir()
    with pytest.raises(RuntimeError, match=UNFINISHED_FOLDER):
        broker.start()
    assert command("recover", data)[0] == 0
    assert command("handover", data)[0] == 0

    # The broker's turn: it serves what is committed, appends, and is killed.
    broker.start()
    assert sorted(read_as_group(broker, TOPIC)["t"]) == sorted(sink.values)
    broker.produce("t", [(b"k", b"from a client")])
    assert read_as_group(broker, TOPIC)["t"] == ["from a client"]
    leave_a_transaction_open(broker)
    broker.kill()

    # Not our turn yet.
    with pytest.raises(CommitError, match="transaction"):
        sink.commit()
    code, done = command("takeover", data)
    assert code == 1
    assert any("transaction" in problem for problem in done["problems"])
    broker.start()
    broker.wait_for_leaders(TOPIC)
    wait_until_nothing_is_open(broker)
    broker.kill()

    # Now it is, and then the broker's again.
    assert command("takeover", data)[0] == 0
    before = sink.values
    sink.commit()
    assert command("handover", data)[0] == 0
    broker.start()
    assert sorted(read_as_group(broker, TOPIC)["t"]) == sorted(sink.values - before)
    found = [record.value for record in broker.consume_all("t", isolation="read_committed")]
    assert len(found) == len(sink.values) + 1
    broker.stop()
    files = [path for path in partition_files(data) if path.parent.name.startswith("t-")]
    assert dump_log_segments([path for path in files if path.stat().st_size]).findings == []
