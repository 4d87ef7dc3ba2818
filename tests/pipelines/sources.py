"""The source of a pipeline: a real log that somebody works on, and what it held at each time.

What it held is noted beside it, row by row, as it was appended. Nothing of that is asked of the
code that decides where a batch continues.
"""

from __future__ import annotations

import shutil
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
from tests.support.copying import cut

import kafkalog
from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.errors import UnknownTopicOrPartitionError
from kafkalog.files.objects import FolderObjects
from kafkalog.files.system import system
from kafkalog.model import TopicPartition, TopicSelection
from kafkalog.streaming.admin.compaction import Wanted, compact
from kafkalog.streaming.admin.retention import delete_records
from kafkalog.streaming.admin.topics import alter, delete
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.store.ends.tracker import LogEndTracker

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

__all__ = [
    "TOPIC",
    "InBucket",
    "Line",
    "Rows",
    "Source",
    "bounds",
    "objects_of",
    "rows_in",
    "value_of",
]

TOPIC: Final = "t"
STAMPS: Final = 1_000_000
"""The time of a source's n-th row ends so, in ms."""

_SETTINGS: Final = {
    "numPartitions": 2,
    "flush": "os",
    "segment.bytes": 400,
    "cleanup.policy": "compact,delete",
    "min.cleanable.dirty.ratio": "0.01",
    "retention.ms": "-1",
}

Rows = dict[int, dict[int, str]]
"""Values by partition and offset; those of the n-th row are ``v<n>``, or ``x<n>`` for none."""


@dataclass
class Line:
    """A line of history: of the ``number``-th topic, which rows each partition ever held.

    A log that is cut, or put back, loses the rows above. Compaction and retention take rows out of
    the log, and not out of its line.
    """

    number: int = 0
    rows: Rows = field(default_factory=lambda: {0: {}, 1: {}})
    firsts: dict[int, int] = field(default_factory=dict, compare=False)
    """The first row that each log had left: of what was below nothing tells."""

    @property
    def ends(self) -> dict[int, int]:
        return {number: max(rows, default=-1) + 1 for number, rows in self.rows.items()}

    def copied(self) -> Line:
        rows = {number: dict(rows) for number, rows in self.rows.items()}
        return Line(self.number, rows, dict(self.firsts))

    def may_have(self, partition: int, held: dict[int, str]) -> bool:
        """Whether rows that are held may be of this line, as far as the log tells."""
        rows, first = self.rows.get(partition, {}), self.firsts.get(partition, 0)
        return all(rows.get(at) == value or at < first for at, value in held.items())

    def below(self, ends: dict[int, int]) -> Line:
        """Give what lies below some ends."""
        below = {
            number: {
                offset: value for offset, value in self.rows.get(number, {}).items() if offset < end
            }
            for number, end in ends.items()
        }
        return Line(self.number, below)


