"""The grounds of the stress run: a real broker's directories, and one that our sink writes."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from tests.simulation.auditor import Write
from tests.support.kafka import Topic
from tests.support.killing import run_and_interrupt, run_and_kill, run_and_pause
from tests.support.replica_moves import move_replicas
from tests.support.sinking import Writer, rows
from tests.support.stress import Life

from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.support.kafka import Broker

__all__ = ["BrokerGround", "LiveGround", "OwnGround"]

_SEGMENTS: Final = {"internal.segment.bytes": "2000", "file.delete.delay.ms": "500"}
_KINDS: Final = {
    "plain": _SEGMENTS,
    "retained": {**_SEGMENTS, "retention.bytes": "4000"},
    "compacted": {
        **_SEGMENTS,
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
    },
}
_MOST_TOPICS: Final = 6
_WAIT_SECONDS: Final = 60
_FIRST: Final = 30
"""How often in proportion a topic is made where there is none: there is nothing else to see."""

Steps = dict["Callable[[random.Random], None]", int]


class _Topics:
    """Topics by name, and all that there ever were."""

    def __init__(self) -> None:
        self.lives: list[Life] = []

    @property
    def living(self) -> list[Life]:
        """The topics that there are."""
        return [life for life in self.lives if life.alive]

    def begin(self, rng: random.Random, kinds: Mapping[str, Any]) -> Life | None:
        """Plan a topic, often one that has the name of a deleted one; None if there are enough."""
        if len(self.living) >= _MOST_TOPICS:
            return None
        taken = {life.name for life in self.living}
        free = sorted({life.name for life in self.lives} - taken)
        name = rng.choice(free) if free and rng.random() < 0.5 else f"s{len(self.lives)}"
        earlier = [life.kind for life in self.lives if life.name == name]
        (kind,) = rng.choices(list(kinds), [3 if kind == "plain" else 1 for kind in kinds])
        # a broker that restarts takes up the settings of the topic that it had deleted
        kind = earlier[0] if earlier else kind
        number = len(earlier)
        return Life(name, number, kind, rng.randint(1, 3))


class BrokerGround(_Topics):
    """A broker's topics; it retains and compacts, is stopped and killed."""

    def __init__(self, broker: Broker) -> None:
        super().__init__()
        self._broker = broker

    @property
    def paths(self) -> list[Path]:
        """The broker's log directories."""
        return self._broker.log_dirs

    def steps(self) -> Steps:
        """Return what can be done, and how often in proportion."""
        if not self.living:
            return {self.add_topic: _FIRST}
        return {
            self.add_topic: 4,
            self.delete_topic: 2,
            self.add_partitions: 2,
            self.append: 30,
            self.roll: 8,
            self.restart: 1,
            self.kill: 1,
            self.pause: 1,
        }

    def may_be_missing(self, life: Life, missing: set[str]) -> bool:
        """Whether what is missing lies below the log start, or was compacted away."""
        if life.kind == "plain":
            return False
        places = {life.sent[value] for value in missing}
        if life.kind == "compacted":
            records = self._broker.consume_all(life.name)
            return places.isdisjoint((record.partition, record.offset) for record in records)
        starts = self._broker.offsets(life.name)
        return all(place is not None and place[1] < starts[place[0]][0] for place in places)

    def add_topic(self, rng: random.Random) -> None:
        """Create a topic."""
        life = self.begin(rng, _KINDS)
        if life is not None:
            self._broker.create_topics(Topic(life.name, life.partitions, _KINDS[life.kind]))
            self.lives.append(life)

    def delete_topic(self, rng: random.Random) -> None:
        """Delete a topic."""
        if len(self.living) > 1:
            life = rng.choice(self.living)
            life.alive = False
            admin = self._admin()  # to be kept until it has answered
            admin.delete_topics([life.name])[life.name].result()

    def add_partitions(self, rng: random.Random) -> None:
        """Add a partition to a topic."""
        life = rng.choice(self.living)
        life.partitions += 1
        admin = self._admin()
        asked = [NewPartitions(life.name, life.partitions)]
        admin.create_partitions(asked)[life.name].result()
        self._broker.wait_for_leaders(Topic(life.name, life.partitions))

    def append(self, rng: random.Random) -> None:
        """Send some records to all partitions of a topic."""
        life = rng.choice(self.living)
        self._send(life, rng.randint(1, 40), rng)

    def roll(self, rng: random.Random) -> None:
        """Send so much to a topic that its partitions begin new segments."""
        life = rng.choice(self.living)
        self._send(life, 60 * life.partitions, rng)

    def restart(self, rng: random.Random) -> None:
        """Stop the broker and start it."""
        self._broker.stop()
        self._begin_again()

    def kill(self, rng: random.Random) -> None:
        """Kill the broker and start it."""
        self._broker.kill()
        self._begin_again()

    def pause(self, rng: random.Random) -> None:
        """Let the broker stand still for a while."""
        with self._broker.paused():
            time.sleep(rng.random())

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self._broker.bootstrap, "log_level": 3})

    def _begin_again(self) -> None:
        self._broker.start()
        for life in self.living:
            self._broker.wait_for_leaders(Topic(life.name, life.partitions))

    def _send(self, life: Life, count: int, rng: random.Random) -> None:
        settings = {"batch.num.messages": 10, "linger.ms": 2, "log_level": 3}
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self._broker.bootstrap, **settings}
        )

        def note(error: object, message: confluent_kafka.Message) -> None:
            assert error is None, error
            value, partition, offset = message.value(), message.partition(), message.offset()
            assert value is not None
            assert partition is not None
            assert offset is not None
            life.sent[value.decode()] = (partition, offset)
            write = writes[value.decode()]
            write.outcome, write.acknowledged, write.is_durable = "ok", time.time_ns(), True

        writes = {}
        for value in life.next_values(count):
            key = str(rng.randrange(8))
            partition = rng.randrange(life.partitions)
            writes[value] = Write({value: partition}, time.time_ns(), "unknown")
            life.writes.append(writes[value])
            producer.produce(life.name, value, key, partition, on_delivery=note)
        assert producer.flush(_WAIT_SECONDS) == 0


