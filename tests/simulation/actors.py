"""Who acts on the log directories of a history: each is a function that runs in its own process.

An actor calls kafkalog as a program would, tells the history what it was told, and begins again as
a new process when it was killed.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.simulation.auditor import History, Read, Write
from tests.simulation.machine import ROOT, Machine
from tests.simulation.scheduler import InterruptError, KilledError

import kafkalog
from kafkalog.errors import (
    CommitError,
    DurabilityError,
    KafkaLogError,
    LockTimeoutError,
)
from kafkalog.files.system import remembered
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.operate.recover import recover
from kafkalog.streaming.schema import RowSchema, source_schema
from kafkalog.streaming.sink.task_writer import TaskWriter
from kafkalog.streaming.sink.write_options import WriteOptions
from kafkalog.streaming.sink.write_plan import WritePlan
from kafkalog.streaming.source.offsets import from_json, to_json
from kafkalog.streaming.source.read_options import ReadOptions
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.stream_control import StreamControl
from kafkalog.streaming.store.identity import BatchIdentity
from kafkalog.streaming.store.kept_appenders import KeptAppenders
from kafkalog.streaming.store.session import ensure_set

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from kafkalog.streaming.commit.staging.staged_run import StagedRun

__all__ = ["ACTORS", "TOPIC", "Scene", "look", "write_first"]

TOPIC = "t"
_TRIES = 6
_ROWS = RowSchema.of(source_schema(include_headers=False))
_COLUMNS = ("partition", "offset", "value")
_STAMP_MS = 1_700_000_000_000


class Scene:
    """Where a history takes place: its directories, options, and what is told of it."""

    def __init__(self, machine: Machine, history: History, plan: dict[str, Any]) -> None:
        self.machine = machine
        self.history = history
        self.partitions: int = plan["partitions"]
        self.paths = [f"{ROOT}/d{number}" for number in range(plan["directories"])]
        self.path = ",".join(self.paths)
        self.options: dict[str, str] = dict(plan["options"])
        self.may_fail: bool = plan["may_fail"]
        """Whether something may be in the way of those who read and write, but for kills."""

    def rows(self, write: Write) -> pa.RecordBatch:
        """Make the rows of a batch."""
        return pa.RecordBatch.from_pydict(
            {
                "value": pa.array([value.encode() for value in write.values]),
                "partition": pa.array(list(write.values.values()), pa.int32()),
            }
        )

    def write(self, name: str, chance: random.Random) -> Write:
        """Begin a batch of a few records, each of its own."""
        count = chance.choice((1, 2, 3, 8))
        values = {f"{name}.{n}": chance.randrange(self.partitions) for n in range(count)}
        write = Write(values, self.history.now())
        self.history.writes.append(write)
        return write

    @contextlib.contextmanager
    def told(self, write: Write, actor: str) -> Iterator[None]:
        """Note what a try to write comes to; nothing of ours is raised, nor a kill."""
        outcome = "unknown"
        try:
            yield
            outcome = "ok"
        except KilledError:
            self.reborn(actor)
        except InterruptError as error:
            notes = " ".join(getattr(error, "__notes__", []))
            outcome = "fail" if "stopped before it was done" in notes else outcome
            outcome = "ok" if "it is done" in notes else outcome
            write.tries.append(f"interrupted: {notes}")
        except DurabilityError as error:
            outcome = "ok"
            write.tries.append(str(error))
        except (CommitError, LockTimeoutError) as error:
            outcome = "fail"
            self.failed(actor, write, error)
        except KafkaLogError as error:
            outcome = "fail"
            self.failed(actor, write, error)
        except OSError as error:
            self.failed(actor, write, error)
        write.tries.append(outcome)
        if write.outcome != "ok" and (outcome == "ok" or write.outcome == "fail"):
            write.outcome = outcome
            write.acknowledged = self.history.now()

    @contextlib.contextmanager
    def told_late(self, actor: str) -> Iterator[None]:
        """Let a driver that was replaced commit: it may be refused, and changes no outcome."""
        try:
            yield
        except KilledError:
            self.reborn(actor)
        except (InterruptError, KafkaLogError, OSError):
            pass

    def failed(self, actor: str, write: Write | None, error: Exception) -> None:
        """Note a failure, which is a fault if nothing was in the way."""
        text = f"{type(error).__name__}: {error}"
        if write is not None:
            write.tries.append(text[:300])
        if not self.may_fail:
            self.history.errors.append(f"{actor} fails, and nothing was in its way: {text[:600]}")

    def reborn(self, actor: str) -> None:
        """Go on as a new process."""
        scheduler = self.machine.scheduler
        scheduler.become(scheduler.process(actor))


def write_first(scene: Scene) -> None:
    """Make the topic."""
    first = Write({f"first.{n}": n for n in range(scene.partitions)}, scene.history.now())
    scene.history.writes.append(first)
    with scene.told(first, "first"):
        _append(scene, first)


def look(scene: Scene, reader: str) -> None:
    """Read the whole topic."""
    began = scene.history.now()
    try:
        rows = kafkalog.read(scene.path, TOPIC, columns=_COLUMNS)
        table = rows.read_all()
    except (KafkaLogError, OSError) as error:
        scene.failed(reader, None, error)
        return
    _read(scene, reader, began, [table], None)


def _read(scene: Scene, reader: str, began: int, tables: list[Any], life: str | None) -> None:
    rows: list[tuple[int, int, str]] = []
    for table in tables:
        columns = (table.column(name).to_pylist() for name in _COLUMNS)
        rows += [(p, offset, value.decode()) for p, offset, value in zip(*columns, strict=True)]
    ended = scene.history.now()
    scene.history.reads.append(Read(reader, began, ended, sorted(rows), life))


def _append(scene: Scene, write: Write, **named: Any) -> None:
    options = {"numPartitions": str(scene.partitions), **scene.options}
    kafkalog.append(scene.path, TOPIC, scene.rows(write), options=options, **named)


def appender(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A program that appends, and never tries again."""
    for number in range(operations):
        write = scene.write(f"{name}.{number}", chance)
        with scene.told(write, name):
            _append(scene, write)


