"""A consumer group of one member, with a stock client, that keeps its place in the broker."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Final

import confluent_kafka

if TYPE_CHECKING:
    from tests.support.kafka import Broker, Topic

__all__ = ["read_as_group"]

_SECONDS: Final = 90


def read_as_group(broker: Broker, *topics: Topic) -> dict[str, list[str]]:
    """Read committed records to the end of all partitions, from where the group was before.

    Gives the values of each topic, those of a partition in their order.
    """
    values: dict[str, list[str]] = {topic.name: [] for topic in topics}
    waiting = {(topic.name, number) for topic in topics for number in range(topic.partitions)}
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "keeper",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "check.crcs": True,
        }
    )
    with contextlib.closing(consumer):
        consumer.subscribe(list(values))
        deadline = time.monotonic() + _SECONDS
        while waiting:
            assert time.monotonic() < deadline, f"not read to their ends: {sorted(waiting)}"
            for message in consumer.consume(1000, timeout=0.5):
                error, topic, value = message.error(), message.topic(), message.value()
                assert topic is not None
                if error is None:
                    values[topic].append((value or b"").decode())
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    waiting.discard((topic, message.partition()))
                else:
                    raise confluent_kafka.KafkaException(error)
        with contextlib.suppress(confluent_kafka.KafkaException):  # where nothing was read
            consumer.commit(asynchronous=False)
    return values