class LiveGround(BrokerGround):
    """Topics of a broker as it comes: they are added, grow and are made again, replicas move.

    Nothing is retained or compacted: whatever a query does not read is there.
    """

    def steps(self) -> Steps:
        """Return what can be done, and how often in proportion."""
        if not self.living:
            return {self.add_topic: _FIRST}
        rare = {self.restart: 1, self.kill: 1, self.pause: 1}
        return {**self.harmless_steps(), self.make_again: 2, **rare}

    def harmless_steps(self) -> Steps:
        """Return what takes nothing away that a query has read, or has still to read."""
        if not self.living:
            return {self.add_topic: _FIRST}
        return {
            self.add_topic: 4,
            self.add_partitions: 6,
            self.append: 30,
            self.roll: 4,
            self.move: 12,
        }

    def add_topic(self, rng: random.Random) -> None:
        """Create a topic, and send it something at once."""
        life = self.begin(rng, {"plain": {}})
        if life is not None:
            self._create(life, rng)

    def add_partitions(self, rng: random.Random) -> None:
        """Add a partition to a topic, and send it something at once."""
        super().add_partitions(rng)
        self.append(rng)

    def make_again(self, rng: random.Random) -> None:
        """Delete a topic, and create one of that name."""
        life = rng.choice(self.living)
        life.alive = False
        admin = self._admin()
        admin.delete_topics([life.name])[life.name].result()
        number = sum(earlier.name == life.name for earlier in self.lives)
        self._create(Life(life.name, number, partitions=rng.randint(1, 3)), rng)

    def move(self, rng: random.Random) -> None:
        """Move some replicas of a topic to any of the log directories, while it is written."""
        life = rng.choice(self.living)
        chosen = rng.sample(range(life.partitions), rng.randint(1, life.partitions))
        keys = [TopicPartition(life.name, partition) for partition in chosen]
        move_replicas(self._broker, {key: rng.choice(self._broker.log_dirs) for key in keys})
        self._send(life, rng.randint(1, 20), rng)

    def _create(self, life: Life, rng: random.Random) -> None:
        self._broker.create_topics(Topic(life.name, life.partitions, _SEGMENTS))
        self.lives.append(life)
        self._send(life, rng.randint(1, 40), rng)


