"""One query that writes batches to log directories, for tests that cut it off somewhere.

Every row says which batch, task and place it belongs to, so that what a log holds tells by itself
whether each row is there once and in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.support.sinking import Writer, adopt_small_files, rows, values_of

from kafkalog.checkpoints import state_file
from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    RECOVERY_POINT,
    read_offset_checkpoint,
    read_topic_id,
)
from kafkalog.checkpoints.commit_state import STAGED_PREFIX, UNFINISHED_FOLDER
from kafkalog.checkpoints.committed import load_committed
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.checkpoints.state_file import load_state
from kafkalog.files.regular import read_regular
from kafkalog.streaming.log.files import OFFSET_INDEX, TIME_INDEX
from kafkalog.streaming.log.growth import index_segment
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.valid_batches import valid_chunks
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa
    import pytest

__all__ = ["CASES", "TOPICS", "Case", "Scene", "check_indexes", "expected", "in_order", "tasks"]

TOPICS: Final = ("flights", "weather")
_TASKS: Final = 2


@dataclass(frozen=True)
class Case:
    """What was there before, and the batch that is cut off: ``rows`` in each of two tasks.

    With ``adopts`` the staged files become segments, however small they are. With ``is_large`` each
    commit writes its state as that of a large set: a snapshot, and what has changed since.
    """

    name: str
    before: int
    options: dict[str, str] = field(default_factory=dict)
    directories: int = 1
    rows: int = 40
    adopts: bool = False
    is_large: bool = False

    def apply(self, patch: pytest.MonkeyPatch) -> None:
        """Let commits do what the case wants."""
        if self.adopts:
            adopt_small_files(patch)
        if self.is_large:
            patch.setattr(state_file, "FEW_ENTRIES", -1)
            patch.setattr(state_file, "SMALL_CHANGES", 0)


CASES: Final = (
    Case("append", 1, {"numPartitions": "2"}),
    Case("roll", 1, {"numPartitions": "2", "segment__bytes": "700", "index__interval__bytes": "0"}),
    Case(
        "adopt",
        1,
        {"numPartitions": "1", "segment__bytes": "1200", "index__interval__bytes": "0"},
        adopts=True,
    ),
    Case("new topics", 0, {"numPartitions": "2"}),
    Case("two directories", 1, {"numPartitions": "3", "compression__type": "lz4"}, directories=2),
    Case("left unsynced", 1, {"numPartitions": "1", "flush": "os"}),
    Case("v0, compressed", 1, {"message__format": "v0", "compression__type": "gzip"}, rows=10),
    Case("v1, rolling", 1, {"message__format": "v1", "segment__bytes": "500"}, rows=10),
    Case("large", 2, {"numPartitions": "2"}, directories=2, rows=4, is_large=True),
)


@dataclass(frozen=True)
class Scene:
    """The log directories of a case in one folder, which exists."""

    case: Case
    folder: Path
    topics: tuple[str, ...] = TOPICS

    @property
    def directories(self) -> list[Path]:
        return [self.folder / str(number) for number in range(self.case.directories)]

    def prepare(self) -> None:
        """Make the directories, and commit what was there before."""
        for directory in self.directories:
            directory.mkdir(parents=True)
        self.writer("run-1").plan()
        for batch_id in range(self.case.before):
            self.write(batch_id, "run-1")

    def writer(self, run: str) -> Writer:
        return Writer(*self.directories, run=run, **self.case.options)

    def write(self, batch_id: int, run: str) -> None:
        batches = tasks(batch_id, self.case.rows, self.topics)
        self.writer(run).write(batch_id, *batches, digest=f"digest of {batch_id}")

    def another(self) -> Writer:
        """Return another query on the same directories."""
        return Writer(*self.directories, name="another", run="other", topic="other")

    def write_another(self) -> None:
        """Let another query commit its first batch, which recovers what was left before."""
        self.another().write(0, rows(["x"]))

    def values(self) -> list[str]:
        """Return all committed values; within a partition they must come in the order written."""
        found = []
        for topic in self.topics:
            for values in values_of(self.directories, topic).values():
                assert values == in_order(values)
                found += values
        return in_order(found)

    def expected(self, batches: int) -> list[str]:
        return expected(batches, self.case.rows)

    def check_guarded(self) -> None:
        """A broker is kept out as long as a log holds batches that are not committed."""
        committed = load_committed(self.directories)
        for key, found in LogDirs(self.directories).partitions().items():
            known = committed.high_watermark(key.topic, read_topic_id(found.path), key.partition)
            with PartitionLog(found.path, key) as log:
                end = log.log_end_offset(verify_from=0)
            guarded = (found.log_dir / UNFINISHED_FOLDER).is_dir()
            assert guarded or (known is not None and end <= known), found.path

    def check_clean(self, *, staged: bool = False) -> None:
        """Nothing but ``staged`` files is left over, and checkpoints say what the logs say."""
        for folder in self.directories:
            left = {path.name for path in folder.iterdir()}
            assert not left & {INTENT_FILE, UNFINISHED_FOLDER}
            assert staged or not [name for name in left if name.startswith(STAGED_PREFIX)]
        for key, found in LogDirs(self.directories).partitions().items():
            with PartitionLog(found.path, key) as log:
                end = log.log_end_offset(verify_from=0)
            assert read_offset_checkpoint(found.log_dir, HIGH_WATERMARK)[key] == end
            assert read_offset_checkpoint(found.log_dir, RECOVERY_POINT).get(key, 0) <= end


def tasks(batch_id: int, count: int, topics: Sequence[str] = TOPICS) -> list[pa.RecordBatch]:
    """Make the rows of a batch's tasks, which go to all topics in turn."""
    made = []
    for task in range(_TASKS):
        values = [f"{batch_id}/{task}/{number}" for number in range(count)]
        places = [topics[number % len(topics)] for number in range(count)]
        made.append(rows(values, keys=[f"k{n % 5}" for n in range(count)], topics=places))
    return made


def in_order(values: Sequence[str]) -> list[str]:
    """Sort values as they were written."""
    return sorted(values, key=lambda value: tuple(map(int, value.split("/"))))


def expected(batches: int, count: int) -> list[str]:
    """Return the values of the first batches, in order."""
    return [f"{b}/{t}/{n}" for b in range(batches) for t in range(_TASKS) for n in range(count)]


def check_indexes(directories: Sequence[Path]) -> None:
    """Each index holds, byte for byte, what the batches of its segment call for."""
    for key, found in LogDirs(directories).partitions().items():
        interval = _index_interval(found.log_dir, key.topic)
        with PartitionLog(found.path, key) as log:
            for segment in log.segments:
                with segment:
                    tables = [chunk.table for chunk in valid_chunks(segment, 0)]
                    built = index_segment(segment.base_offset, tables, interval)
                for suffix, entries in (
                    (OFFSET_INDEX, built.index_entries),
                    (TIME_INDEX, built.time_index_entries),
                ):
                    path = segment.file(suffix)
                    assert read_regular(path, limit=len(entries) + 1) == entries, (
                        f"{path} differs from its log"
                    )


def _index_interval(log_dir: Path, topic: str) -> int:
    state = load_state(log_dir)
    assert state is not None
    known = [each.settings for each in state.topics.values() if each.name == topic]
    return LogConfig.from_mapping(known[0] if known else {}).index_interval_bytes
