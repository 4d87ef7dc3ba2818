"""Settings of Kafka's clients that a query over a broker may carry, and that mean nothing here.

A query that moves over from Spark's Kafka connector keeps its connection, security and tuning
settings. They are accepted and ignored with one warning (``options.warn_ignored``). Source and sink
ignore those of producers and of consumers alike, as one set of options often serves both.

The names are those of ``CommonClientConfigs``, ``ConsumerConfig``, ``ProducerConfig`` and
``AdminClientConfig`` in Kafka 2.8, 3.9 (Spark 4.2's) and 4.1. A name that an options class declares
or refuses itself is not ignored.
"""

from __future__ import annotations

from typing import Final, Literal

__all__ = ["KAFKA_CLIENT_OPTIONS", "KAFKA_SECURITY_PREFIXES", "instead_of"]

_NO_BROKER: Final = "no broker is asked: path names the log directories"

_INSTEAD: Final = {
    "auto.offset.reset": "startingOffsets says where reading begins: earliest, latest or offsets",
    "bootstrap.servers": _NO_BROKER,
    "enable.auto.commit": "commitGroupOffsets lets a streaming query write a group's positions",
    "fetch.max.bytes": "maxBytesPerTrigger limits a micro-batch",
    "group.id": "startingOffsets=group:ID begins where a group is; kafka.group.id names the group "
    "of a streaming query with joinGroup or commitGroupOffsets",
    "isolation.level": "it is called kafka.isolation.level here",
    "max.partition.fetch.bytes": "maxBytesPerTrigger limits a micro-batch",
    "max.poll.records": "maxOffsetsPerTrigger limits a micro-batch",
}

_INSTEAD_IN_CONSUMER: Final = {
    "auto.offset.reset": "the option startingOffsets says where a group begins: earliest or latest",
    "bootstrap.servers": _NO_BROKER,
    "enable.auto.commit": "there is none like it: call commit",
    "group.id": "the argument group_id names the group",
    "isolation.level": "the option kafka.isolation.level does the same",
    "max.poll.records": "there is none like it: poll returns the rows of one read of a partition",
}

_INSTEAD_IN_SINK: Final = {"bootstrap.servers": _NO_BROKER}

_OF_SINK: Final = frozenset(
    {
        *("acks", "compression.type", "compression.gzip.level", "compression.lz4.level"),
        *("compression.zstd.level", "max.block.ms", "transactional.id"),
    }
)
"""What the sink takes."""

_OF_MEMBERS: Final = frozenset(
    {
        *("client.id", "heartbeat.interval.ms", "max.poll.interval.ms", "session.timeout.ms"),
        *("partition.assignment.strategy", "rebalance.timeout.ms"),
    }
)
"""What a Consumer takes after the prefix ``kafka.``, and a query with ``joinGroup``."""

_COMMON = """
bootstrap.servers bootstrap.controllers client.dns.lookup client.id client.rack
connections.max.idle.ms default.api.timeout.ms enable.metrics.push metadata.max.age.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters
metrics.num.samples metrics.recording.level metrics.sample.window.ms receive.buffer.bytes
reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms
retry.backoff.ms security.protocol security.providers send.buffer.bytes
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
auto.include.jmx.reporter config.providers
"""

_CONSUMER = """
allow.auto.create.topics auto.commit.interval.ms auto.offset.reset check.crcs
enable.auto.commit exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes
group.id group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms
internal.leave.group.on.close internal.throw.on.fetch.stable.offset.unsupported isolation.level
key.deserializer max.partition.fetch.bytes max.poll.interval.ms max.poll.records
partition.assignment.strategy session.timeout.ms share.acknowledgement.mode value.deserializer
"""

_PRODUCER = """
acks batch.size buffer.memory compression.gzip.level compression.lz4.level compression.type
compression.zstd.level delivery.timeout.ms enable.idempotence
internal.auto.downgrade.txn.commit key.serializer linger.ms max.block.ms
max.in.flight.requests.per.connection max.request.size metadata.max.idle.ms
partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
partitioner.ignore.keys transaction.timeout.ms transaction.two.phase.commit.enable
transactional.id value.serializer
"""

KAFKA_CLIENT_OPTIONS: Final = frozenset(
    "kafka." + name for name in (_COMMON + _CONSUMER + _PRODUCER).split()
)
"""Known client settings, with the ``kafka.`` prefix under which Spark's connector takes them."""

KAFKA_SECURITY_PREFIXES: Final = ("kafka.ssl.", "kafka.sasl.", "kafka.config.providers.")
"""Families of settings whose members depend on mechanisms and plug-ins."""


def instead_of(name: str, *, asked: Literal["query", "consumer", "sink"] = "query") -> str | None:
    """Say what to use for a setting of Kafka's clients; None for a name that they do not have.

    Python clients write ``_`` for dots, and Spark begins names with ``kafka.``. ``asked`` is what
    was given the name.
    """
    known = name.lower().replace("_", ".").removeprefix("kafka.")
    instead = {
        "query": _INSTEAD,
        "consumer": _INSTEAD_IN_CONSUMER,
        "sink": _INSTEAD_IN_SINK,
    }[asked].get(known)
    if instead is not None:
        return instead
    if asked == "sink" and known in _OF_SINK:
        return f"the option {known} does it"
    if asked != "sink" and known in _OF_MEMBERS:
        where = "the same" if asked == "consumer" else "it, in a streaming query with joinGroup"
        return f"the option kafka.{known} does {where}"
    if f"kafka.{known}" in KAFKA_CLIENT_OPTIONS:
        return "Kafka's clients have it, and it means nothing here: leave it out"
    return None
