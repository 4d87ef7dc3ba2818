"""Streaming queries that are members of a group: source and sink, driven as Spark drives them.

Its checkpoint is on the disk, where the sink looks into it, and is durable: what a loss of power
makes of Spark's own files is not looked for here.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType
from tests.simulation.group_audit import Try
from tests.simulation.machine import ROOT
from tests.simulation.members import COPY, GROUP, READ, WRITE, exits
from tests.simulation.readers import ROWS
from tests.simulation.scene import TOPIC
from tests.simulation.scheduler import InterruptError, KilledError

from kafkalog.errors import DurabilityError, FencedMemberError, KafkaLogError, LogDirectoryError
from kafkalog.files.atomic import make_with_parents, write_atomically
from kafkalog.files.regular import read_regular
from kafkalog.files.system import system
from kafkalog.streaming.consumer.query_member import JoinedControl, without_member_options
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.sink.task_writer import TaskWriter
from kafkalog.streaming.source.offsets import from_json, to_json
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.spark.writers import LogStreamWriter, StagedMessage, make_stream_writer
from kafkalog.streaming.store.identity import BatchIdentity

if TYPE_CHECKING:
    import random

    from tests.simulation.scene import Scene

    from kafkalog.streaming.source.offsets import OffsetJson

__all__ = ["joined"]

_VALUE: Final = StructType([StructField("value", StringType())])
_LIMIT: Final = 1 << 20
_RESTS: Final = 0.7
"""How often a query that has failed is started again in a process that lives on."""


class _Checkpoint:
    """What Spark writes down of a query: its id, what each batch is to read, which are done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def query_id(self) -> str:
        """Return the id; a new one is written down first."""
        path = self.folder / "metadata"
        with contextlib.suppress(FileNotFoundError):
            return str(json.loads(read_regular(path, limit=_LIMIT))["id"])
        make_with_parents(self.folder)
        found = str(system.random_id())
        write_atomically(path, json.dumps({"id": found}).encode())
        return found

    def ends(self) -> list[OffsetJson]:
        """Return where each batch ends that was planned."""
        every = range(self._count("offsets"))
        texts = [read_regular(self.folder / "offsets" / str(n), limit=_LIMIT) for n in every]
        return [json.loads(text.splitlines()[2]) for text in texts]

    def done(self) -> int:
        """Return how many batches are done."""
        return self._count("commits")

    def plan(self, batch: int, end: OffsetJson) -> None:
        """Write down what a batch is to read."""
        self._write("offsets", batch, "\n".join(["v1", "{}", json.dumps(end)]))

    def commit(self, batch: int) -> None:
        """Write down that a batch is done."""
        self._write("commits", batch, "v1\n{}")

    def _count(self, log: str) -> int:
        with contextlib.suppress(FileNotFoundError):
            return sum(each.name.isdigit() for each in (self.folder / log).iterdir())
        return 0

    def _write(self, log: str, batch: int, text: str) -> None:
        make_with_parents(self.folder / log)
        write_atomically(self.folder / log / str(batch), text.encode())


class _Late(NamedTuple):
    """A driver that was replaced, and the batch that it may still commit."""

    writer: LogStreamWriter
    messages: list[StagedMessage]
    batch: int


