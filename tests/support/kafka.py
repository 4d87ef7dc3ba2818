"""Real Kafka brokers on loopback, and the stock client's view of them.

`Broker` runs release 4.1 (KRaft), `ZooKeeperBroker` release 2.8, which still writes magic 0 and 1.
`serve` lets a broker serve partition folders that somebody else wrote, after the recovery that
checks every segment of them.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.support.jars import KAFKA, KAFKA_2_8
from tests.support.jvm import Server, command, run

from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    RECOVERY_POINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

HEAP: Final = "512m"
_CLUSTER_ID: Final = "a2Fma2Fsb2ctdGVzdHMtMQ"
_CLIENT_SECONDS: Final = 60
_NOT_LEADING: Final = {
    confluent_kafka.KafkaError.LEADER_NOT_AVAILABLE,
    confluent_kafka.KafkaError.NOT_LEADER_FOR_PARTITION,
    confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
}
"""What a broker answers that leads a partition by its metadata, but not yet in fact."""
_SESSION_MS: Final = "3000"
"""A broker that starts again after a kill waits until its former self is taken for dead."""

_PORTS: Final = random.SystemRandom()

_LOG4J2: Final = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %p %c %m%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""

_LOG4J: Final = """\
log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%p %c %m%n
"""

_COMMON: Final = {
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.retention.ms": "-1",
    "num.io.threads": "2",
    "num.network.threads": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
}

_STORAGE_LOGGERS: Final = re.compile(
    r"(WARN|ERROR|FATAL) (?!\S*\.BrokerLifecycleManager )"  # heartbeats: on a busy machine late
    r"(kafka\.log|kafka\.server\.(Log|Replica|Broker|Kafka)"
    r"|org\.apache\.kafka\.(storage|server)|kafka\.cluster|state\.change)\S* "
)


class Record(NamedTuple):
    """A record as a stock client (librdkafka) hands it out; sorts by partition and offset."""

    partition: int
    offset: int
    timestamp_type: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]] | None


class Topic(NamedTuple):
    """A topic to create: its partitions and its settings under Kafka's names."""

    name: str
    partitions: int = 1
    config: Mapping[str, str] = {}


