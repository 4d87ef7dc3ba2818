"""A real broker shows the positions that streaming queries over a log directory committed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import confluent_kafka
import pytest
from tests.support.kafka import Topic, serve
from tests.support.sinking import Writer, rows

from kafkalog.model import TopicPartition
from kafkalog.streaming.groups.administration import GroupWriter

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.kafka import Broker

pytestmark = pytest.mark.interop

_LOADING = {
    confluent_kafka.KafkaError.NOT_COORDINATOR,
    confluent_kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    confluent_kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
}


def test_a_broker_shows_the_positions_and_its_consumers_go_on_there(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    Writer(log, topic="t", numPartitions="2").write(
        0, rows([str(n) for n in range(10)], partitions=[n % 2 for n in range(10)])
    )
    for group in ("readers", "é" * 20, "others"):
        writer = GroupWriter([str(log)], group)
        for offset in range(1, 4):
            writer.commit({TopicPartition("t", 0): offset, TopicPartition("t", 1): 5})
    topics = [Topic("t", 2), Topic("__consumer_offsets", 50, {"cleanup.policy": "compact"})]
    with serve(tmp_path / "broker", [log], topics) as broker:
        for group in ("readers", "é" * 20, "others"):
            assert committed(broker, group) == [3, 5]
        assert committed(broker, "nobody") == [confluent_kafka.OFFSET_INVALID] * 2
        assert broker.complaints() == []
        assert first_of(broker, "readers") == (0, 3, b"6")


def committed(broker: Broker, group: str) -> list[int]:
    places = [confluent_kafka.TopicPartition("t", partition) for partition in range(2)]
    consumer = confluent_kafka.Consumer(config(broker, group))
    deadline = time.monotonic() + 120
    try:
        while True:
            try:
                return [place.offset for place in consumer.committed(places, timeout=60)]
            except confluent_kafka.KafkaException as error:  # the coordinator loads its partitions
                if not error.args[0].retriable() and error.args[0].code() not in _LOADING:
                    raise
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
    finally:
        consumer.close()


def first_of(broker: Broker, group: str) -> tuple[int, int, bytes]:
    """Have a consumer of the group join it, and give the first record that it gets."""
    consumer = confluent_kafka.Consumer(config(broker, group))
    try:
        consumer.subscribe(["t"])
        record = consumer.poll(60)
        assert record is not None
        assert record.error() is None
        return record.partition(), record.offset(), record.value()
    finally:
        consumer.close()


def config(broker: Broker, group: str) -> dict[str, str]:
    return {
        "bootstrap.servers": f"127.0.0.1:{broker.port}",
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": "false",
    }
