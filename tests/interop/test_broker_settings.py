"""What takeover knows of topics' settings is what the broker said when it was asked."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)
from tests.support.kafka import Broker, Topic

from kafkalog.checkpoints.state_file import load_state
from kafkalog.streaming.admin.broker.handover import take_over

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.interop

SECONDS = 60
TOPICS = {
    "plain": {},
    "limited": {"retention.ms": "3600000", "retention.bytes": "123456789"},
    "compacted": {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.25"},
    "odd": {"compression.type": "zstd", "follower.replication.throttled.replicas": "*"},
    "again": {"retention.ms": "1000"},
    "gone": {"retention.ms": "1000"},
}


class Admin:
    """Kafka's own clients, as ``kafka-configs`` uses them."""

    def __init__(self, broker: Broker) -> None:
        self._client = AdminClient({"bootstrap.servers": broker.bootstrap})

    def alter(self, topic: str, **changes: str | None) -> None:
        """Set settings of a topic, or delete them (None); ``__`` for a dot."""
        entries = [
            ConfigEntry(
                name.replace("__", "."),
                value,
                incremental_operation=AlterConfigOpType.DELETE
                if value is None
                else AlterConfigOpType.SET,
            )
            for name, value in changes.items()
        ]
        resource = ConfigResource("topic", topic, incremental_configs=entries)
        for future in self._client.incremental_alter_configs([resource]).values():
            future.result(SECONDS)

    def delete(self, topic: str) -> None:
        for future in self._client.delete_topics([topic], operation_timeout=SECONDS).values():
            future.result(SECONDS)

    def given(self, topic: str) -> dict[str, str] | None:
        """Ask for the settings that were given to the topic itself; None if it is not known."""
        resource = ConfigResource("topic", topic)
        (future,) = self._client.describe_configs([resource]).values()
        try:
            entries = future.result(SECONDS).values()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
            return None
        return {
            entry.name: entry.value
            for entry in entries
            if ConfigSource(entry.source) == ConfigSource.DYNAMIC_TOPIC_CONFIG
        }

    def wait_until_given(self, wanted: dict[str, dict[str, str]]) -> None:
        """Wait until the broker says so: what it has taken it tells a moment later."""
        deadline = time.monotonic() + SECONDS
        while (found := {name: self.given(name) for name in wanted}) != wanted:
            assert time.monotonic() < deadline, found
            time.sleep(0.1)


def told(data: Path) -> dict[str, dict[str, str]]:
    state = load_state(data)
    assert state is not None
    return {topic.name: dict(topic.settings) for topic in state.topics.values()}


def test_takeover_knows_the_settings_that_the_broker_told(tmp_path: Path) -> None:
    data = tmp_path / "data"
    snapshots = {"metadata.log.max.record.bytes.between.snapshots": "500"}
    broker = Broker(tmp_path / "broker", log_dirs=[data], settings=snapshots)
    with broker:
        broker.create_topics(*(Topic(name, config=given) for name, given in TOPICS.items()))
        admin = Admin(broker)
        admin.alter("plain", segment__ms="70000", flush__ms="90000")
        admin.alter("plain", flush__ms=None)
        admin.alter("limited", retention__ms="7200000", retention__bytes=None)
        admin.delete("gone")
        admin.delete("again")
        broker.create_topics(Topic("again", config={"segment.ms": "80000"}))
        wanted = {
            **{name: TOPICS[name] for name in ("compacted", "odd")},
            "plain": {"segment.ms": "70000"},
            "limited": {"retention.ms": "7200000"},
            "again": {"segment.ms": "80000"},
        }
        admin.wait_until_given(wanted)
    assert any((data / "__cluster_metadata-0").glob("*[1-9]-*.checkpoint"))
    assert take_over([str(data)]).problems == []
    assert told(data) == wanted
    with broker:
        admin = Admin(broker)
        admin.alter("limited", retention__ms=None)
        admin.alter("plain", cleanup__policy="compact")
        wanted["limited"] = {}
        wanted["plain"] = {"segment.ms": "70000", "cleanup.policy": "compact"}
        admin.wait_until_given(wanted)
        broker.kill()
    assert take_over([str(data)]).problems == []
    assert told(data) == wanted
