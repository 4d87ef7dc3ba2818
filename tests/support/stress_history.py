"""What a stress run was told, as the auditor of the simulation takes it: a history for each topic.

Times are those of the machine, in ns. A micro-batch begins when Spark plans it and ends when Spark
notes that it is done. Its rows are those of the files that Spark's file sink notes for it.
"""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.simulation.auditor import Audit, Cut, History, Read

import kafkalog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from tests.support.stress import Life, StressGround

__all__ = ["KEEPS_EVERYTHING", "MicroBatch", "Row", "micro_batches", "problems"]

KEEPS_EVERYTHING: Final = {
    "spark.sql.streaming.minBatchesToRetain": "1000000",
    "spark.sql.streaming.fileSink.log.compactInterval": "1000000",
    "spark.sql.streaming.fileSink.log.deletion": "false",
}
"""Settings with which Spark's notes of all micro-batches stay as they were written."""

_COARSE_NS: Final = 50_000_000
"""By how much the times of files may be off."""


class Row(NamedTuple):
    """A row that the query has written, and the file that it is in."""

    topic: str
    partition: int
    offset: int
    value: str
    file: str


class MicroBatch(NamedTuple):
    """A micro-batch that is done: its rows, and from where to where it read, by topic."""

    number: int
    began: int
    ended: int
    bounds: dict[str, dict[int, tuple[int, int]]]
    rows: list[Row]


def micro_batches(work: Path, rows: Iterable[Row]) -> list[MicroBatch]:
    """Take what Spark has noted of a query's micro-batches; those that are done."""
    by_file: dict[str, list[Row]] = {}
    for row in rows:
        by_file.setdefault(row.file, []).append(row)
    ends: dict[str, dict[str, int]] = {}
    found = []
    for number in sorted(int(path.name) for path in _numbered(work / "checkpoint" / "offsets")):
        planned = work / "checkpoint" / "offsets" / str(number)
        before, ends = ends, json.loads(planned.read_text().splitlines()[2])
        noted = work / "rows" / "_spark_metadata" / str(number)
        if not noted.exists():
            continue
        files = [json.loads(line)["path"] for line in noted.read_text().splitlines()[1:]]
        of_batch = [row for file in files for row in by_file.pop(_name(file), ())]
        began, ended = planned.stat().st_mtime_ns, noted.stat().st_mtime_ns
        bounds = {topic: _bounds(before.get(topic, {}), each) for topic, each in ends.items()}
        found.append(MicroBatch(number, began - _COARSE_NS, ended + _COARSE_NS, bounds, of_batch))
    assert not by_file, f"rows of no micro-batch: {by_file}"
    return found


def _numbered(folder: Path) -> Iterable[Path]:
    return (path for path in folder.glob("[0-9]*") if path.name.isdecimal())


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _bounds(before: Mapping[str, int], after: Mapping[str, int]) -> dict[int, tuple[int, int]]:
    return {int(p): (before.get(p, 0), end) for p, end in after.items()}


def problems(
    ground: StressGround, batches: list[MicroBatch], said: str, *, looks: bool
) -> list[str]:
    """Let the auditor judge the history of each topic.

    ``said`` is what the source logged; ``looks`` whether topics can be read whole from Python, too.
    """
    lives = {f"{life.name}#{life.number}": life for life in ground.lives}
    names = [life.name for life in ground.lives]
    rows: dict[str, list[tuple[MicroBatch, list[Row]]]] = {name: [] for name in lives}
    found = []
    for batch in batches:
        by_life: dict[str, list[Row]] = {}
        for row in batch.rows:
            by_life.setdefault(row.value.partition(":")[0], []).append(row)
        found += [f"{each} was read and never put there" for each in by_life.keys() - lives.keys()]
        for name in by_life.keys() & lives.keys():
            rows[name].append((batch, by_life[name]))
    for name, life in lives.items():
        is_alone = life.alive and names.count(life.name) == 1
        history = _history(life, rows[name], said, is_alone=is_alone)
        if looks and life.alive:
            history.reads.append(_look(ground, life))
        found += [f"{name} ({life.kind}): {text}" for text in Audit(history).found]
    return found


def _history(
    life: Life, batches: list[tuple[MicroBatch, list[Row]]], said: str, *, is_alone: bool
) -> History:
    """Tell of one topic, from when it was made to when it was deleted."""
    history = History(writes=life.writes, is_compacted=life.kind == "compacted")
    if life.kind == "retained":
        history.cuts.append(Cut("the broker", 0, dict.fromkeys(range(life.partitions))))
    skips = life.kind == "retained"
    if any(place is not None for place in life.sent.values()):
        told = [(*place, value) for value, place in life.sent.items() if place is not None]
        history.reads.append(Read("the producer", 0, _now(), sorted(told), "the producer"))
    ends: dict[int, int] = {}
    for batch, of_batch in batches:
        read = Read(f"batch {batch.number}", batch.began, batch.ended, _rows(of_batch), "the query")
        read.is_part, read.skips = True, skips
        read.bounds = batch.bounds[life.name] if is_alone else None
        read.told_of_loss = _is_told(life.name, read, ends, said)
        history.reads.append(read)
    if life.alive:
        everything = _rows(row for _, of_batch in batches for row in of_batch)
        read = Read("the whole query", _now(), _now(), everything)
        read.skips, read.told_of_loss = skips, any(each.told_of_loss for each in history.reads)
        history.reads.append(read)
    return history


def _look(ground: StressGround, life: Life) -> Read:
    columns = ("partition", "offset", "value")
    began = _now()
    table = kafkalog.read([*ground.paths], life.name, columns=columns).read_all()
    rows = [(row["partition"], row["offset"], row["value"].decode()) for row in table.to_pylist()]
    return Read("a look from Python", began, _now(), sorted(rows))


def _rows(rows: Iterable[Row]) -> list[tuple[int, int, str]]:
    return sorted((row.partition, row.offset, row.value) for row in rows)


def _is_told(topic: str, read: Read, ends: dict[int, int], said: str) -> bool:
    """Whether the source said that it skips what a micro-batch skips; moves ``ends`` on."""
    skipped = []
    for partition, offset, _ in read.rows:
        due = ends.get(partition, 0)
        if offset > due:
            skipped.append(_says_lost(topic, partition, due, offset, said))
        ends[partition] = offset + 1
    return bool(skipped) and all(skipped)


def _says_lost(topic: str, partition: int, start: int, end: int, said: str) -> bool:
    name = re.escape(f"{topic}-{partition}")
    ranges = re.findall(rf"\b{name}:? (?:the \d+ offsets )?\[(\d+), (\d+)\)", said)
    late = re.findall(rf"\b{name} at (\d+)", said)
    lost = [(int(a), int(b)) for a, b in ranges] + [(0, int(b)) for b in late]
    reached = start
    for a, b in sorted(lost):
        if a <= reached:
            reached = max(reached, b)
    return reached >= end


def _now() -> int:
    return time.time_ns()
