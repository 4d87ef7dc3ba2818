"""A broker, by what it does to log directories, and the person who gives them to it and back.

It takes Kafka's locks, refuses to start on half a commit, recovers, appends, writes its checkpoints
late, and stops; or is killed, as anybody here is. The real one is asked in ``tests/interop``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from tests.simulation.auditor import Moved
from tests.simulation.moves import Move, delete_retired, finish_moves
from tests.simulation.scene import TOPIC, Scene
from tests.simulation.scheduler import InterruptError, KilledError
from tests.support.logs import Row, batch_bytes

from kafkalog.checkpoints.broker import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARK,
    LOCK,
    META_PROPERTIES,
    RECOVERY_POINT,
    remove_clean_shutdown_marker,
    write_clean_shutdown_marker,
    write_offset_checkpoint,
)
from kafkalog.checkpoints.commit_state import UNFINISHED_FOLDER
from kafkalog.errors import KafkaLogError
from kafkalog.files.atomic import write_atomically
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.log.appender import BufferSource, PartitionAppender
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.recovery import recover_segment
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.records.batch import scan_batches
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from tests.simulation.auditor import Write

    from kafkalog.model import TopicPartition

__all__ = ["RefusedError", "broker", "locked", "mover"]

_INTERVAL: Final = 4096
_META: Final = b"version=1\nnode.id=1\ncluster.id=x\n"


class RefusedError(Exception):
    """The broker does not start."""


def broker(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A person who hands a set over to a broker, and takes it over again; now and then in haste."""
    _lend(scene, name, operations, chance, moves=False)