class Broker:
    """One Kafka 4.1 process that is broker and controller; started by ``with``, stopped at its end.

    Args:
        home: a new folder of its own for settings, logs and (without ``log_dirs``) data.
        log_dirs: Kafka's ``log.dirs``; the first one also takes the cluster's metadata log.
        settings: more of ``server.properties``.
        quick_start: for tests; a benchmark needs a broker whose code is compiled in full.
        options: more of its JVM's.
    """

    def __init__(
        self,
        home: Path,
        *,
        log_dirs: Sequence[Path] = (),
        settings: Mapping[str, str] | None = None,
        quick_start: bool = True,
        options: Sequence[str] = (),
    ) -> None:
        self.home = home
        self._quick_start = quick_start
        self._options = options
        self.log_dirs = list(log_dirs) or [home / "data"]
        self.port = free_port()
        self._settings = {**_COMMON, **self._own_settings(), **(settings or {})}
        self._properties = home / "server.properties"
        self._server: Server | None = None

    def __enter__(self) -> Self:
        """Start it; nothing is left running if that fails."""
        try:
            self.start()
        except BaseException:
            self.kill()
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        try:
            self.stop()
        finally:
            self.close()

    @property
    def bootstrap(self) -> str:
        """What clients take as ``bootstrap.servers``."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the broker that runs."""
        assert self._server is not None
        return self._server.pid

    @property
    def log_text(self) -> str:
        """Everything that its processes have logged so far."""
        return (self.home / "broker.log").read_text(encoding="utf-8", errors="replace")

    def start(self) -> None:
        """Start it and wait until it serves; formats its directories unless they are."""
        self.home.mkdir(parents=True, exist_ok=True)
        if self._server is None:
            self._server = self._prepare()
        self._server.start(self._ready)

    def stop(self) -> None:
        """Stop it cleanly: it writes its checkpoints and the mark of a clean shutdown."""
        if self._server is not None:
            self._server.stop()

    def kill(self) -> None:
        """Kill it (SIGKILL)."""
        if self._server is not None:
            self._server.kill()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Let it do nothing for a while (SIGSTOP), as a machine that is too busy."""
        assert self._server is not None
        os.kill(self._server.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._server.pid, signal.SIGCONT)

    def close(self) -> None:
        """Stop what serves it; its data stay."""

    def use(self, log_dirs: Sequence[Path]) -> None:
        """Have other log directories when it starts again; the first one stays what it is."""
        self.log_dirs = list(log_dirs)
        self._server = None

    def forget_shutdown(self) -> None:
        """Let it read every segment when it starts again, as if it had been killed early."""
        for directory in self.log_dirs:
            (directory / ".kafka_cleanshutdown").unlink()
            for checkpoint in directory.glob("*-offset-checkpoint"):
                checkpoint.unlink()

    def complaints(self, begin: int = 0) -> list[str]:
        """Return what its storage said at level WARN or above, from character ``begin`` of the log.

        What it says about its own network, quorum and clients is left out.
        """
        return [line for line in self.log_text[begin:].splitlines() if _STORAGE_LOGGERS.match(line)]

    def create_topics(self, *topics: Topic) -> None:
        """Create topics and wait until each of their partitions has a leader."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        _wait_for_controller(admin)
        asked = [
            NewTopic(topic.name, topic.partitions, 1, config=dict(topic.config)) for topic in topics
        ]
        for future in admin.create_topics(asked, request_timeout=_CLIENT_SECONDS).values():
            future.result()
        self.wait_for_leaders(*topics)

    def wait_for_leaders(self, *topics: Topic) -> None:
        """Wait until every partition of the topics has a leader."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        for topic in topics:
            _partitions(admin, topic.name, topic.partitions)

    def produce(
        self,
        topic: str,
        records: Sequence[tuple[bytes | None, bytes | None]],
        *,
        over: int | None = None,
        **settings: object,
    ) -> None:
        """Send keys and values in order, and wait until all are acknowledged.

        ``over`` deals them out to so many partitions in turn; without it the client chooses, and
        may leave a partition out.
        """
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap, **settings})
        for number, (key, value) in enumerate(records):
            chosen = {} if over is None else {"partition": number % over}
            producer.produce(topic, value, key, **chosen)
            producer.poll(0)
        assert producer.flush(_CLIENT_SECONDS) == 0

    def consume_all(self, topic: str, *, isolation: str = "read_uncommitted") -> list[Record]:
        """Read a topic from its log start to its end, in order of partition and offset."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "kafkalog-tests",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": isolation,
                "check.crcs": True,
            }
        )
        with contextlib.closing(consumer):
            waiting = set(_partitions(consumer, topic))
            beginning = confluent_kafka.OFFSET_BEGINNING
            consumer.assign(
                [confluent_kafka.TopicPartition(topic, number, beginning) for number in waiting]
            )
            return sorted(_consume(consumer, waiting), key=lambda record: record[:2])

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Return log start offset and high watermark of every partition."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "kafkalog-tests",
                "isolation.level": "read_uncommitted",
            }
        )
        with contextlib.closing(consumer):
            return {
                number: _watermarks(consumer, confluent_kafka.TopicPartition(topic, number))
                for number in _partitions(consumer, topic)
            }

    def wait_for_records(self, topic: str, count: int) -> None:
        """Wait until the high watermarks let ``count`` records be read: a killed broker's lag."""
        deadline = time.monotonic() + 3 * _CLIENT_SECONDS
        while (seen := sum(end for _, end in self.offsets(topic).values())) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{topic}: {seen} of {count} records can be read")
            time.sleep(0.2)

    _ready = "Kafka Server started"

    def _own_settings(self) -> dict[str, str]:
        controller = free_port()
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "broker.heartbeat.interval.ms": "500",
            "broker.session.timeout.ms": _SESSION_MS,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": self._listener,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        }

    @property
    def _listener(self) -> str:
        return f"PLAINTEXT://127.0.0.1:{self.port}"

    def _prepare(self) -> Server:
        self._write_properties()
        log4j = self.home / "log4j2.properties"
        log4j.write_text(_LOG4J2, encoding="utf-8")
        properties = str(self._properties)
        tool = ("kafka.tools.StorageTool", "format", "--ignore-formatted")
        tool = (*tool, "-t", _CLUSTER_ID, "-c", properties)
        formatted = run(command(KAFKA, *tool))
        assert formatted.returncode == 0, formatted.stdout + formatted.stderr
        options = [f"-Dlog4j2.configurationFile={log4j}", "-Xms128m", *self._options]
        words = command(
            *(KAFKA, "kafka.Kafka", properties),
            heap=HEAP,
            options=options,
            quick_start=self._quick_start,
        )
        return Server(words, self.home / "broker.log")

    def _write_properties(self) -> None:
        for directory in self.log_dirs:
            directory.mkdir(parents=True, exist_ok=True)
        settings = {**self._settings, "log.dirs": ",".join(map(str, self.log_dirs))}
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        self._properties.write_text("".join(lines), encoding="utf-8")


