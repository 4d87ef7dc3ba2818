"""A KRaft cluster of three Kafka 4.1 brokers, the first of which has the controller too."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Self

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.support.kafka import Broker, Topic, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["Cluster", "NodeBroker"]

_SECONDS: Final = 90


class NodeBroker(Broker):
    """A broker whose copy of the metadata log lies beside its log directories, in ``metadata``."""

    def __init__(
        self, home: Path, number: int, controller: int, *, settings: Mapping[str, str]
    ) -> None:
        self.number = number
        self.metadata = home / "metadata"
        self._controller = controller
        own = {"metadata.log.dir": str(self.metadata)}
        super().__init__(home, settings={**settings, **own})

    def _own_settings(self) -> dict[str, str]:
        settings = super()._own_settings() | {
            "node.id": str(self.number),
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}",
        }
        if self.number == 1:
            listeners = f"{self._listener},CONTROLLER://127.0.0.1:{self._controller}"
            return settings | {"listeners": listeners}
        return settings | {"process.roles": "broker", "listeners": self._listener}


class Cluster:
    """Three brokers, with the ids 1 to 3; none is left running at the end of ``with``."""

    def __init__(self, home: Path, *, settings: Mapping[str, str] | None = None) -> None:
        controller = free_port()
        self.brokers = [
            NodeBroker(home / str(number), number, controller, settings=settings or {})
            for number in (1, 2, 3)
        ]

    def __enter__(self) -> Self:
        """Start nothing yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill what runs."""
        self.kill()

    def start(self) -> None:
        """Start all at once: none is ready before the controller is."""
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            for started in [pool.submit(broker.start) for broker in self.brokers]:
                started.result()

    def stop(self) -> None:
        """Stop all cleanly, the one with the controller last."""
        for broker in reversed(self.brokers):
            broker.stop()

    def kill(self) -> None:
        """Kill all."""
        for broker in self.brokers:
            with contextlib.suppress(OSError):
                broker.kill()

    def create(self, topic: str, replicas: Sequence[Sequence[int]], **settings: str) -> None:
        """Create a topic with the brokers of each partition; ``__`` in a setting for a dot."""
        given = {name.replace("__", "."): value for name, value in settings.items()}
        asked = NewTopic(
            topic, len(replicas), replica_assignment=[*map(list, replicas)], config=given
        )
        deadline = time.monotonic() + _SECONDS
        admin = AdminClient({"bootstrap.servers": self.brokers[0].bootstrap})
        while len(admin.list_topics(timeout=_SECONDS).brokers) < len(self.brokers):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        admin.create_topics([asked])[topic].result(_SECONDS)
        self.brokers[0].wait_for_leaders(Topic(topic, len(replicas)))

    def wait_until_in_sync(self, topic: str, *, without: Sequence[int] = ()) -> None:
        """Wait until every broker that runs says that all but ``without`` are in sync."""
        for broker in self.brokers:
            if broker.number not in without:
                self._wait(broker, topic, {*without})

    def _wait(self, broker: NodeBroker, topic: str, without: set[int]) -> None:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        deadline = time.monotonic() + _SECONDS
        while True:
            known = admin.list_topics(topic, timeout=_SECONDS).topics[topic].partitions.values()
            if known and all(
                {*each.isrs} == {*each.replicas} - without and each.leader in each.isrs
                for each in known
            ):
                return
            seen = [(each.id, each.leader, each.replicas, each.isrs) for each in known]
            assert time.monotonic() < deadline, seen
            time.sleep(0.2)
