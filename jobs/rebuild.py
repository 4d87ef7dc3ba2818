"""Rebuild the indexes of log directories: ``python -m kafkalog.jobs.rebuild PATH``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.checkpoints.voters import find_voters
from kafkalog.errors import KafkaLogError, UnknownTopicOrPartitionError
from kafkalog.files.deferred_signals import check_interrupt, shielded
from kafkalog.files.paths import split_paths
from kafkalog.jobs.process.arguments import LOG  # noqa: TC001 - typer reads annotations
from kafkalog.jobs.process.running import Command, print_line, run
from kafkalog.model import TopicPartition, said_there
from kafkalog.streaming.log.recovery import RebuiltSegment, rebuild_partition
from kafkalog.streaming.store.log_dirs import LogDirs, live_partitions
from kafkalog.streaming.store.policy import WAIT_MS, SetPolicy
from kafkalog.streaming.store.replicas.open_nodes import QuorumSession
from kafkalog.streaming.store.session import Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.streaming.log.log_dir import PartitionDirectory

__all__ = ["command", "rebuild"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@shielded
def rebuild(
    path: str,
    topic_partition: TopicPartition | None = None,
    *,
    index_interval_bytes: int = 4096,
    timeout_ms: int = WAIT_MS,
) -> list[RebuiltSegment]:
    """Rebuild the offset and time indexes of a partition, or of all that live in the directories.

    Both locks of the directories are held meanwhile.

    Args:
        path: log directories with commas between them, semicolons between nodes, or one
            partition's folder.
        topic_partition: the only one to rebuild.
        index_interval_bytes: bytes of log between entries, as ``index.interval.bytes``.
        timeout_ms: how long to wait for another writer.

    Raises:
        LogDirectoryError: a broker holds one of the directories.
        LockTimeoutError: another writer held one of them for too long.
        UnknownTopicOrPartitionError: there is no such partition.
    """
    log_dirs = LogDirs(split_paths(path))
    policy = SetPolicy.of_upkeep(timeout_ms)
    if find_voters(list(map(Path, log_dirs.paths))) is not None:
        return _rebuild_replicas(log_dirs, topic_partition, index_interval_bytes, policy)
    directories = {where.log_dir for where in _chosen(log_dirs, topic_partition)}
    with Session(directories, policy, holder="kafkalog rebuild") as session:
        segments = []
        for where in _chosen(log_dirs, topic_partition):
            if where.log_dir not in directories:
                continue  # it has moved while this waited for the locks
            check_interrupt()
            session.verify()
            segments += rebuild_partition(where.path, index_interval_bytes=index_interval_bytes)
        return segments


def _rebuild_replicas(
    log_dirs: LogDirs, wanted: TopicPartition | None, interval: int, policy: SetPolicy
) -> list[RebuiltSegment]:
    """Rebuild those of all replicas of a set of several nodes that are there."""
    _chosen(log_dirs, wanted)
    segments = []
    with QuorumSession(list(map(Path, log_dirs.paths)), policy, holder="kafkalog rebuild") as nodes:
        log_set = nodes.open(rolls_back=False)
        for replicas in log_set.node.replicas():
            for key, where in replicas.items():
                topic_id = read_topic_id(where.path)
                if wanted in {None, key} and not log_set.state.is_deleted(key.topic, topic_id):
                    check_interrupt()
                    log_set.verify_locks()
                    segments += rebuild_partition(where.path, index_interval_bytes=interval)
    return segments


def _chosen(
    log_dirs: LogDirs, topic_partition: TopicPartition | None
) -> Sequence[PartitionDirectory]:
    """List the partitions, or the one that is wanted; a topic that is being deleted is gone."""
    found = live_partitions(log_dirs)
    if topic_partition is None:
        return [*found.values()]
    if topic_partition not in found:
        places = ", ".join(map(str, log_dirs.paths))
        known = said_there(topic_partition.topic, found)
        raise UnknownTopicOrPartitionError(f"{topic_partition} is not in {places}. {known}")
    return [found[topic_partition]]


@app.command(cls=Command)
def command(
    log: LOG,
    topic: Annotated[str, typer.Option(help="Rebuild one partition of this topic only.")] = "",
    partition: Annotated[int, typer.Option(min=0, help="Which one.")] = 0,
    index_interval_bytes: Annotated[
        int, typer.Option(min=0, help="Bytes of log between entries: index.interval.bytes.")
    ] = 4096,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON per segment.")] = False,
) -> None:
    """Rebuild offset and time indexes from the logs; exit 1 if a log ends in damage."""
    wanted = TopicPartition(topic, partition) if topic else None
    try:
        segments = rebuild(",".join(log), wanted, index_interval_bytes=index_interval_bytes)
    except KafkaLogError as error:
        print_line(str(error), err=True)
        raise typer.Exit(2) from error
    for segment in segments:
        print_line(_as_json(segment) if as_json else _as_text(segment))
    raise typer.Exit(int(any(segment.problem is not None for segment in segments)))


def _as_json(segment: RebuiltSegment) -> str:
    problem = None if segment.problem is None else str(segment.problem)
    replaced = [path.name for path in segment.replaced]
    return json.dumps({"log": str(segment.log), "replaced": replaced, "problem": problem})


def _as_text(segment: RebuiltSegment) -> str:
    done = ", ".join(path.name for path in segment.replaced) or "nothing to do"
    problem = "" if segment.problem is None else f"; but {segment.problem}"
    return f"{segment.log}: {done}{problem}"


if __name__ == "__main__":
    run(app)
