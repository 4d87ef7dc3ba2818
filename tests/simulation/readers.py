"""Who reads: programs that look at a whole topic, and streaming queries that follow it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.machine import ROOT
from tests.simulation.scene import COLUMNS, OTHER, TOPIC, Scene
from tests.simulation.scheduler import InterruptError, KilledError

import kafkalog
from kafkalog.errors import DataLossError, KafkaLogError, UnknownTopicOrPartitionError
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.offsets import from_json, to_json
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema, source_schema
from kafkalog.streaming.source.stream_control import StreamControl

if TYPE_CHECKING:
    import random

__all__ = ["ROWS", "follower", "look", "reader"]

ROWS: Final = RowSchema.of(source_schema(include_headers=False))
_LOSS: Final = "KAFKA_DATA_LOSS"
_FEW: Final = "the newest records may not be read"
"""With fewer nodes than a majority, and failOnDataLoss=false: a process says that once."""
_PASSED_OVER: Final = re.compile(rf"Partition {TOPIC}-(\d+): the \d+ offsets \[(\d+), (\d+)\)")
_GONE: Final = (DataLossError, UnknownTopicOrPartitionError)
"""What readers of a topic may be told that somebody deletes."""


def look(
    scene: Scene, name: str, options: dict[str, str] | None = None, *, topic: str = TOPIC
) -> None:
    """Read a whole topic."""
    began = scene.history.now()
    scene.said_to(scene.machine.scheduler.running.process.actor)
    try:
        with scene.operation():
            rows = kafkalog.read(scene.path, topic, columns=COLUMNS, options=options or {})
            tables = [rows.read_all()]
    except (KafkaLogError, OSError) as error:
        is_gone = topic == OTHER and isinstance(error, _GONE)
        if not is_gone and not (scene.may_lose and isinstance(error, DataLossError)):
            scene.failed(name, None, error)
        return
    read = scene.read(name, began, tables, topic=topic)
    said = scene.said_to(scene.machine.scheduler.running.process.actor)
    # protocol.md, "Directories that are away": copies of one earlier moment are that moment.
    read.told_of_loss = _is_told_of_loss(scene, said) or scene.machine.images.have_parted
    read.passed_over = frozenset(
        (int(partition), offset)
        for partition, start, end in _PASSED_OVER.findall(" ".join(said))
        for offset in range(int(start), int(end))
    )


def reader(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A program that reads the whole topic now and then."""
    for number in range(operations):
        try:
            look(scene, f"{name}.{number}", _drawn(chance), topic=scene.any_topic(chance))
            scene.rest(chance)
        except KilledError:
            scene.reborn(name)
        except InterruptError:
            pass


def _drawn(chance: random.Random) -> dict[str, str]:
    options = {}
    if chance.random() < 0.4:
        options["failOnDataLoss"] = "false"
    if chance.random() < 0.3:
        options["kafka.isolation.level"] = "read_uncommitted"
    return options


def _is_told_of_loss(scene: Scene, said: list[str]) -> bool:
    """Whether a read, or its process before, was told that it lacks something."""
    memory = scene.machine.scheduler.running.process.memory
    if any(_FEW in each for each in said):
        memory[_FEW] = True
    return _FEW in memory or any(_LOSS in each for each in said)


class _Follower:
    """A streaming query that reads: its checkpoint, and what runs of it at the moment."""

    def __init__(self, scene: Scene, name: str, chance: random.Random) -> None:
        self._scene = scene
        self._name = name
        self._chance = chance
        self._lives = 0
        self._begin()

    def _begin(self) -> None:
        """Begin with a checkpoint that is empty."""
        self._lives += 1
        chance = self._chance
        self.topic = self._scene.any_topic(chance)
        has_other = self._scene.has_other
        self._begins_late = has_other and chance.random() < 0.25
        starts = "latest" if self._begins_late else "earliest"
        given = {"path": self._scene.path, "subscribe": self.topic, "startingOffsets": starts}
        if has_other and (chance.random() < 0.5 or self.topic == OTHER):
            given["stateLocation"] = f"{ROOT}/state/{self.life}"
        if self._chance.random() < 0.3:
            given["maxOffsetsPerTrigger"] = str(self._chance.choice((1, 3, 10)))
            self.is_limited = True
        else:
            self.is_limited = False
        self.options = ReadOptions.parse({**given, **_drawn(self._chance)})
        self.ends: list[str] = []
        self.done = 0
        self.control: StreamControl | None = None

    @property
    def life(self) -> str:
        return f"{self._name}/{self._lives}"

    def lost(self) -> None:
        """Start with a new checkpoint, as the old one leads to what is gone."""
        self._begin()

    def stopped(self) -> None:
        """Start again from the checkpoint."""
        self.control = None
        if not self.done:
            self.ends.clear()

    def run(self) -> None:
        """Run a micro-batch, or none if there is nothing new."""
        control = self.control = self.control or StreamControl(self.options)
        ends, done = self.ends, self.done
        start = from_json(json.loads(ends[done - 1])) if done else control.initial()
        if len(ends) == done:
            end = control.next_end(start, take_all=not self.is_limited)
            if end == start:
                self._scene.rest(self._chance)
                return
            ends.append(json.dumps(to_json(end)))
        end = from_json(json.loads(ends[done]))
        began = self._scene.history.now()
        tables: list[Any] = [
            table
            for split in control.plan(start, end)
            for table in read_split(split, self.options, ROWS)
        ]
        read = self._scene.read(f"{self.life}.{done}", began, tables, self.life, topic=self.topic)
        read.is_part = self.is_limited or self._begins_late
        read.begins_anywhere = self._begins_late
        read.told_of_loss = _is_told_of_loss(self._scene, self._scene.said_to(self._name))
        read.skips = not self.options.fail_on_data_loss
        self.done += 1
        control.batch_ran()


def follower(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A streaming query that reads: it plans, logs its plan, reads, and restarts from that."""
    running = _Follower(scene, name, chance)
    for _ in range(2 * operations):
        try:
            with scene.operation():
                running.run()
        except KilledError:
            scene.reborn(name)
            running.stopped()
        except InterruptError:
            running.stopped()
        except (KafkaLogError, OSError) as error:
            if running.topic == OTHER and isinstance(error, _GONE):
                running.lost()
                scene.rest_here(name, chance)
                continue
            if scene.may_lose and isinstance(error, DataLossError):
                running.lost()
                continue
            scene.failed(name, None, error)
            running.stopped()