def mover(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """The same, with a broker that moves replicas between its directories."""
    _lend(scene, name, operations, chance, moves=len(scene.paths) > 1)


def _lend(scene: Scene, name: str, operations: int, chance: random.Random, *, moves: bool) -> None:
    for number in range(max(operations // 2, 1)):
        scene.rest_here(name, chance)
        if chance.random() < 0.7:
            with scene.at_work(name):
                done = hand_over(scene.paths)
                if done.problems and not scene.may_fail:
                    scene.history.errors.append(f"{name} cannot hand over: {done.problems}")
        _run(scene, name, number, chance, moves=moves)
        if chance.random() < 0.6:
            with scene.at_work(name):
                done = take_over(scene.paths)
                if done.problems and not scene.may_fail:
                    scene.history.errors.append(f"{name} cannot take over: {done.problems}")


def _run(scene: Scene, name: str, number: int, chance: random.Random, *, moves: bool) -> None:
    """Let the broker run once; killed or not, it is gone afterwards."""
    writes: list[Write] = []
    try:
        with scene.operation(), locked(scene):
            if moves:
                finish_moves([Path(path) for path in scene.paths])
            running = _Broker(scene)
            for each in range(chance.randrange(4) if running.has_partitions else 0):
                value, partition = f"{name}.{number}.{each}", running.any_partition(chance)
                write = scene.begin({value: partition.partition}, chance)
                write.outcome, write.is_brokers = "unknown", True
                writes.append(write)
                running.append(partition, value)
                if moves and chance.random() < 0.6:
                    running.move(chance)
                if not moves and chance.random() < 0.1:
                    running.truncate()
                    _truncated(writes)
                is_long = scene.may_fail and chance.random() < 0.2
                scene.machine.scheduler.sleep(3.0 if is_long else chance.random() * 0.05)
                if chance.random() < 0.3:
                    running.write_high_watermarks()
                    _acknowledge(scene, writes)
            running.stop()
            _acknowledge(scene, writes)
    except KilledError:
        scene.reborn(name)
    except (RefusedError, InterruptError):
        pass
    except (KafkaLogError, OSError) as error:
        scene.failed(name, None, error)


def _acknowledge(scene: Scene, writes: list[Write]) -> None:
    """Note that readers can see these records from now on."""
    for write in writes:
        if write.outcome == "unknown":
            write.outcome, write.acknowledged = "ok", scene.history.now()


def _truncated(writes: list[Write]) -> None:
    """Note that records that were not acknowledged are gone: another broker has led since."""
    for write in writes:
        if write.outcome == "unknown":
            write.outcome = "fail"


@contextlib.contextmanager
def locked(scene: Scene) -> Iterator[None]:
    """Hold Kafka's lock in each directory, as a broker does while it runs.

    Raises:
        RefusedError: somebody else has one; or a commit is unfinished.
    """
    with contextlib.ExitStack() as undo:
        for path in scene.paths:
            descriptor = os.open(f"{path}/{LOCK}", os.O_RDWR | os.O_CREAT)
            undo.callback(os.close, descriptor)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RefusedError from None
            undo.callback(_unlink, f"{path}/{LOCK}")
        if any(Path(path, UNFINISHED_FOLDER).exists() for path in scene.paths):
            raise RefusedError
        yield


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        Path(path).unlink()


class _Broker:
    def __init__(self, scene: Scene) -> None:
        """Start: recover what was not shut down in good order."""
        self._scene = scene
        self._directories = [Path(path) for path in scene.paths]
        for folder in self._directories:
            if not (folder / META_PROPERTIES).exists():
                write_atomically(folder / META_PROPERTIES, _META)
        found = LogDirs(self._directories).partitions()
        if not all((folder / META_PROPERTIES).exists() for folder in self._directories):
            raise RefusedError  # a disk came back meanwhile: its lock and identity are not there
        self._folders = {key: each.path for key, each in found.items() if key.topic == TOPIC}
        for key, path in self._folders.items():
            if not (path.parent / CLEAN_SHUTDOWN).exists():
                with PartitionLog(path, key) as log:
                    bases = [segment.base_offset for segment in log.segments]
                for base in bases:
                    recover_segment(path, base, index_interval_bytes=_INTERVAL)
        for folder in self._directories:
            remove_clean_shutdown_marker(folder)
        self._appenders: dict[TopicPartition, PartitionAppender] = {}
        self._moves: dict[TopicPartition, Move] = {}
        self._replicated: dict[TopicPartition, tuple[Path, int]] = {}
        """Where a log ended at the last high watermark, if it has more now: file and bytes."""

    @property
    def has_partitions(self) -> bool:
        """Whether it found any: their directory may not be mounted."""
        return bool(self._folders)

    def any_partition(self, chance: random.Random) -> TopicPartition:
        return chance.choice(sorted(self._folders))

    def append(self, key: TopicPartition, value: str) -> None:
        """Append a record; with acks=1 that is all."""
        appender = self._appenders.get(key)
        if appender is None:
            appender = PartitionAppender(self._folders[key], key, LogConfig(), now_ms=0)
            self._appenders[key] = appender
        (row,) = self._scene.rows({value: key.partition}).to_pylist()
        data = batch_bytes(appender.log_end_offset, [Row(row["value"], key=row["key"])])
        content = np.frombuffer(data, np.uint8).copy()
        plan = appender.plan([scan_batches(content).table])
        log = max(path for path in self._folders[key].iterdir() if path.suffix == ".log")
        self._replicated.setdefault(key, (log, log.stat().st_size))
        appender.apply(plan, [BufferSource(content)], os.close)

    def truncate(self) -> None:
        """Cut off what no high watermark covers, as a follower does that has diverged (KIP-101)."""
        for key, (log, size) in self._replicated.items():
            self._appenders.pop(key, None)
            os.truncate(log, size)
            recover_segment(log.parent, int(log.stem), index_interval_bytes=_INTERVAL)
        self._replicated.clear()

    def move(self, chance: random.Random) -> None:
        """Go on with a replica's way to another directory, or begin one."""
        key = next(iter(self._moves), self.any_partition(chance))
        moving = self._moves.pop(key, None)
        if moving is None:
            self._moves[key] = moving = Move(self._folders[key], self._directories, chance)
            moving.catch_up()
            return
        moving.catch_up()
        self._replicated.pop(key, None)
        history = self._scene.history
        history.moves.append(Moved(key.partition, history.now()))
        try:
            moving.swap()
        except BaseException:
            self._scene.may_fail = True  # there may be two folders, until a person moves one away
            raise
        self._folders[key] = moving.target
        self._appenders.pop(key, None)
        if chance.random() < 0.5:
            delete_retired([moving.source.parent])

    def _write_ends(self, name: str) -> None:
        for folder in self._directories:
            ends = {}
            for key, path in self._folders.items():
                if path.parent == folder:
                    with PartitionLog(path, key) as log:
                        ends[key] = log.log_end_offset(verify_from=0)
            write_offset_checkpoint(folder, name, ends)

    def write_high_watermarks(self) -> None:
        """Write down how far logs are committed, which a broker does every five seconds."""
        self._write_ends(HIGH_WATERMARK)
        history, known = self._scene.history, {key.partition for key in self._folders}
        for move in history.moves:
            if move.ended is None and move.partition in known:
                move.ended = history.now()
        self._replicated.clear()

    def stop(self) -> None:
        """Stop in good order."""
        self._write_ends(RECOVERY_POINT)
        self.write_high_watermarks()
        for folder in self._directories:
            write_clean_shutdown_marker(folder)
