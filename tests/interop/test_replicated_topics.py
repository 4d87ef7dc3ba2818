"""A topic with two replicas: what the leader's log has and the follower lacks is not committed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.support.kafka import Broker, SecondBroker, Topic

import kafkalog
from kafkalog.checkpoints.broker import HIGH_WATERMARK, read_offset_checkpoint
from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.interop

_SECONDS: Final = 60
_PATIENT: Final = {
    "broker.session.timeout.ms": "600000",
    "replica.lag.time.max.ms": "600000",
    "replica.high.watermark.checkpoint.interval.ms": "8000",
}
"""A follower that is silent stays in sync, so that nothing is committed without it."""


def offsets(broker: Broker, **given: str) -> list[int]:
    found = kafkalog.read(str(broker.log_dirs[0]), "replicated", options=given).read_all()
    return [int(offset) for offset in found["offset"].to_pylist()]


def wait_for(broker: Broker, expected: list[int]) -> None:
    deadline = time.monotonic() + _SECONDS
    while offsets(broker) != expected:
        assert time.monotonic() < deadline, offsets(broker)
        time.sleep(0.2)


def create(broker: Broker, topic: str, replicas: list[int]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    asked = NewTopic(topic, 1, replica_assignment=[replicas])
    admin.create_topics([asked])[topic].result()
    broker.wait_for_leaders(Topic(topic))


def wait_for_line(broker: Broker, topic: str) -> None:
    """Wait until the checkpoint names the topic's partition."""
    deadline = time.monotonic() + _SECONDS
    while TopicPartition(topic, 0) not in read_offset_checkpoint(
        broker.log_dirs[0], HIGH_WATERMARK
    ):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def send(broker: Broker, count: int, acks: str) -> None:
    records = [(None, b"v")] * count
    broker.produce("replicated", records, acks=acks)


def test_what_not_all_replicas_have_is_not_read_of_a_new_partition_nor_of_one_that_grows(
    tmp_path: Path,
) -> None:
    with (
        Broker(tmp_path / "first", settings=_PATIENT) as leader,
        SecondBroker(tmp_path / "second", leader, settings=_PATIENT) as follower,
    ):
        # with its first topic a broker writes the checkpoint at once, and then every so often
        create(leader, "first", [1])
        wait_for_line(leader, "first")
        create(leader, "replicated", [1, 2])
        with follower.paused():
            send(leader, 5, "1")
            assert offsets(leader) == []
            assert offsets(leader, readUpTo="logEnd") == [*range(5)]
            wait_for_line(leader, "replicated")
            assert offsets(leader) == []
        for broker in (leader, follower):
            wait_for(broker, [*range(5)])
        with follower.paused():
            send(leader, 3, "1")
            assert offsets(leader) == [*range(5)]
        send(leader, 2, "all")
        for broker in (leader, follower):
            wait_for(broker, [*range(10)])
