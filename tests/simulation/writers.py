"""Who writes: programs that append, batch writes and streaming queries as Spark runs them."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.scene import TOPIC, Scene
from tests.simulation.scheduler import InterruptError

import kafkalog
from kafkalog.errors import KafkaLogError
from kafkalog.files.system import remembered, system
from kafkalog.streaming.admin.retention import retain_if_due
from kafkalog.streaming.commit.append import AppenderCache
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.commit.versions import with_digests
from kafkalog.streaming.sink.task_writer import TaskWriter
from kafkalog.streaming.sink.write_options import WriteOptions, WritePlan
from kafkalog.streaming.store.identity import APP_PREFIX, BatchIdentity
from kafkalog.streaming.store.session import ensure_set

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.auditor import Write

    from kafkalog.streaming.commit.staging.staged_run import StagedRun, TaskOutput

__all__ = ["appender", "batch", "pair", "query", "versioned", "write_first"]

_TRIES: Final = 6


def write_first(scene: Scene) -> None:
    """Make the topic."""
    first = scene.begin({f"first.{n}": n for n in range(scene.partitions)}, random.Random(0))
    with scene.told(first, "first"):
        _append(scene, first)


def _append(scene: Scene, write: Write, **named: Any) -> None:
    rows = scene.rows(write.values)
    kafkalog.append(scene.path, TOPIC, rows, options=scene.options_of(write), **named)


def appender(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A program that appends, and never tries again."""
    for number in range(operations):
        write = scene.write(f"{name}.{number}", chance)
        with scene.told(write, name):
            _append(scene, write)


def pair(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A program of two threads: one appends, one copies the log directories, or appends too."""
    for number in range(operations):
        write, other = (scene.write(f"{name}.{number}.{n}", chance) for n in range(2))
        other.outcome = "unknown"
        appends = chance.random() < 0.5
        with scene.told(write, name):
            scene.machine.scheduler.start_thread(_beside, (scene, other, appends))
            _append(scene, write)
        scene.rest_here(name, chance)


def _beside(scene: Scene, write: Write, appends: bool) -> None:
    with contextlib.suppress(KafkaLogError, OSError, InterruptError):
        if appends:
            _append(scene, write)
            write.outcome, write.is_durable = "ok", write.flush == "commit"
            write.acknowledged = scene.history.now()
            return
        for path in scene.paths:
            for each in Path(path).iterdir():
                with contextlib.suppress(IsADirectoryError):
                    os.close(os.open(each, os.O_RDWR))


def versioned(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A program that appends under a name and versions, and tries again until it is told ok."""
    for version in range(operations):
        write = scene.write(f"{name}.{version}", chance)
        for _ in range(_TRIES):
            with scene.told(write, name):
                _append(scene, write, transactional_id=name, version=version)
            if write.outcome == "ok":
                break
            scene.choose_flush(write, chance)
        else:
            return


def batch(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """Batch writes of Spark, with ``txnAppId`` or without: tasks stage, the driver commits."""
    for number in range(operations):
        write = scene.write(f"{name}.{number}", chance)
        is_named = chance.random() < 0.5
        for _ in range(_TRIES if is_named else 1):
            with scene.told(write, name):
                identity = (
                    BatchIdentity(f"{APP_PREFIX}{name}", number, topic=TOPIC)
                    if is_named
                    else BatchIdentity(f"job:{system.random_id()}", 0)
                )
                plan = _plan(scene, write)
                outputs = _stage(scene, plan, identity, write, chance)
                _commit_batch(plan, with_digests(identity, outputs, TOPIC), _runs(outputs))
            if write.outcome == "ok":
                break
            scene.choose_flush(write, chance)
        if is_named and write.outcome != "ok":
            return


def _commit_batch(plan: WritePlan, identity: BatchIdentity, runs: list[StagedRun]) -> None:
    try:
        Committer(plan.commit_plan, identity).commit(runs)
    except Exception:
        _abort(plan, identity, runs)
        raise
    _retain(plan)


def _abort(plan: WritePlan, identity: BatchIdentity, runs: list[StagedRun]) -> None:
    """Do as Spark after a commit that failed: what this one comes to is not told."""
    with contextlib.suppress(KafkaLogError, OSError, InterruptError):
        Committer(plan.commit_plan, identity).abort(runs)


def query(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A streaming query: planned, staged by tasks, committed or aborted, replayed."""
    late: list[tuple[WritePlan, BatchIdentity, list[StagedRun]]] = []
    runs = 0
    for number in range(operations):
        is_empty = scene.has_empty_batches and chance.random() < 0.1
        write = scene.begin({}, chance) if is_empty else scene.write(f"{name}.{number}", chance)
        for _ in range(_TRIES):
            staged: list[StagedRun] = []
            identity = BatchIdentity(f"query:{name}", number, f"run-{runs}", f"digest {number}")
            plan = None
            with scene.told(write, name):
                plan = _plan(scene, write)
                staged += _runs(_stage(scene, plan, identity, write, chance))
                _commit_query(plan, identity, staged)
            if write.outcome == "ok":
                break
            if plan and staged and chance.random() < 0.3:
                late.append((plan, identity, staged))  # a driver that was replaced wakes up later
            runs += 1
            scene.choose_flush(write, chance)
        else:
            return
        if late and chance.random() < 0.5:
            with scene.told_late(name):
                _commit_query(*late.pop())


def _commit_query(plan: WritePlan, identity: BatchIdentity, runs: list[StagedRun]) -> None:
    try:
        Committer(plan.commit_plan, identity, appenders=remembered(AppenderCache)).commit(runs)
    except Exception:
        _abort(plan, identity, runs)
        raise
    _retain(plan)


def _plan(scene: Scene, write: Write) -> WritePlan:
    given = {"path": scene.path, "topic": TOPIC, **scene.options_of(write)}
    options = WriteOptions.parse(given)
    now_ms = system.time_ns() // 1_000_000
    return WritePlan(options, ensure_set(options.paths, options.policy), now_ms)


def _retain(plan: WritePlan) -> None:
    given = plan.options
    retain_if_due(plan.directories, given.policy, given.retention_check_interval_ms)


def _stage(
    scene: Scene, plan: WritePlan, identity: BatchIdentity, write: Write, chance: random.Random
) -> list[TaskOutput]:
    """Let tasks stage rows, each a part, one after the other; some are run twice."""
    values = list(write.values.items())
    cut = chance.randrange(len(values) + 1)
    parts = [dict(values)] if chance.random() < 0.5 else [dict(values[:cut]), dict(values[cut:])]
    outputs = []
    for number, part in enumerate(parts):
        rows = [scene.rows(part)]
        if chance.random() < 0.1:  # a speculative attempt, whose message nobody takes
            TaskWriter(plan, identity, number=number).write(rows)
        outputs.append(TaskWriter(plan, identity, number=number).write(rows))
    return outputs


def _runs(outputs: Sequence[TaskOutput]) -> list[StagedRun]:
    return [run for output in outputs for run in output.runs]
