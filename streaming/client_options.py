"""Settings of Kafka's clients that a query over a broker may carry, and that mean nothing here.

A query that moves over from Spark's Kafka connector keeps its connection, security and tuning
settings. They are accepted and ignored with one warning (``options.warn_ignored``). Source and sink
ignore those of producers and of consumers alike, as one set of options often serves both.

The names are those of ``CommonClientConfigs``, ``ConsumerConfig``, ``ProducerConfig`` and
``AdminClientConfig`` in Kafka 2.8, 3.9 (Spark 4.2's) and 4.1. A name that an options class declares
or refuses itself is not ignored.
"""

from __future__ import annotations

from typing import Final

__all__ = ["KAFKA_CLIENT_OPTIONS", "KAFKA_SECURITY_PREFIXES"]

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
