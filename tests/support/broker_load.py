"""A broker under load: topics that grow, are compacted, deleted from, written in transactions."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, Self

import confluent_kafka
from tests.support.kafka import Topic

if TYPE_CHECKING:
    from tests.support.kafka import Broker

__all__ = ["SETTINGS", "TOPICS", "Load", "Place"]

_KEYS: Final = 50

SETTINGS: Final = {
    "log.cleaner.backoff.ms": "200",
    "log.flush.offset.checkpoint.interval.ms": "500",
    "log.flush.start.offset.checkpoint.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "300",
    "log.segment.delete.delay.ms": "300",
    "replica.high.watermark.checkpoint.interval.ms": "200",
}
_SMALL: Final = {"internal.segment.bytes": "60000"}
TOPICS: Final = (
    Topic("growing", 2, _SMALL),
    Topic("ended", 1, _SMALL),
    Topic("deleted", 1, _SMALL | {"retention.bytes": "200000"}),
    Topic(
        "compacted",
        1,
        _SMALL | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
    ),
)

Place = tuple[str, int, int]
"""Topic, partition and offset."""


class Load:
    """Writes to all topics until it is left; ``written`` is what the broker has acknowledged."""

    def __init__(self, broker: Broker, *, patience_s: int = 60) -> None:
        """Prepare; a broker that is gone is given up after ``patience_s``."""
        self.written: dict[Place, tuple[bytes | None, bytes]] = {}
        self.aborted: set[Place] = set()
        self.failures: list[BaseException] = []
        self._patience_s = patience_s
        self._bootstrap = {
            "bootstrap.servers": broker.bootstrap,
            "linger.ms": 5,
            "message.timeout.ms": 1000 * patience_s,
            "log_level": 0,  # a broker may be killed under it
        }
        self._done = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(body,)) for body in self._bodies()
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    @property
    def committed(self) -> set[Place]:
        """Where the records are that were written and not aborted."""
        return self.written.keys() - self.aborted

    @property
    def newest(self) -> dict[bytes | None, Place]:
        """Where the last record of each key of the compacted topic is."""
        written = sorted(item for item in self.written.items() if item[0][0] == "compacted")
        return {key: place for place, (key, _) in written}

    def _bodies(self) -> tuple[Any, ...]:
        return (self._write_plainly, self._write_in_transactions)

    def _run(self, body: Any) -> None:
        try:
            body()
        except BaseException as failure:  # noqa: BLE001 - the test's thread raises it
            self.failures.append(failure)

    def _write_plainly(self) -> None:
        producer = confluent_kafka.Producer(self._bootstrap | {"compression.type": "lz4"})
        number = 0
        while not self._done.is_set():
            for topic in ("growing", "growing", "deleted", "compacted"):
                number += 1
                key = b"%d" % (number % _KEYS) if topic == "compacted" else None
                value = b"%s %d " % (topic.encode(), number) + bytes(number % 97) * 3
                producer.produce(topic, value, key, on_delivery=self._note)
            producer.poll(0)
            time.sleep(0.001)
        assert producer.flush(self._patience_s) == 0

    def _write_in_transactions(self) -> None:
        producer = confluent_kafka.Producer(self._bootstrap | {"transactional.id": "live"})
        producer.init_transactions(60)
        number = 0
        while not self._done.is_set():
            number += 1
            places: list[Place] = []

            def note(error: Any, message: Any, places: list[Place] = places) -> None:
                self._note(error, message)
                places.append((message.topic(), message.partition(), message.offset()))

            producer.begin_transaction()
            for part in range(1 + number % 20):
                producer.produce("ended", b"%d %d" % (number, part), on_delivery=note)
            producer.flush(self._patience_s)
            if number % 3:
                producer.commit_transaction(self._patience_s)
            else:
                producer.abort_transaction(self._patience_s)
                self.aborted.update(places)

    def _note(self, error: Any, message: Any) -> None:
        assert error is None, error
        place = message.topic(), message.partition(), message.offset()
        self.written[place] = message.key(), message.value()
