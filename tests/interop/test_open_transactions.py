"""A dead broker's open transaction is aborted; the sink appends, and the broker accepts it all."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import confluent_kafka
import pytest
from tests.support.kafka import Broker, Topic
from tests.support.sinking import Writer, rows

from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.api import read

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.interop

SECONDS = 90
TOPIC = Topic("t", 1)
QUICK = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"}


def in_transaction(broker: Broker, name: str, value: bytes) -> confluent_kafka.Producer:
    """Begin a transaction and write a record in it."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": 20_000,
        }
    )
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce("t", value, b"k")
    assert producer.flush(SECONDS) == 0
    return producer


def served(broker: Broker) -> list[str]:
    records = broker.consume_all("t", isolation="read_committed")
    return [(record.value or b"").decode() for record in records]


def test_a_broker_accepts_what_was_aborted_without_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    broker = Broker(tmp_path / "broker", log_dirs=[data], settings=QUICK)
    with contextlib.closing(broker):
        try:
            go(broker, data)
        finally:
            broker.kill()


def go(broker: Broker, data: Path) -> None:
    broker.start()
    broker.create_topics(TOPIC)
    in_transaction(broker, "ended", b"committed").commit_transaction(SECONDS)
    in_transaction(broker, "left open", b"never committed")
    in_transaction(broker, "open too", b"nor this")
    broker.kill()

    assert take_over([str(data)]).problems != []
    done = take_over([str(data)], aborts_open=True)
    assert (done.problems, len(done.aborted)) == ([], 2)
    Writer(data, topic="t", allowBrokerDirectory="true").write(0, rows(["ours"], keys=["k"]))
    options = {"kafka.isolation.level": "read_committed"}
    found = read(str(data), "t", options=options).read_all()["value"].to_pylist()
    assert found == [b"committed", b"ours"]
    given = hand_over([str(data)])
    assert given.problems == []
    (end,) = [each.end for each in given.partitions if each.topic_partition.topic == "t"]

    # The coordinator still knows the transactions, and aborts them once more when they time out.
    broker.start()
    broker.wait_for_leaders(TOPIC)
    assert served(broker) == ["committed", "ours"]
    deadline = time.monotonic() + SECONDS
    while broker.offsets("t")[0][1] < end + 2:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    # The same producers come back, and continue.
    in_transaction(broker, "left open", b"back").commit_transaction(SECONDS)
    in_transaction(broker, "open too", b"back too").commit_transaction(SECONDS)
    assert served(broker) == ["committed", "ours", "back", "back too"]
    broker.stop()