class SecondBroker(Broker):
    """Another broker of a cluster, with the node id 2; the first one has the controller."""

    def __init__(
        self, home: Path, first: Broker, *, settings: Mapping[str, str] | None = None
    ) -> None:
        self._quorum = first._settings["controller.quorum.voters"]
        super().__init__(home, settings=settings)

    def _own_settings(self) -> dict[str, str]:
        return {
            **super()._own_settings(),
            "process.roles": "broker",
            "node.id": "2",
            "controller.quorum.voters": self._quorum,
            "listeners": self._listener,
        }


class ZooKeeperBroker(Broker):
    """Kafka 2.8 with a ZooKeeper of its own; ``log.message.format.version`` chooses its magic."""

    _ready = "[KafkaServer id=1] started"
    _zookeeper: Server | None = None

    def start(self) -> None:
        """Start ZooKeeper, unless it still runs, and the broker."""
        self.home.mkdir(parents=True, exist_ok=True)
        if self._zookeeper is None:
            self._zookeeper = self._start_zookeeper()
        super().start()

    def kill(self) -> None:
        """Kill the broker, and wait until ZooKeeper has given up its session."""
        super().kill()
        time.sleep(2 * int(_SESSION_MS) / 1000)

    def close(self) -> None:
        """Stop ZooKeeper; its data are kept for the next start."""
        if self._zookeeper is not None:
            self._zookeeper.kill()
            self._zookeeper = None

    def _own_settings(self) -> dict[str, str]:
        self._zookeeper_port = free_port()
        return {
            "broker.id": "1",
            "listeners": self._listener,
            "zookeeper.connect": f"127.0.0.1:{self._zookeeper_port}",
            "zookeeper.connection.timeout.ms": "60000",
            "zookeeper.session.timeout.ms": _SESSION_MS,
        }

    def _prepare(self) -> Server:
        self._write_properties()
        options = [*self._logging(), "-Xms128m", *self._options]
        properties = str(self._properties)
        words = command(KAFKA_2_8, "kafka.Kafka", properties, heap=HEAP, options=options)
        return Server(words, self.home / "broker.log")

    def _start_zookeeper(self) -> Server:
        settings = self.home / "zookeeper.properties"
        settings.write_text(
            f"dataDir={self.home / 'zookeeper'}\nclientPort={self._zookeeper_port}\n"
            "clientPortAddress=127.0.0.1\nadmin.enableServer=false\ntickTime=500\n",
            encoding="utf-8",
        )
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        words = command(KAFKA_2_8, main, str(settings), options=self._logging())
        server = Server(words, self.home / "zookeeper.log")
        server.start("binding to port")
        return server

    def _logging(self) -> list[str]:
        log4j = self.home / "log4j.properties"
        log4j.write_text(_LOG4J, encoding="utf-8")
        return [f"-Dlog4j.configuration={log4j.as_uri()}"]


@contextlib.contextmanager
def serve(
    home: Path,
    sources: Sequence[Path],
    topics: Sequence[Topic],
    kind: type[Broker] = Broker,
    *,
    recovers: bool = True,
    settings: Mapping[str, str] | None = None,
    quick_start: bool = True,
) -> Iterator[Broker]:
    """Run a broker that has recovered, and serves, copies of the topics' partition folders.

    The topics are created first, so that the broker knows their ids; then, while it is stopped, the
    folders take the place of its own, which leave only their ``partition.metadata``, and whatever
    would let it believe that it had written them goes. It reads every segment when it starts again.
    Not so without ``recovers``: it is told that they were left in order, and where they end.

    Args:
        home: a new folder for the broker.
        sources: log directories that together hold every partition of the topics once.
        topics: with the settings to create them with.
        kind: which broker.
        recovers: whether it takes the folders for those of a broker that was killed.
        settings: more of ``server.properties``.
        quick_start: as of :class:`Broker`.
    """
    broker = kind(home, settings=settings, quick_start=quick_start)
    with broker:
        broker.create_topics(*topics)
        broker.stop()
        (data,) = broker.log_dirs
        for topic in topics:
            for partition in range(topic.partitions):
                _replace_partition(data / f"{topic.name}-{partition}", sources)
        if recovers:
            broker.forget_shutdown()
        else:
            for name in (RECOVERY_POINT, HIGH_WATERMARK):
                for source in sources:
                    write_offset_checkpoint(data, name, read_offset_checkpoint(source, name))
        broker.start()
        broker.wait_for_leaders(*topics)
        yield broker


