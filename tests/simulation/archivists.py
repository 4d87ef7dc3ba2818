"""Who keeps copies of a set: sees that all is in them, that they can be written, and be mended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.simulation.machine import ROOT
from tests.simulation.scene import COLUMNS, TOPIC, Scene

import kafkalog
from kafkalog.errors import OptionError
from kafkalog.streaming.admin.backup import back_up
from kafkalog.streaming.admin.salvage import salvage
from kafkalog.streaming.log.files import LOG, file_name
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segments import list_base_offsets

if TYPE_CHECKING:
    import random

    import pyarrow as pa

__all__ = ["archivist"]

_TRIES: Final = 6

_Rows = list[tuple[int, int, str]]
"""Partition, offset and value of each."""


def archivist(scene: Scene, name: str, operations: int, chance: random.Random) -> None:
    """A person who makes backups, and tries if they are of any use."""
    for number in range(max(operations // 3, 1)):
        scene.rest_here(name, chance)
        copy = _Copy(scene, name, number)
        copy.make()
        if copy.paths and chance.random() < 0.5:
            copy.damage_and_salvage(chance)
        if copy.paths:
            copy.write()


class _Copy:
    """A copy of a set; ``paths`` are empty if it is not known what is in it."""

    def __init__(self, scene: Scene, name: str, number: int) -> None:
        self._scene = scene
        self._actor = name
        self._name = f"{name}.{number}"
        self.paths: list[str] = []
        self._rows: _Rows = []

    @property
    def _path(self) -> str:
        return ",".join(self.paths)

    def make(self) -> None:
        """Make it; it has what was acknowledged before, and nothing in part."""
        scene, began = self._scene, self._scene.history.now()
        with scene.at_work(self._actor):
            done = back_up(scene.paths, f"{ROOT}/{self._name}")
            ended = scene.history.now()
            paths = [str(each.target) for each in done.directories]
            if done.at_one_moment:
                read = scene.read(self._name, began, [_look(",".join(paths))])
                read.ended = ended
                read.told_of_loss = scene.machine.images.have_parted
                self._rows, self.paths = read.rows, paths

    def damage_and_salvage(self, chance: random.Random) -> None:
        """Let a batch of it be damaged, and drop that; all else stays where it was."""
        if not self._rows:
            return
        partition, offset, _ = chance.choice(self._rows)
        gone, self.paths, paths = range(0), [], self.paths
        with self._scene.at_work(self._actor):
            (folder,) = (
                each for path in paths if (each := Path(path, f"{TOPIC}-{partition}")).exists()
            )
            gone = _damage(folder, offset)
        for number in range(_TRIES if gone else 0):
            with self._scene.at_work(self._actor):
                try:
                    salvage(paths, drop=[f"{TOPIC}-{partition}@{gone.start}"])
                except OptionError:
                    if not number:
                        raise
                self._rows = [e for e in self._rows if e[0] != partition or e[1] not in gone]
                self.paths = paths
                break
        self._check("after a salvage")

    def write(self) -> None:
        """See that it can be written: a record comes after all others.

        The copy has the topic's settings. Without its limit no round of retention follows. What a
        broker had not committed is, with a record after it: guarantees.md, "Recovery touches only
        what is ours".
        """
        scene, partition, value = self._scene, 0, f"{self._name}.0"
        options = {"flush": "commit", "max.block.ms": "60000", "allowBrokerDirectory": "true"}
        options["retention.bytes"] = "-1"
        paths, self.paths = self.paths, []
        with scene.at_work(self._actor):
            rows = scene.rows({value: partition})
            path = ",".join(paths)
            if scene.has_broker:
                written = _rows(_look(path, readUpTo="logEnd"))
                mine = [row for row in written if row[0] == partition]
                self._rows = sorted({*self._rows, *mine})
            kafkalog.append(path, TOPIC, rows, options=options)
            offset = self._end(partition, value, path)
            self.paths, self._rows = paths, sorted([*self._rows, (partition, offset, value)])
        self._check("after an append")

    def _end(self, partition: int, value: str, path: str) -> int:
        """Give the offset of a value, which is after all others."""
        end = max((offset for p, offset, _ in self._rows if p == partition), default=-1) + 1
        found = [offset for _, offset, each in _rows(_look(path)) if each == value]
        return max([end, *found])  # later if the last ones were deleted, or dropped

    def _check(self, when: str) -> None:
        with self._scene.at_work(self._actor):
            found = _rows(_look(self._path)) if self.paths else self._rows
            if found != self._rows:
                wrong = sorted(set(found) ^ set(self._rows))
                self._scene.history.errors.append(f"{self._name} {when}: differs in {wrong!s:.300}")


def _look(path: str, **options: str) -> pa.Table:
    return kafkalog.read(path, TOPIC, columns=COLUMNS, options=options).read_all()


def _rows(table: pa.Table) -> _Rows:
    columns = (table.column(name).to_pylist() for name in COLUMNS)
    return sorted((p, offset, value.decode()) for p, offset, value in zip(*columns, strict=True))


def _damage(folder: Path, offset: int) -> range:
    """Change a byte of the batch that has an offset; returns the offsets of that batch."""
    base = max(each for each in list_base_offsets(folder) if each <= offset)
    with LogSegment(folder, base) as segment:
        (batch,) = (e for e in segment.headers(0) if e.offset <= offset <= e.last_offset)
    place = batch.position + batch.size - 1
    descriptor = os.open(folder / file_name(base, LOG), os.O_RDWR)
    try:
        (byte,) = os.pread(descriptor, 1, place)
        os.pwrite(descriptor, bytes([byte ^ 1]), place)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return range(batch.offset, batch.last_offset + 1)
