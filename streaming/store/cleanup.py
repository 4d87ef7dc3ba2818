"""After a commit: Kafka's checkpoint files say the same, and what it left behind goes away."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    RECOVERY_POINT,
    write_offset_checkpoint,
)
from kafkalog.checkpoints.commit_state import DEFAULT_EXPIRATION_MS, STAGED_PREFIX
from kafkalog.files.system import system
from kafkalog.files.timeouts import at
from kafkalog.streaming.store.identity import APP_PREFIX, BatchIdentity, staging_hash

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.store.log_set import LogSet

__all__ = ["WrittenEnd", "sweep", "write_ends"]


class WrittenEnd(NamedTuple):
    """The end of a partition after a commit."""

    log_dir: Path
    topic_partition: TopicPartition
    offset: int


def write_ends(ends: Iterable[WrittenEnd], *, durable: bool) -> None:
    """Tell a broker the new ends of partitions.

    The recovery point only moves where the log is on the disk. The high watermark may be lost, and
    is never torn.
    """
    by_directory: dict[Path, list[WrittenEnd]] = {}
    for end in ends:
        by_directory.setdefault(end.log_dir, []).append(end)
    for folder, written in by_directory.items():
        offsets = {end.topic_partition: end.offset for end in written}
        if durable:
            write_offset_checkpoint(folder, RECOVERY_POINT, offsets)
        write_offset_checkpoint(folder, HIGH_WATERMARK, offsets, fsync=durable)


def sweep(log_set: LogSet, identity: BatchIdentity) -> None:
    """Remove staged files whose batch is finished, of this writer and of all that are known.

    Those of ``identity`` go, of attempts that lost too. Files that nobody can tell anything about
    go when they are as old as a writer is remembered that says nothing else: a job that still
    needed one would fail, and lose nothing.
    """
    finished = {staging_hash(key): last.batch_id for key, last in log_set.state.writers.items()}
    for topic in log_set.state.topics.values():
        for app_id, version in topic.versions.items():
            written = BatchIdentity(f"{APP_PREFIX}{app_id}", version.batch_id, topic=topic.name)
            finished[staging_hash(written.staged_by)] = version.batch_id
    own = staging_hash(identity.staged_by)
    finished[own] = max(identity.batch_id, finished.get(own, -1))
    oldest_ms = system.time_ns() // 1_000_000 - DEFAULT_EXPIRATION_MS
    for folder in log_set.directories:
        with at(folder):
            for path, writer, batch_id in _staged_files(folder):
                if batch_id <= finished.get(writer, -1) or _is_older(path, oldest_ms):
                    path.unlink(missing_ok=True)


def _staged_files(folder: Path) -> Iterator[tuple[Path, str, int]]:
    """Find the staged files of a directory: path, hash of the writer, batch id."""
    for path in folder.iterdir():
        if not path.name.startswith(STAGED_PREFIX):
            continue
        writer, _, rest = path.name.removeprefix(STAGED_PREFIX).partition(".")
        batch_id, _, _ = rest.partition(".")
        if batch_id.isdecimal():
            yield path, writer, int(batch_id)


def _is_older(path: Path, limit_ms: int) -> bool:
    try:
        return path.lstat().st_mtime_ns // 1_000_000 < limit_ms
    except FileNotFoundError:
        return False
