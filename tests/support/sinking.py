"""Write to log directories as Spark would, without Spark: stage in tasks, commit on the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import kafkalog
from kafkalog.checkpoints.committed import load_committed
from kafkalog.files.objects import open_objects
from kafkalog.files.storage import STORE, RemoteRoot
from kafkalog.streaming.commit.append import AppenderCache
from kafkalog.streaming.commit.committer import Committer, Outcome
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.sink.task_writer import TaskWriter
from kafkalog.streaming.sink.write_options import WriteOptions, WritePlan
from kafkalog.streaming.store.ends.tracker import LogEndTracker
from kafkalog.streaming.store.identity import BatchIdentity
from kafkalog.streaming.store.log_dirs import LogDirs
from kafkalog.streaming.store.session import ensure_set

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import pytest

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.commit.staging.staged_run import StagedRun

__all__ = ["Writer", "adopt_small_files", "folders_of", "rows", "values_of"]

STAMP_MS = 1_700_000_000_000


def adopt_small_files(patch: pytest.MonkeyPatch) -> None:
    """Let every partition of a task have files of its own, and commits adopt them at any size."""
    patch.setattr("kafkalog.streaming.commit.staging.staged_files.OWN_FILE_BYTES", 0)
    patch.setattr("kafkalog.streaming.commit.staging.staged_files.SMALLEST_OWN_FILE_BYTES", 0)
    patch.setattr("kafkalog.streaming.log.growth.ADOPTED_BYTES", 0)


def rows(
    values: Iterable[str | bytes | None],
    *,
    keys: Sequence[str | bytes | None] | None = None,
    topics: Sequence[str | None] | None = None,
    partitions: Sequence[int | None] | None = None,
    timestamps: Sequence[int | None] | None = None,
) -> pa.RecordBatch:
    """Make rows; a column that is not given is not there."""
    columns: dict[str, Any] = {"value": pa.array(list(values))}
    if keys is not None:
        columns["key"] = pa.array(keys)
    if topics is not None:
        columns["topic"] = pa.array(topics, pa.string())
    if partitions is not None:
        columns["partition"] = pa.array(partitions, pa.int32())
    if timestamps is not None:
        columns["timestamp"] = pa.array(timestamps, pa.int64())
    return pa.RecordBatch.from_pydict(columns)


class Writer:
    """One streaming query over some directories; ``options`` by their names, ``__`` for a dot.

    What it knows from one commit it takes to the next, as the process of a query does.
    """

    def __init__(
        self, *directories: Path, name: str = "4711", run: str = "run-1", **options: str
    ) -> None:
        self.directories = directories
        self.name = name
        self.run = run
        self.stamp_ms = STAMP_MS
        self.appenders = AppenderCache()
        given = {option.replace("__", "."): value for option, value in options.items()}
        self.options = WriteOptions.parse({"path": ",".join(map(str, directories)), **given})

    def plan(self) -> WritePlan:
        return WritePlan(self.options, self.ensure(), self.stamp_ms)

    def ensure(self) -> str:
        """Make the directories a set, and give its id."""
        return ensure_set(self.options.paths, self.options.policy)

    def identity(self, batch_id: int, digest: str | None = None) -> BatchIdentity:
        return BatchIdentity(f"query:{self.name}", batch_id, self.run, digest)

    def stage(self, batch_id: int, *tasks: pa.RecordBatch) -> list[StagedRun]:
        """Stage one record batch per task."""
        plan, identity = self.plan(), self.identity(batch_id)
        return [
            run
            for number, batch in enumerate(tasks)
            for run in TaskWriter(plan, identity, number=number).write([batch]).runs
        ]

    def write(self, batch_id: int, *tasks: pa.RecordBatch, digest: str | None = None) -> Outcome:
        """Stage and commit."""
        return self.commit(batch_id, self.stage(batch_id, *tasks), digest=digest)

    def commit(
        self, batch_id: int, runs: Sequence[StagedRun], *, digest: str | None = None
    ) -> Outcome:
        identity = self.identity(batch_id, digest)
        return Committer(self.plan().commit_plan, identity, appenders=self.appenders).commit(runs)


def folders_of(place: Path | str) -> set[str]:
    """Return the names of the partitions' folders; those that a log in a bucket shows."""
    if isinstance(place, str):
        store = RemoteRoot.parse(place)
        return (
            {str(key) for key in LogEndTracker([store]).look().offsets} if _is_log(store) else set()
        )
    return {path.name for path in place.iterdir() if path.is_dir()} if place.is_dir() else set()


def _is_log(place: RemoteRoot) -> bool:
    return open_objects(place).get(STORE) is not None


def values_of(directories: Sequence[Path | str], topic: str) -> dict[int, list[str]]:
    """Read the committed values of a topic, per partition in offset order, by the public rule.

    What is a text is the URI of a log in a bucket, and is read by the library.
    """
    if isinstance(directories[0], str):
        return _values_in_bucket(directories[0], topic)
    return _values_in(directories, topic)  # type: ignore[arg-type]


def _values_in_bucket(place: str, topic: str) -> dict[int, list[str]]:
    ends = LogEndTracker([RemoteRoot.parse(place)], lambda key: key.topic == topic).look().offsets
    found: dict[int, list[str]] = {key.partition: [] for key in sorted(ends)}
    columns = ["value", "partition", "offset"]
    table = kafkalog.read(place, topic, columns=columns, strings=["value"]).read_all()
    for row in table.sort_by("offset").to_pylist():
        found[row["partition"]].append(row["value"])
    assert {number: len(values) for number, values in found.items()} == {
        key.partition: end for key, end in ends.items()
    }
    return found


def _values_in(directories: Sequence[Path], topic: str) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    committed = load_committed(directories)
    for key, folder in LogDirs(directories).partitions().items():
        if key.topic != topic:
            continue
        end = _committed_end(key, folder.path, committed)
        found[key.partition] = _values(folder.path, key, end)
    return found


def _committed_end(key: TopicPartition, folder: Path, committed: Any) -> int:
    from kafkalog.checkpoints.broker import read_topic_id

    known = committed.high_watermark(key.topic, read_topic_id(folder), key.partition)
    return 0 if known is None else int(known)


def _values(folder: Path, key: TopicPartition, end: int) -> list[str]:
    decoder = RecordDecoder(Columns.VALUE | Columns.OFFSET)
    values: list[str] = []
    offsets: list[int] = []
    with PartitionLog(folder, key) as log:
        for part in log.slices(log.log_start_offset, end):
            for batch in log.read_slice(part, decoder, committed_end=end):
                values += [
                    "" if value is None else value.decode()
                    for value in batch.column("value").to_pylist()
                ]
                offsets += batch.column("offset").to_pylist()
    assert np.array_equal(offsets, np.arange(end)), f"{key}: offsets {offsets[:5]}… to {end}"
    return values
