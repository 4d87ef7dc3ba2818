"""A broker that tiers its topics: what a stock consumer reads of them is read from its files.

A batch is read again and again while the broker uploads, deletes here and expires there; a tail
begins in the tier and goes on in the log.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import confluent_kafka
import pytest
from tests.support.aiven_plugin import class_path
from tests.support.jars import KAFKA_TIERS, KAFKA_VERSION
from tests.support.kafka import Broker, Topic, serve
from tests.support.tiers import Keys

import kafkalog
from kafkalog.jobs.inspection.tiers import tiered_paths
from kafkalog.jobs.process.jars import fetch
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.tier_restore import restore_from_tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

pytestmark = [pytest.mark.interop, pytest.mark.nightly]

SECONDS: Final = 300
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
TIERED: Final = {
    "remote.storage.enable": "true",
    "local.retention.ms": "1000",
    "retention.ms": "3600000",
    "segment.bytes": "1048576",
    "file.delete.delay.ms": "1000",
}


AIVEN: Final = os.environ.get("KAFKALOG_AIVEN_SOURCE")
"""A clone of Aiven's tiered-storage-for-apache-kafka: no registry has its jars."""
PLUGINS: Final = ("kafka", *(("aiven", "aiven-zstd", "aiven-encrypted") if AIVEN else ()))


def of_kafka(home: Path) -> dict[str, str]:
    if KAFKA_VERSION == "4.4.0":
        pytest.skip("the jar with LocalTieredStorage was not published with this release")
    (jar,) = fetch(KAFKA_TIERS)
    return {
        "remote.log.storage.manager.class.name": (
            "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
        ),
        "remote.log.storage.manager.class.path": str(jar),
        "rsm.config.dir": str(home / "tier"),
        "rsm.config.delete.on.close": "false",
    }


def of_aiven(home: Path, kind: str) -> dict[str, str]:
    assert AIVEN is not None
    tier, package = home / "tier", "io.aiven.kafka.tieredstorage"
    tier.mkdir(parents=True)
    given = {
        "storage.backend.class": f"{package}.storage.filesystem.FileSystemStorage",
        "storage.root": str(tier),
        "key.prefix": "of/a-cluster/",
        "chunk.size": "65536",
        "custom.metadata.fields.include": "REMOTE_SIZE,OBJECT_PREFIX,OBJECT_KEY",
        "fetch.chunk.cache.class": f"{package}.fetch.cache.MemoryChunkCache",
        "fetch.chunk.cache.size": "16777216",
    }
    if kind != "aiven":  # the heuristic leaves segments alone whose batches are compressed: a mix
        given |= {"compression.enabled": "true", "compression.heuristic.enabled": "true"}
    if kind == "aiven-encrypted":
        _, public = Keys(home).public["one"]
        (home / "one.pub").write_bytes(public)
        given |= {
            "encryption.enabled": "true",
            "encryption.key.pair.id": "one",
            "encryption.key.pairs": "one",
            "encryption.key.pairs.one.public.key.file": str(home / "one.pub"),
            "encryption.key.pairs.one.private.key.file": str(home / "one.pem"),
        }
    return {
        "remote.log.storage.manager.class.name": f"{package}.RemoteStorageManager",
        "remote.log.storage.manager.class.path": class_path(Path(AIVEN)),
        **{f"rsm.config.{name}": value for name, value in given.items()},
    }


def settings(home: Path, plugin: str = "kafka") -> dict[str, str]:
    return {
        "remote.log.storage.system.enable": "true",
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        **(of_kafka(home) if plugin == "kafka" else of_aiven(home, plugin)),
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
        "remote.log.manager.task.interval.ms": "500",
        "log.retention.check.interval.ms": "500",
        "log.initial.task.delay.ms": "500",
    }


