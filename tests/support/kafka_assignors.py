"""Kafka's own assignors, called in a JVM: what they make of the members of a group."""

from __future__ import annotations

import re
import struct
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from tests.support.jars import KAFKA
from tests.support.quick_jvm import QUICK

from kafkalog.jobs.process.jars import fetch, java
from kafkalog.model import TopicPartition
from kafkalog.streaming.coordinator.group_metadata import encode_subscription

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kafkalog.streaming.groups.assignors import Assignment, Subscription

_CLIENTS: Final = "org.apache.kafka.clients.consumer"
_CLASSES: Final = {
    "range": "RangeAssignor",
    "roundrobin": "RoundRobinAssignor",
    "sticky": "StickyAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
}
_OF_MEMBER: Final = re.compile(r"([\w.]+)=\[([^\]]*)\]")


class KafkaAssignors:
    """The assignors of one JVM."""

    def __init__(self, gateway: JavaGateway) -> None:
        self._gateway = gateway
        self._consumer = _inner(gateway.jvm, _CLIENTS)
        self._protocol = self._consumer.internals.ConsumerProtocol
        self._optional = gateway.jvm.java.util.Optional

    def assign(
        self, strategy: str, topics: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> Assignment:
        """Return what a new assignor of the strategy decides."""
        assignor = getattr(self._consumer, _CLASSES[strategy])()
        java_topics, java_members = (self._gateway.jvm.java.util.HashMap() for _ in range(2))
        for topic, partitions in topics.items():
            if any(topic in member.topics for member in members.values()):
                java_topics.put(topic, partitions)
        for name, member in members.items():
            java_members.put(name, self._subscription(member))
        text = assignor.assign(java_topics, java_members).toString()
        found: Assignment = {member: [] for member in members}
        for member, listed in _OF_MEMBER.findall(text):
            for each in listed.split(", ") if listed else []:
                topic, _, number = each.rpartition("-")
                found[member].append(TopicPartition(topic, int(number)))
        return found

    def _subscription(self, member: Subscription) -> Any:
        data = encode_subscription(
            sorted(member.topics),
            owned=member.owned,
            generation=member.generation,
            user_data=_sticky_user_data(member) if member.generation >= 0 else None,
        )
        buffer = self._gateway.jvm.java.nio.ByteBuffer.wrap(data)
        subscription = self._protocol.deserializeSubscription(buffer)
        if member.instance is not None:
            subscription.setGroupInstanceId(self._optional.of(member.instance))
        return subscription


@contextmanager
def kafka_assignors() -> Iterator[KafkaAssignors]:
    """Start a JVM with Kafka's clients, and end it."""
    (py4j,) = Path(pyspark.__file__).parent.glob("jars/py4j-*.jar")
    jars = [path for path in fetch(KAFKA) if path.name.startswith(("kafka-clients", "slf4j-api"))]
    port, process = launch_gateway(
        jarpath=str(py4j),
        classpath=":".join(map(str, jars)),
        javaopts=["-Xmx256m", *QUICK],
        java_path=java(),
        die_on_exit=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        yield KafkaAssignors(gateway)
    finally:
        gateway.shutdown()
        process.stdin.close()  # what it waits for; py4j's own thread reads its output
        process.wait(timeout=60)


def _inner(package: Any, path: str) -> Any:
    for name in path.split("."):
        package = getattr(package, name)
    return package


def _sticky_user_data(member: Subscription) -> bytes:
    """Encode what ``StickyAssignor`` puts beside a subscription, version 1."""
    by_topic: dict[str, list[int]] = {}
    for topic, number in member.owned:
        by_topic.setdefault(topic, []).append(number)
    parts = [struct.pack(">i", len(by_topic))]
    for topic, numbers in by_topic.items():
        name = topic.encode()
        parts.append(struct.pack(">h", len(name)) + name)
        parts.append(struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join(parts) + struct.pack(">i", member.generation)
