"""Members of a consumer group: programs that copy a topic, with their positions by one commit."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from tests.simulation.group_audit import At, Copied, Decided, GroupLook, Reset, Try
from tests.simulation.scene import TOPIC, Scene
from tests.simulation.scheduler import InterruptError, KilledError

import kafkalog
from kafkalog import Consumer
from kafkalog.errors import (
    DurabilityError,
    FencedMemberError,
    KafkaLogError,
    OffsetOutOfRangeError,
    OptionError,
)
from kafkalog.model import OFFSETS_TOPIC, TopicPartition
from kafkalog.streaming.coordinator.group_metadata import (
    decode_group_metadata,
    encode_group_key,
    listed_partitions,
)
from kafkalog.streaming.coordinator.group_replay import replay_records
from kafkalog.streaming.coordinator.schemas import (
    OFFSET_COMMIT_VALUE,
    OFFSETS_RECORD_TYPES,
    decode_assignment,
    decode_key,
    decode_subscription,
    decode_value,
)
from kafkalog.streaming.groups.administration import EARLIEST, LATEST, delete_group, reset_group
from kafkalog.streaming.store.ends.tracker import LogEndTracker

if TYPE_CHECKING:
    from tests.simulation.group_audit import Log

__all__ = [
    "COPY",
    "GROUP",
    "READ",
    "WRITE",
    "copier",
    "copy_all",
    "exits",
    "member",
    "setter",
    "watcher",
]

COPY: Final = "copy"
GROUP: Final = "g"
_TRIES: Final = 80
_QUIET: Final = 6
_GROUP_LOG: Final = TopicPartition(OFFSETS_TOPIC, 0)
WRITE: Final = {"max.block.ms": "60000", "allowBrokerDirectory": "true"}
READ: Final = {
    "startingOffsets": "earliest",
    "kafka.session.timeout.ms": "3000",
    "kafka.heartbeat.interval.ms": "1000",
    "kafka.max.poll.interval.ms": "20000",
    "kafka.partition.assignment.strategy": "cooperative-sticky",
    "max.block.ms": "60000",
    "allowBrokerDirectory": "true",
    "splitBytes": "1",
}


class _Member:
    """A program that runs, and is started again after it was killed or fenced."""

    def __init__(self, scene: Scene, name: str, chance: random.Random) -> None:
        self._scene = scene
        self._name = name
        self._chance = chance
        self._is_static = chance.random() < 0.3
        self._consumer: Consumer | None = None
        self._client = ""
        self._made = self._appends = 0
        self._pending: list[tuple[int, int]] = []
        """What was read, and is to be appended: an interrupted poll does not take it away."""

    def run(self, timeout: float) -> bool:
        """Copy what comes; return whether anything did, or went wrong."""
        scene = self._scene
        try:
            with scene.operation():
                return self._copy(timeout)
        except KilledError:
            scene.reborn(self._name)
            self._consumer = None
        except InterruptError:
            pass
        except FencedMemberError:
            self.end()
        except (KafkaLogError, OSError) as error:
            scene.failed(self._name, None, error)
            if self._chance.random() < 0.5:
                self.end()
        return True

    def _copy(self, timeout: float) -> bool:
        if self._consumer is None:
            self._pending = []
            self._consumer = self._new()
        for _ in range(self._chance.choice((1, 1, 2, 4))):
            rows = self._consumer.poll(0.0 if self._pending else timeout)
            if rows is not None:
                columns = (rows[name].to_pylist() for name in ("partition", "offset"))
                self._pending += zip(*columns, strict=True)
        if not self._pending:
            return False
        self._scene.think(self._chance)
        places, self._pending = self._pending, []
        self._append(places)
        return True

    def _append(self, places: list[tuple[int, int]]) -> None:
        """Append the rows once, or again if that fails and nothing else was done since."""
        self._appends += 1
        name = f"{self._name}.{self._appends}"
        tried = self._scene.group.tries[name] = Try(places)
        rows = [f"{partition}:{offset}:{self._client}:{name}" for partition, offset in places]
        # A host that lost its locks may leave the folder of one of two partitions behind.
        options = {**WRITE, "numPartitions": "1" if self._scene.machine.is_shared else "2"}
        may_be_there = False
        while tried.outcome != "ok":
            try:
                kafkalog.append(
                    self._scene.path,
                    COPY,
                    pa.table({"value": rows}),
                    options=options,
                    consumer=self._consumer,
                )
                tried.outcome = "ok"
            except InterruptError as error:
                notes = " ".join(getattr(error, "__notes__", []))
                tried.outcome = "ok" if "it is done" in notes else "unknown"
                raise
            except (KafkaLogError, OSError) as error:
                may_be_there |= (
                    not isinstance(error, KafkaLogError)
                    or isinstance(error, DurabilityError)
                    or "not known" in str(error)
                )
                tried.outcome = "unknown" if may_be_there else "fail"
                if isinstance(error, FencedMemberError) or self._chance.random() < 0.5:
                    raise
                tried.outcome = "unknown"

    def _new(self) -> Consumer:
        self._made += 1
        self._client = f"{self._name}-{self._made}"
        options = {**READ, "kafka.client.id": self._client}
        if self._is_static:
            options["kafka.group.instance.id"] = self._name
        return Consumer(self._scene.path, GROUP, TOPIC, options=options)

    def rest(self) -> None:
        """Do nothing for a while; a program that is killed meanwhile is another one then."""
        process = self._scene.machine.scheduler.running.process
        self._scene.rest_here(self._name, self._chance)
        if self._scene.machine.scheduler.running.process is not process:
            self._consumer = None

    def end(self) -> None:
        """Leave; a program that cannot ends without a word."""
        consumer, self._consumer = self._consumer, None
        if consumer is None:
            return
        try:
            with self._scene.operation():
                consumer.close()
        except KilledError:
            self._scene.reborn(self._name)
        except (InterruptError, KafkaLogError, OSError):
            exits(self._scene, self._name)


def exits(scene: Scene, name: str) -> None:
    """Let a program end: all of its threads do, and another one begins."""
    scene.machine.kill(scene.machine.scheduler.running.process)
    scene.reborn(name)


def member(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A program that copies its share of a topic; some leave, some just end."""
    running = _Member(scene, name, chance)
    for _ in range(3 * operations):
        if not running.run(chance.choice((0.0, 0.2, 2.0))):
            running.rest()
        if chance.random() < 0.1:
            running.end()
    if chance.random() < 0.5:
        running.end()
    exits(scene, name)