class Tiers:
    """A broker that tiers, and its files as kafkalog reads them."""

    def __init__(self, broker: Broker, plugin: str) -> None:
        self.broker = broker
        self.log = broker.log_dirs[0]
        self.tier = broker.home / "tier"
        self.remote = {"remote.path": str(self.tier)}
        if plugin != "kafka":
            self.remote["remote.path"] += "/of/a-cluster"
        if plugin == "aiven-encrypted":
            self.remote["remote.encryption.keys"] = f"one={broker.home}/one.pem"

    def options(self, **given: str) -> dict[str, str]:
        return {
            **self.remote,
            "startingOffsets": "earliest",
            "storage.listInterval": "200ms",
            **given,
        }

    def read(self, topic: str, **given: str) -> pa.Table:
        return kafkalog.read(self.log, topic, options=self.options(**given)).read_all()

    def produce(self, topic: str, count: int, **client: str) -> None:
        rows = [(str(n).encode(), f"{n:01000d}".encode()) for n in range(count)]
        self.broker.produce(topic, rows, over=2, **client)

    def transactions(self, topic: str, count: int) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.broker.bootstrap, "transactional.id": f"of-{topic}"}
        )
        producer.init_transactions(30)
        for number in range(count):
            producer.begin_transaction()
            for n in range(100):
                producer.produce(topic, f"{n:01000d}".encode(), partition=number % 2)
            if number % 3:
                producer.commit_transaction(30)
            else:
                producer.flush(30)
                producer.abort_transaction(30)

    def segments(self, topic: str) -> int:
        return len(list(self.tier.rglob(f"{topic}-*/**/*.log")))

    def first_here(self, topic: str) -> int:
        names = [path.stem for path in self.log.glob(f"{topic}-0/*.log")]
        return min(map(int, names), default=0)

    def alter(self, topic: str, **config: str) -> None:
        from confluent_kafka.admin import (
            AdminClient,
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
            ResourceType,
        )

        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        for future in admin.incremental_alter_configs([resource]).values():
            future.result()


@pytest.fixture(params=PLUGINS)
def tiers(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Tiers]:
    home = tmp_path / "broker"
    with Broker(home, settings=settings(home, request.param)) as broker:
        yield Tiers(broker, request.param)


def until(happens: Callable[[], bool], reads: Callable[[], object] = lambda: None) -> None:
    deadline = time.monotonic() + SECONDS
    while not happens():
        assert time.monotonic() < deadline, "the broker does not get there"
        reads()
        time.sleep(0.2)