def versioned(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A program that appends under a name and versions, and tries again until it is told ok."""
    for version in range(operations):
        write = scene.write(f"{name}.{version}", chance)
        for _ in range(_TRIES):
            with scene.told(write, name):
                _append(scene, write, transactional_id=name, version=version)
            if write.outcome == "ok":
                break
        else:
            return


def query(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A streaming query: planned, staged by two tasks, committed or aborted, replayed."""
    late: list[tuple[int, int, list[StagedRun]]] = []
    runs = 0
    for batch in range(operations):
        write = scene.write(f"{name}.{batch}", chance)
        for _ in range(_TRIES):
            staged: list[StagedRun] = []
            with scene.told(write, name):
                staged += _stage(scene, name, batch, runs, write)
                _committer(scene, name, batch, runs).commit(staged)
            if write.outcome == "ok":
                break
            if staged and chance.random() < 0.3:  # a driver that was replaced, and wakes up later
                late.append((batch, runs, staged))
            runs += 1
        else:
            return
        if late and chance.random() < 0.5:
            number, run, staged = late.pop()
            with scene.told_late(name):
                _committer(scene, name, number, run).commit(staged)


def _plan(scene: Scene) -> WritePlan:
    given = {"path": scene.path, "topic": TOPIC, "numPartitions": str(scene.partitions)}
    options = WriteOptions.parse({**given, **scene.options})
    return WritePlan(options, ensure_set(options.paths, options.policy), _STAMP_MS)


def _stage(scene: Scene, name: str, batch: int, run: int, write: Write) -> list[StagedRun]:
    plan, rows = _plan(scene), scene.rows(write)
    identity = BatchIdentity(f"query:{name}", batch, f"run-{run}", f"digest {batch}")
    return list(TaskWriter(plan, identity, number=0).write([rows]).runs)


def _committer(scene: Scene, name: str, batch: int, run: int) -> Committer:
    identity = BatchIdentity(f"query:{name}", batch, f"run-{run}", f"digest {batch}")
    return Committer(_plan(scene).commit_plan, identity, appenders=remembered(KeptAppenders))


def reader(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A program that reads the whole topic now and then."""
    for number in range(operations):
        try:
            look(scene, f"{name}.{number}")
            _rest(scene, chance)
        except KilledError:
            scene.reborn(name)
        except InterruptError:
            pass


def follower(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A streaming query that reads: it plans, logs its plan, reads, and restarts from that."""
    options = ReadOptions.parse(
        {"path": scene.path, "subscribe": TOPIC, "startingOffsets": "earliest"}
    )
    ends: list[str] = []
    done = 0
    control: StreamControl | None = None
    for _ in range(2 * operations):
        try:
            control = control or StreamControl(options)
            start = from_json(json.loads(ends[done - 1])) if done else control.initial()
            if len(ends) == done:
                end = control.next_end(start, take_all=True)
                if end == start:
                    _rest(scene, chance)
                    continue
                ends.append(json.dumps(to_json(end)))
            end = from_json(json.loads(ends[done]))
            began = scene.history.now()
            tables = [
                batch
                for split in control.plan(start, end)
                for batch in read_split(split, options, _ROWS)
            ]
            _read(scene, f"{name}.{done}", began, tables, name)
            done += 1
            control.batch_ran()
        except KilledError:
            scene.reborn(name)
            control = None
        except InterruptError:
            control = None
        except (KafkaLogError, OSError) as error:
            scene.failed(name, None, error)
            control = None
        if not done:
            ends.clear()


def operator(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A person who lets a set be recovered while others work on it."""
    for _ in range(max(operations // 3, 1)):
        try:
            _rest(scene, chance)
            done = recover(scene.paths)
            if (done.problems or done.lost) and not scene.may_fail:
                scene.history.errors.append(f"{name} finds {done.problems} {done.lost}")
        except KilledError:
            scene.reborn(name)
        except InterruptError:
            pass
        except (KafkaLogError, OSError) as error:
            scene.failed(name, None, error)


def _rest(scene: Scene, chance: random.Random) -> None:
    scene.machine.scheduler.sleep(chance.random() * 0.05)


ACTORS: dict[str, Callable[[Scene, str, int, random.Random], None]] = {
    "appender": appender,
    "versioned": versioned,
    "query": query,
    "reader": reader,
    "follower": follower,
    "operator": operator,
}
