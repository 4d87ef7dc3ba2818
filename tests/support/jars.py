"""The Java libraries of judges and peers, pinned; `kafkalog.jobs.process.jars.fetch` brings them.

Run as a program it fetches all of them, Delta's and the connector's too:
``python -m tests.support.jars``.
"""

from __future__ import annotations

import os
from typing import Final

from kafkalog.jobs.process.jars import Coordinate, JarSet, delta_jars, fetch, kafka_jars

KAFKA_VERSION: Final = os.environ.get("KAFKALOG_BROKER", "4.1.0")
"""The release of brokers and tools; ``make matrix`` runs tests with the newest one, too."""

KAFKA: Final = JarSet(
    f"kafka-{KAFKA_VERSION}",
    (
        Coordinate("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
        Coordinate("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
        # Without a binding for its logger the broker would keep every complaint to itself.
        Coordinate("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3", transitive=False),
    ),
)
"""Broker and tools, the judge of record batches (magic 2)."""

KAFKA_2_8: Final = JarSet(
    "kafka-2.8.2",
    (
        Coordinate("org.apache.kafka", "kafka_2.13", "2.8.2"),
        Coordinate("org.slf4j", "slf4j-reload4j", "1.7.36", transitive=False),
        Coordinate("ch.qos.reload4j", "reload4j", "1.2.25", transitive=False),
    ),
)
"""Broker with ZooKeeper, the judge of message sets (magic 0 and 1)."""

KAFKA_TIERS: Final = JarSet(
    f"kafka-storage-{KAFKA_VERSION}",
    (Coordinate("org.apache.kafka", "kafka-storage", KAFKA_VERSION, transitive=False),),
    classifier="test",
)
"""``LocalTieredStorage``, with which a broker tiers its topics into a folder."""

if __name__ == "__main__":
    for jar_set in (delta_jars(), KAFKA, KAFKA_2_8, kafka_jars()):
        print(f"{jar_set.name}: {len(fetch(jar_set))} jars")  # noqa: T201