def places(rows: pa.Table | pa.RecordBatch) -> list[tuple[int, int]]:
    return sorted(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


def of_client(tiers: Tiers, topic: str, isolation: str = "read_uncommitted") -> list[object]:
    return [(r.partition, r.offset) for r in tiers.broker.consume_all(topic, isolation=isolation)]


def settings_of(broker: Broker, topic: str) -> set[tuple[str, str]]:
    from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return {(name, entry.value) for name, entry in found.result().items()}


def test_a_topic_that_was_compacted_before_it_was_tiered_has_holes_and_no_losses(
    tiers: Tiers,
) -> None:
    compacted = {
        "cleanup.policy": "compact",
        "segment.bytes": "1048576",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "1",
    }
    tiers.broker.create_topics(Topic("holes", 2, compacted))
    for number in range(6):
        tiers.produce("holes", 1000)
        # no segment is left empty: Aiven's plugin uploads none that is
        once = [(f"{number} {n}".encode(), b"once") for n in range(4)]
        tiers.broker.produce("holes", once, over=2)
    until(lambda: len(of_client(tiers, "holes")) < 5000)
    tiers.alter("holes", **{"cleanup.policy": "delete", **TIERED})
    tiers.produce("holes", 100)
    until(lambda: tiers.first_here("holes") > 0)
    read = of_client(tiers, "holes")
    assert len(read) < 5124
    until(lambda: places(tiers.read("holes")) == read)  # the broker notes every 5 s how far
    tail = kafkalog.tail(tiers.log, "holes", idle_timeout=5, options=tiers.options())
    tailed = [places(batch) for batch in tail]
    assert sorted(place for some in tailed for place in some) == read


def test_a_tiered_topic_is_read_as_a_consumer_reads_it(tiers: Tiers) -> None:
    tiers.broker.create_topics(Topic("plain", 2, TIERED), Topic("sent", 2, TIERED))
    tail = kafkalog.tail(tiers.log, "plain", idle_timeout=5, options=tiers.options())
    tailed: list[tuple[int, int]] = []

    def read_on() -> int:
        found = places(tiers.read("plain"))
        for partition in (0, 1):
            offsets = [offset for number, offset in found if number == partition]
            assert offsets == list(range(len(offsets)))
        return len(found)

    for codec in CODECS:
        tiers.produce("plain", 2000, **{"compression.type": codec})
    tiers.transactions("sent", 60)
    until(lambda: tiers.first_here("plain") > 0 and tiers.first_here("sent") > 0, read_on)
    until(lambda: read_on() == 10_000)
    for batch in tail:
        tailed += zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
    assert sorted(tailed) == of_client(tiers, "plain")
    for isolation in ("read_uncommitted", "read_committed"):
        given = {"kafka.isolation.level": isolation}
        assert places(tiers.read("sent", **given)) == of_client(tiers, "sent", isolation)
    alone = tiers.remote["remote.path"]
    listed = kafkalog.read(alone, "plain", options=tiers.options()).read_all()
    assert listed.num_rows > 2000
    assert set(places(listed)) <= set(tailed)

    before = tiers.segments("plain")
    tiers.alter("plain", **{"retention.ms": "2000", "local.retention.ms": "1000"})

    def read_what_is_left() -> None:
        found = places(tiers.read("plain", failOnDataLoss="false"))
        assert len(set(found)) == len(found)

    until(lambda: tiers.segments("plain") < before // 2, read_what_is_left)
    tiers.broker.stop()
    found = tiers.read("sent")
    assert found.num_rows == 6000


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_cluster_comes_back_from_its_bucket(tmp_path: Path, plugin: str) -> None:
    home = tmp_path / "broker"
    topics = [Topic("plain", 2, TIERED), Topic("sent", 2, TIERED)]
    with Broker(home, settings=settings(home, plugin)) as broker:
        tiers = Tiers(broker, plugin)
        broker.create_topics(*topics)
        for codec in CODECS:
            tiers.produce("plain", 1500, **{"compression.type": codec})
        tiers.transactions("sent", 60)
        until(lambda: tiers.first_here("plain") > 0 and tiers.first_here("sent") > 0)
        sent = broker.consume_all("sent", isolation="read_committed")
        plain = broker.consume_all("plain")
    left = tmp_path / "left"
    shutil.copytree(broker.log_dirs[0] / "__cluster_metadata-0", left / "__cluster_metadata-0")
    shutil.rmtree(broker.log_dirs[0])
    target = tmp_path / "back"
    given = dict(tiers.remote)
    places = tiered_paths([given.pop("remote.path")], None, given)
    done = restore_from_tier(places, str(target), cluster_metadata=[str(left)])
    ends = {each.key: each.end for each in done.partitions}
    assert not any(each.gaps for each in done.partitions)
    config = done.settings["plain"]
    assert (config["segment.bytes"], config["retention.ms"]) == ("1048576", "3600000")
    served = [Topic(name, 2, done.settings[name]) for name in ("plain", "sent")]
    with serve(tmp_path / "new", [target], served) as new:
        assert settings_of(new, "plain") >= done.settings["plain"].items()
        for name, before in (("plain", plain), ("sent", sent)):
            isolation = "read_committed" if name == "sent" else "read_uncommitted"
            found = new.consume_all(name, isolation=isolation)
            uploaded = [r for r in before if r.offset < ends[TopicPartition(name, r.partition)]]
            assert len(uploaded) > 1000
            assert found == uploaded