class _Query:
    """A query, which is started again after it was killed or has failed."""

    def __init__(self, scene: Scene, name: str, chance: random.Random) -> None:
        self._scene = scene
        self._name = name
        self._chance = chance
        self._checkpoint = _Checkpoint(Path(f"{ROOT}/checkpoint-{name}"))
        self._control: JoinedControl | None = None
        self._runs = self._tries = 0
        self._late: list[_Late] = []
        self._limit = chance.choice((None, "1", "2", "4"))

    def run(self) -> None:
        """Run a micro-batch, or none if there is nothing new."""
        scene = self._scene
        try:
            with scene.operation():
                self._batch()
        except KilledError:
            scene.reborn(self._name)
            self._control = None
        except InterruptError:
            self.end()
        except (KafkaLogError, OSError) as error:
            if not isinstance(error, FencedMemberError):
                scene.failed(self._name, None, error)
            self.end()
        if self._late and self._chance.random() < 0.5:
            writer, messages, batch = self._late.pop()
            with scene.told_late(self._name):
                writer.commit([*messages], batch)

    def end(self) -> None:
        """End the query; its process may live on."""
        control, self._control = self._control, None
        if control is None:
            return
        try:
            control.stop()
        except KilledError:
            self._scene.reborn(self._name)
            return
        except (InterruptError, KafkaLogError, OSError):
            exits(self._scene, self._name)
            return
        if self._chance.random() > _RESTS:
            exits(self._scene, self._name)

    def _batch(self) -> None:
        control = self._control = self._control or self._start()
        ends, batch = self._checkpoint.ends(), self._checkpoint.done()
        start = from_json(ends[batch - 1]) if batch else control.initial()
        if len(ends) == batch:
            end = control.next_end(start, take_all=self._chance.random() < 0.1)
            if end == start:
                self._scene.rest(self._chance)
                return
            self._checkpoint.plan(batch, to_json(end))
        else:
            end = from_json(ends[batch])
        places = [
            place
            for split in control.plan(start, end)
            for table in read_split(split, self._options, ROWS)
            for place in zip(
                table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True
            )
        ]
        self._write(places, batch)
        self._checkpoint.commit(batch)
        control.batch_ran()

    def _start(self) -> JoinedControl:
        self._runs += 1
        self._client = f"{self._name}-{self._runs}"
        given = {**READ}
        given["kafka.max.block.ms"] = given.pop("max.block.ms")
        del given["allowBrokerDirectory"]  # a query that is a member does not know it
        given |= {"path": self._scene.path, "subscribe": TOPIC, "joinGroup": "true"}
        given |= {"kafka.group.id": GROUP, "kafka.client.id": self._client}
        given["kafka.group.instance.id"] = self._name
        if self._limit is not None:
            given["maxOffsetsPerTrigger"] = self._limit
        self._options = without_member_options(ReadOptions.parse(given))
        return JoinedControl(self._options, given)

    def _write(self, places: list[tuple[int, int]], batch: int) -> None:
        """Let tasks stage the rows of a batch, and commit it."""
        query_id = self._checkpoint.query_id()
        writer = cast("LogStreamWriter", make_stream_writer(self._sink(), _VALUE, overwrite=False))
        self._scene.think(self._chance)
        self._tries += 1
        name = f"{self._name}.{self._tries}"
        tried = self._scene.group.tries[name] = Try(places)
        rows = [f"{partition}:{offset}:{self._client}:{name}" for partition, offset in places]
        identity = BatchIdentity(f"query:{query_id}", batch, f"run-{self._runs}")
        cut = self._chance.randrange(len(rows) + 1)
        messages: list[StagedMessage] = []
        for number, part in enumerate([rows[:cut], rows[cut:]]):
            task = TaskWriter(writer._plan, identity, number=number, query_id=query_id)
            table = pa.RecordBatch.from_pydict({"value": pa.array(part, pa.string())})
            messages.append(StagedMessage(task.write([table])))
        self._commit(_Late(writer, messages, batch), tried)

    def _commit(self, staged: _Late, tried: Try) -> None:
        """Commit a batch; what is told of one that comes again is of an earlier try, maybe."""
        writer, messages, batch = staged
        is_kept = self._chance.random() < 0.2
        if is_kept:
            self._late.append(staged)
        try:
            writer.commit([*messages], batch)
        except (KafkaLogError, OSError) as error:
            # Errors of the system cross the border to Spark as a LogDirectoryError.
            may_be_there = not isinstance(error, KafkaLogError) or isinstance(
                error, DurabilityError | LogDirectoryError
            )
            if not (is_kept or may_be_there or "not known" in str(error)):
                tried.outcome = "fail"
            with contextlib.suppress(KafkaLogError, OSError, InterruptError):
                if not is_kept:
                    writer.abort([*messages], batch)
            raise

    def _sink(self) -> dict[str, str]:
        given = {**WRITE, "path": self._scene.path, "topic": COPY}
        given |= {"kafka.group.id": GROUP, "kafka.group.instance.id": self._name}
        given["numPartitions"] = "1" if self._scene.machine.is_shared else "2"
        return {**given, "checkpointLocation": str(self._checkpoint.folder)}


def joined(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A query that copies its share of a topic, and publishes the group's positions with it."""
    running = _Query(scene, name, chance)
    for _ in range(3 * operations):
        running.run()
        if chance.random() < 0.05:
            running.end()
    running.end()
    exits(scene, name)