def copier(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A program that copies its share, and leaves once that was quiet for a while."""
    running = _Member(scene, name, chance)
    quiet = 0
    for _ in range(20 * operations):
        quiet = 0 if running.run(0.2) else quiet + 1
        if quiet > operations:
            break
    running.end()
    exits(scene, name)


def setter(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A person who moves the group or deletes it: that is refused while it has members."""
    for _ in range(max(operations // 2, 1)):
        scene.rest_here(name, chance)
        # It has members, or nothing to move; or another one has decided meanwhile.
        refused = contextlib.suppress(OptionError, OffsetOutOfRangeError, FencedMemberError)
        with scene.at_work(name), refused:
            _set(scene, chance)


def _set(scene: Scene, chance: random.Random) -> None:
    drawn = chance.random()
    if drawn < 0.2:
        scene.group.resets.append(Reset({}, deletes=True))
        delete_group(scene.paths, GROUP, allows_broker=True)
        return
    number = chance.randrange(scene.partitions)
    offset = chance.randrange(4)
    every = range(scene.partitions)
    to, noted = {
        0: (EARLIEST, dict.fromkeys(every, 0)),
        1: (LATEST, dict.fromkeys(every)),
        2: ({TopicPartition(TOPIC, number): offset}, {number: offset}),
    }[int(drawn * 10) % 3]
    scene.group.resets.append(Reset(noted))
    reset_group(scene.paths, GROUP, to, topics=(TOPIC,), allows_broker=True)


def watcher(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A person who looks what the group has done, and what is in the copy."""
    for _ in range(operations):
        scene.rest_here(name, chance)
        with scene.at_work(name):
            _look(scene, name)


def copy_all(scene: Scene) -> None:
    """When all is quiet, let one member copy the rest, and look at what there is."""
    running = _Member(scene, "end", random.Random(0))
    quiet = 0
    for _ in range(_TRIES):
        quiet = 0 if running.run(1.0) else quiet + 1
        if quiet == _QUIET:  # whoever was killed is lost by then
            break
    running.end()
    exits(scene, "end")
    if scene.may_fail:  # so that nobody has to be able to write
        with scene.at_work("end"):
            _look(scene, "end")
        return
    _look(scene, "end")
    watch = LogEndTracker(scene.paths, lambda key: key.topic == TOPIC)
    scene.group.ends = {key.partition: end for key, end in watch.look().offsets.items()}


def _look(scene: Scene, name: str) -> None:
    began = scene.history.now()
    before = _group_log(scene)
    watch = LogEndTracker(scene.paths, lambda key: key.topic == COPY)
    rows = []
    if watch.look().offsets:
        values = kafkalog.read(scene.path, COPY, columns=["value"]).read_all()["value"]
        for value in values.to_pylist():
            partition, offset, client, tried = value.decode().split(":")
            rows.append(Copied((int(partition), int(offset)), client, tried))
    after = _group_log(scene)
    scene.group.looks.append(GroupLook(name, began, before, rows, after, scene.history.now()))


def _group_log(scene: Scene) -> Log:
    """Read all that was ever committed about the group."""
    watch = LogEndTracker(scene.paths, lambda key: key == _GROUP_LOG)
    end = watch.look().offsets.get(_GROUP_LOG)
    if end is None:
        return []
    found: list[Decided | At] = []
    with watch.open(_GROUP_LOG) as log:
        for record in replay_records(log, 0, end):
            assert record.key is not None
            if record.key == encode_group_key(GROUP):
                found.append(_decided(record.value))
            else:
                key = decode_key(OFFSETS_RECORD_TYPES, record.key).fields
                value = record.value and decode_value(OFFSET_COMMIT_VALUE, record.value).fields
                found.append(At(key["partition"], value["offset"] if value else None))
    return found


def _decided(value: bytes | None) -> Decided:
    if value is None:
        return Decided(None, {})
    metadata = decode_group_metadata(value)
    held: dict[str, frozenset[int]] = {}
    for each in metadata.members:
        owned = decode_subscription(each.subscription)["ownedPartitions"] or []
        assigned = decode_assignment(each.assignment)["assignedPartitions"]
        both = {*listed_partitions(owned), *listed_partitions(assigned)}
        held[each.client_id] = frozenset(key.partition for key in both)
    return Decided(metadata.generation, held)