def free_port() -> int:
    """Return a TCP port of the loopback interface that nobody uses right now.

    It lies below those that a system gives to clients: they cannot take it before its server does.
    """
    while True:
        port = _PORTS.randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _replace_partition(folder: Path, sources: Sequence[Path]) -> None:
    (source,) = [found for place in sources if (found := place / folder.name).is_dir()]
    metadata = folder / "partition.metadata"
    kept = metadata.read_bytes() if metadata.exists() else None  # 2.8 writes it with the first data
    shutil.rmtree(folder)
    shutil.copytree(source, folder)
    metadata.unlink(missing_ok=True)
    if kept is not None:
        metadata.write_bytes(kept)


def _wait_for_controller(admin: AdminClient) -> None:
    """Wait until a controller is known: the client's own wait asks too seldom for it."""
    deadline = time.monotonic() + _CLIENT_SECONDS
    while not _knows_a_controller(admin):
        if time.monotonic() > deadline:
            raise TimeoutError("the broker knows no controller")
        time.sleep(0.1)


def _knows_a_controller(admin: AdminClient) -> bool:
    try:
        return int(admin.list_topics(timeout=_CLIENT_SECONDS).controller_id) >= 0
    except confluent_kafka.KafkaException as failure:
        if failure.args[0].code() == confluent_kafka.KafkaError._PARTIAL:
            return False  # a broker that starts knows a part
        raise


def _partitions(
    client: AdminClient | confluent_kafka.Consumer, topic: str, count: int = 1
) -> list[int]:
    """List a topic's partitions, once there are ``count`` of them or more and all have leaders.

    A broker that has just started takes a moment to know its topics, and to lead their partitions.
    """
    deadline = time.monotonic() + _CLIENT_SECONDS
    while True:
        known = client.list_topics(topic, timeout=_CLIENT_SECONDS).topics[topic]
        leaders = [partition.leader for partition in known.partitions.values()]
        if known.error is None and len(leaders) >= count and min(leaders) >= 0:
            return sorted(known.partitions)
        if time.monotonic() > deadline:
            raise TimeoutError(f"topic {topic}: {known.error}, leaders {leaders}")
        time.sleep(0.1)


def _watermarks(
    consumer: confluent_kafka.Consumer, partition: confluent_kafka.TopicPartition
) -> tuple[int, int]:
    """Ask for log start offset and high watermark, until the leader that is known leads."""
    deadline = time.monotonic() + _CLIENT_SECONDS
    while True:
        try:
            return consumer.get_watermark_offsets(partition, timeout=_CLIENT_SECONDS)
        except confluent_kafka.KafkaException as failure:
            if failure.args[0].code() not in _NOT_LEADING or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _consume(consumer: confluent_kafka.Consumer, waiting: set[int]) -> Iterator[Record]:
    """Yield records until each of the partitions has said once that its end is reached."""
    deadline = time.monotonic() + _CLIENT_SECONDS
    while waiting:
        for message in consumer.consume(1000, timeout=0.5):
            error = message.error()
            if error is None:
                yield _record(message)
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                waiting.discard(message.partition())
            else:
                raise confluent_kafka.KafkaException(error)
        if time.monotonic() > deadline:
            raise TimeoutError(f"partitions {sorted(waiting)} have not come to their end")


def _record(message: confluent_kafka.Message) -> Record:
    timestamp_type, timestamp = message.timestamp()
    partition, offset, headers = message.partition(), message.offset(), message.headers()
    assert partition is not None
    assert offset is not None
    assert not isinstance(headers, dict)
    return Record(
        partition=partition,
        offset=offset,
        timestamp_type=timestamp_type,
        timestamp=timestamp,
        key=message.key(),
        value=message.value(),
        headers=headers,
    )