class OwnGround(_Topics):
    """Topics of our sink.

    Its commits are killed, interrupted and paused at any of their calls, and then done again.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.paths = [path]
        path.mkdir()
        self._batch_id = 0
        self.outcomes: Counter[str] = Counter()

    def steps(self) -> Steps:
        """Return what can be done, and how often in proportion."""
        if not self.living:
            return {self.add_topic: _FIRST}
        return {
            self.add_topic: 4,
            self.delete_topic: 2,
            self.add_partitions: 2,
            self.append: 20,
            self.kill: 8,
        }

    def may_be_missing(self, life: Life, missing: set[str]) -> bool:
        """Nothing may: we neither retain nor compact."""
        return False

    def add_topic(self, rng: random.Random) -> None:
        """Write to a topic that is not there yet."""
        life = self.begin(rng, {"plain": {}})
        if life is not None:
            self.lives.append(life)
            self._commit([life], rng, life.partitions, killed=False)

    def delete_topic(self, rng: random.Random) -> None:
        """Take the folders of a topic away, one after the other."""
        if len(self.living) > 1:
            life = rng.choice(self.living)
            life.alive = False
            for folder in sorted(self.path.glob(f"{life.name}-*")):
                gone = self.path.parent / f"deleted-{life.number}-{folder.name}"
                folder.rename(gone)
                shutil.rmtree(gone)

    def add_partitions(self, rng: random.Random) -> None:
        """Put a folder beside those of a topic, with the topic's id."""
        life = rng.choice(self.living)
        made = self.path.parent / "added"
        made.mkdir()
        shutil.copy(self.path / f"{life.name}-0" / "partition.metadata", made)
        made.rename(self.path / f"{life.name}-{life.partitions}")
        life.partitions += 1

    def append(self, rng: random.Random) -> None:
        """Commit rows for some topics."""
        some = rng.sample(self.living, rng.randint(1, len(self.living)))
        self._commit(some, rng, 1, killed=False)

    def kill(self, rng: random.Random) -> None:
        """Cut the commit of rows off at any of its calls, as often as need be, and commit them."""
        some = rng.sample(self.living, rng.randint(1, len(self.living)))
        self._commit(some, rng, 1, killed=True)

    def _commit(
        self, lives: list[Life], rng: random.Random, partitions: int, *, killed: bool
    ) -> None:
        lots = {life.name: life.next_values(rng.randint(1, 60)) for life in lives}
        numbers = {life.name: max(life.partitions, partitions) for life in lives}
        placed = [(t, v, rng.randrange(numbers[t])) for t, some in lots.items() for v in some]
        for life in lives:
            values = {value: partition for topic, value, partition in placed if topic == life.name}
            life.writes.append(Write(values, time.time_ns(), "unknown"))
        topics, flat, chosen = zip(*placed, strict=True)
        batch = rows(flat, topics=topics, partitions=chosen)
        settings = {"segment__bytes": "3000", "flush": "os"}
        writer = Writer(self.path, numPartitions=str(partitions), **settings)

        def commit() -> None:
            writer.write(self._batch_id, batch)

        while killed and rng.random() < 0.6:
            self.outcomes[self._cut_off(commit, rng)] += 1
        commit()
        self._batch_id += 1
        for life in lives:
            life.sent |= dict.fromkeys(lots[life.name])
            write = life.writes[-1]
            write.outcome, write.acknowledged, write.is_durable = "ok", time.time_ns(), True

    @staticmethod
    def _cut_off(commit: Callable[[], None], rng: random.Random) -> str:
        """Try a commit in a process that gets a signal at any call; what became of it."""
        call = rng.randrange(60)
        match rng.choice(["kill", "kill", "interrupt", "pause"]):
            case "kill":
                return "killed" if run_and_kill(commit, call, half=True) else "ended"
            case "interrupt":
                return "interrupted" if run_and_interrupt(commit, call) else "ended"
            case _:
                return "paused" if run_and_pause(commit, call, rng.random()) else "ended"