class Source:
    """A topic of two partitions or more, in a log directory of its own."""

    settings: ClassVar[Mapping[str, Any]] = _SETTINGS

    def __init__(
        self,
        folder: Path,
        chance: random.Random,
        *,
        has_tombstones: bool = False,
        is_before_1970: bool = False,
    ) -> None:
        self.folder = folder / "source"
        self.path: Path | str = self.place_of(self.folder)
        self._chance = chance
        self._has_tombstones = has_tombstones
        began_ms = -1000 * STAMPS if is_before_1970 else time.time_ns() // 1_000_000
        self._began_ms = began_ms // STAMPS * STAMPS
        self.keys: dict[str, str] = {}
        """The keys of all rows, by their values."""
        self._written = 0
        self.line = Line()
        self._kept: tuple[Path, Line] | None = None
        self.append(3)

    def place_of(self, folder: Path) -> Path | str:
        """Return how readers and writers name the log."""
        return folder

    def process(self) -> AbstractContextManager[None]:
        """Let what is done be done by a process of its own, where it matters."""
        return nullcontext()

    def topic_id(self) -> str | None:
        return read_topic_id(self.folder / f"{TOPIC}-0")

    def append(self, batches: int | None = None) -> None:
        """Append small batches, whose values are found nowhere else."""
        for _ in range(self._chance.randint(1, 4) if batches is None else batches):
            partition = self._chance.choice(sorted(self.line.rows))
            count = self._chance.randint(1, 3)
            self.write(partition, [self._chance.choice("abc") for _ in range(count)])

    def write(self, partition: int, keys: Sequence[str]) -> None:
        """Append one batch."""
        count = len(keys)
        values = [f"v{self._written + number}" for number in range(count)]
        stamps = [self._began_ms + self._written + number for number in range(count)]
        if self._has_tombstones:
            values = [self._chance.choice((v, v, f"x{v[1:]}")) for v in values]
        self._written += count
        self.keys.update(zip(values, keys, strict=True))
        table = pa.table(
            {
                "key": pa.array(keys, pa.string()),
                "value": pa.array([None if v[0] == "x" else v for v in values], pa.string()),
                "partition": pa.array([partition] * count, pa.int32()),
                "timestamp": pa.array(stamps, pa.timestamp("ms", "UTC")),
            }
        )
        with self.process():
            outcome = kafkalog.append(self.path, TOPIC, table, options=self.settings)
        end = outcome.end_offsets[TopicPartition(TOPIC, partition)]
        line = self.line.rows[partition]
        line.update(zip(range(end - count, end), values, strict=True))

    def recreate(self) -> None:
        with self.process():
            delete([str(self.path)], TOPIC)
        self.line = Line(self.line.number + 1)
        self.append(self._chance.choice((1, 4, 12)))

    def cut(self) -> None:
        """Let a log be damaged, and cut off there."""
        partition = self._chance.choice(sorted(self.line.rows))
        offsets = sorted(self.rows().get(partition, ()))
        if not offsets:
            return
        cut(self.folder, self._chance.choice(offsets), partition)
        _, end = bounds(self.path)[partition]
        line = self.line.rows[partition]
        self.line.rows[partition] = {offset: v for offset, v in line.items() if offset < end}
        self.append(self._chance.choice((0, 1, 5)))

    def keep(self) -> None:
        """Make a backup."""
        place = self.folder.with_name(f"source.{self._written}")
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.folder, place)
        self._kept = place, self.line.copied()

    def put_back(self) -> None:
        """Put the last backup in the place of the log; somebody may write to it then."""
        if self._kept is None:
            return self.keep()
        place, line = self._kept
        shutil.rmtree(self.folder)
        shutil.copytree(place, self.folder)
        self.line = line.copied()
        self.append(self._chance.choice((0, 1, 5)))
        return None

    def compact(self) -> None:
        with self.process():
            compact([str(self.path)], Wanted(topics=TopicSelection.of(TOPIC)))

    def retain(self) -> None:
        """Delete the oldest rows of a partition."""
        partition = self._chance.choice(sorted(self.line.rows))
        start, end = bounds(self.path)[partition]
        offset = self._chance.randint(start, end)
        with self.process():
            delete_records([str(self.path)], {TopicPartition(TOPIC, partition): offset})

    def add_partition(self) -> None:
        count = len(self.line.rows)
        if count < 4:
            with self.process():
                alter([str(self.path)], TOPIC, partitions=count + 1)
            self.line.rows[count] = {}

    def rows(self) -> Rows:
        with self.process():
            return rows_in(self.path)


@contextmanager
def _other_process() -> Iterator[None]:
    before, system.memory = system.memory, {}
    try:
        yield
    finally:
        system.memory = before


class InBucket(Source):
    """The same in a bucket, whose objects lie in a folder. No log is cut there but with it."""

    settings: ClassVar = {k: v for k, v in _SETTINGS.items() if k != "flush"}

    def place_of(self, folder: Path) -> str:
        return f"s3a://bucket{folder}"

    def process(self) -> AbstractContextManager[None]:
        return _other_process()

    def topic_id(self) -> str | None:
        with self.process():
            watch = LogEndTracker(_places(self.path), lambda key: key.topic == TOPIC)
            watch.look()
            return watch.topic_ids().get(TopicPartition(TOPIC, 0))

    def cut(self) -> None:
        self.put_back()


def objects_of(place: object) -> FolderObjects:
    """Open the folder that a bucket of :class:`InBucket` is."""
    return FolderObjects(Path(f"/{str(place).partition('://')[2].partition('/')[2]}"))


def _places(path: Path | str) -> tuple[str, ...]:
    return ReadOptions.parse({"path": str(path), "subscribe": TOPIC}).paths


def rows_in(path: Path | str, topic: str = TOPIC) -> Rows:
    """Give what readers see in a log; nothing where it, or the topic, is not there."""
    found: Rows = {}
    if isinstance(path, Path) and not path.is_dir():
        return found
    try:
        columns = ["partition", "offset", "timestamp", "value"]
        read = kafkalog.read(path, topic, columns=columns).read_all()
    except UnknownTopicOrPartitionError:
        return found
    for row in read.to_pylist():
        partition = found.setdefault(row["partition"], {})
        assert row["offset"] not in partition, f"offset {row['offset']} is there twice"
        partition[row["offset"]] = value_of(row)
    return found


def value_of(row: Mapping[str, Any]) -> str:
    """Give what tells a row that was read."""
    if row["value"] is not None:
        return str(row["value"].decode())
    return f"x{round(row['timestamp'].timestamp() * 1000) % STAMPS}"


def bounds(path: Path | str, topic: str = TOPIC) -> dict[int, tuple[int, int]]:
    """Give where the partitions of a topic start and end, for readers."""
    if isinstance(path, Path) and not path.is_dir():
        return {}
    with nullcontext() if isinstance(path, Path) else _other_process():
        watch = LogEndTracker(_places(path), lambda key: key.topic == topic)
        ends = watch.look().offsets
        return {key.partition: (watch.log_start(key), end) for key, end in ends.items()}
