"""What a broker is given to compact: by topic, everything that its cleaner distinguishes."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import confluent_kafka
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tests.support.kafka import Broker

__all__ = ["DAY_MS", "Load", "Row", "alter_broker", "alter_settings", "random_rows"]

DAY_MS: Final = 86_400_000
_SECONDS: Final = 120
_SETTINGS_APPLY: Final = (
    "broker id=1] Updating topic {} with new configuration",
    "Processing override for entityPath: topics/{} with config",
)
"""What a broker says, 4.1 and 2.8."""


class Row(NamedTuple):
    """A record to be sent; the timestamp is in ms."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int


def random_rows(
    seed: object, count: int, *, keys: int = 60, age_ms: int = 0, headers: bool = True
) -> list[Row]:
    """Make records: empty, binary and long keys, tombstones, empty values, headers, any times."""
    rng = random.Random(str(seed))
    names = [b"", bytes(range(256)), b"\0\0\0\1", *(b"key %d" % n for n in range(keys))]
    now = int(time.time() * 1000) - age_ms
    found = []
    for _ in range(count):
        value: bytes | None = rng.randbytes(rng.randrange(40)) * rng.randrange(1, 9)
        if rng.random() < 0.15:
            value = None
        given: list[tuple[str, bytes | None]] = []
        if headers and rng.random() < 0.2:
            given = [("h", b"1"), ("h", None), ("\N{BLACK STAR}", rng.randbytes(9))]
        found.append(Row(rng.choice(names), value, given, now - rng.randrange(5000)))
    return found


class Load:
    """Producers of one broker, each with its own settings; what is sent waits for its answer."""

    def __init__(self, broker: Broker) -> None:
        self._bootstrap = {
            "bootstrap.servers": broker.bootstrap,
            "linger.ms": 5000,
            "log_level": 0,  # the broker stops before them
        }
        self._producers: dict[str, confluent_kafka.Producer] = {}

    def producer(self, name: str, **settings: object) -> confluent_kafka.Producer:
        """Return the producer of a name, made with the settings (``_`` for ``.``) at first."""
        if name not in self._producers:
            named = {key.replace("_", "."): value for key, value in settings.items()}
            made = confluent_kafka.Producer(self._bootstrap | named)
            if "transactional.id" in named:
                made.init_transactions(_SECONDS)
            self._producers[name] = made
        return self._producers[name]

    def forget(self, name: str) -> None:
        """Leave a producer with whatever is open."""
        del self._producers[name]

    @staticmethod
    def send(producer: confluent_kafka.Producer, topic: str, rows: Iterable[Row]) -> None:
        """Send one batch of records, and wait for the acknowledgement."""
        failures: list[Any] = []

        def note(error: Any, _: Any) -> None:
            if error is not None:
                failures.append(error)

        for row in rows:
            producer.produce(
                topic,
                row.value,
                row.key,
                headers=row.headers or None,
                timestamp=row.timestamp,
                on_delivery=note,
            )
        assert producer.flush(_SECONDS) == 0
        assert not failures

    def send_batches(
        self, producer: confluent_kafka.Producer, topic: str, rows: Sequence[Row], seed: object
    ) -> None:
        """Send records in batches of one to a hundred."""
        rng = random.Random(str(seed))
        done = 0
        while done < len(rows):
            size = rng.choice([1, 1, 2, 7, 30, 100])
            self.send(producer, topic, rows[done : done + size])
            done += size

    def interleave(self, topic: str, steps: int, seed: object, *, keys: int = 40) -> None:
        """Let transactions of three producers, and records of none, lie between each other.

        Some abort, some are empty, and one producer is fenced by its successor amid a transaction.
        """
        rng = random.Random(str(seed))
        opened: set[str] = set()
        left: set[str] = set()
        for step in range(steps):
            codec = rng.choice(["none", "lz4", "zstd"])
            name = f"{topic} {codec}"
            producer = self.producer(name, transactional_id=name, compression_type=codec)
            left.discard(name)
            act = rng.random()
            if act < 0.15:
                plain = self.producer("plain", enable_idempotence=False)
                self.send(plain, topic, random_rows((seed, step), 3, keys=keys))
            elif name not in opened:
                producer.begin_transaction()
                opened.add(name)
            elif act < 0.7:
                self.send(
                    producer, topic, random_rows((seed, step), rng.choice([1, 20]), keys=keys)
                )
            elif act < 0.75:
                self.forget(name)  # its successor gets a higher epoch, and the old one an abort
                opened.discard(name)
                left.add(name)
            else:
                end = producer.commit_transaction if act < 0.87 else producer.abort_transaction
                end(_SECONDS)
                opened.discard(name)
        for name in sorted(opened):
            self.producer(name).commit_transaction(_SECONDS)
        for name in sorted(left):
            self.producer(name, transactional_id=name)


def alter_settings(broker: Broker, changes: Mapping[str, Mapping[str, str]]) -> None:
    """Change settings of topics, and wait until the broker says that they hold."""
    begin = len(broker.log_text)
    _alter(broker, ConfigResource.Type.TOPIC, changes)
    deadline = time.monotonic() + _SECONDS
    while True:
        said = broker.log_text[begin:]
        if all(any(one.format(topic) in said for one in _SETTINGS_APPLY) for topic in changes):
            return
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


def alter_broker(broker: Broker, settings: Mapping[str, str]) -> None:
    """Change settings of the broker, those that it takes while it runs."""
    _alter(broker, ConfigResource.Type.BROKER, {"1": settings})


def _alter(broker: Broker, kind: Any, changes: Mapping[str, Mapping[str, str]]) -> None:
    asked = [
        ConfigResource(
            kind,
            name,
            incremental_configs=[
                ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
                for setting, value in settings.items()
            ],
        )
        for name, settings in changes.items()
    ]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for future in admin.incremental_alter_configs(asked, request_timeout=_SECONDS).values():
        future.result()
