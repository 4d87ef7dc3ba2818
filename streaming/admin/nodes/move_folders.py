"""Move partitions to another log directory of their node, on request.

A partition is copied to a folder that ends in ``-future``, as a broker does it, in bounded steps
between which writers have their turn. When the copy is whole it becomes the partition's folder, and
the other one is removed. Whatever is killed amid this, the next call continues with the copy.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.errors import CorruptRecordError, LogDirectoryError, UnknownTopicOrPartitionError
from kafkalog.files.deferred_signals import check_interrupt, pause, shielded
from kafkalog.files.system import system
from kafkalog.streaming.log.files import future_directory_name, parse_future_directory
from kafkalog.streaming.log.log_dir import entries_of
from kafkalog.streaming.log.swap import finish_swap
from kafkalog.streaming.store.folder_changes import MovedFolder, put_in_place
from kafkalog.streaming.store.log_dirs import partitions_by_node
from kafkalog.streaming.store.policy import WAIT_MS, SetPolicy
from kafkalog.streaming.store.recovery.unsynced_tail import refuse_lost_tail
from kafkalog.streaming.store.replicas.copying import CopyBudget
from kafkalog.streaming.store.replicas.in_sync import COPIED_BYTES, catch_up, check_in_place
from kafkalog.streaming.store.session import check_written, existing, opened_set

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.admin.nodes.reassign import Move
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet

__all__ = ["MovingFolder", "check_places", "move_folders", "move_planned"]

_HOLDER: Final = "kafkalog node reassign"


class MovingFolder(NamedTuple):
    """A partition, the log directory that it was in, and the one that it is to be in."""

    key: TopicPartition
    log_dir: Path
    target: Path


@shielded
def move_folders(
    paths: Sequence[str],
    topic: str,
    target: str,
    partition: int | None = None,
    *,
    rate: int = 0,
    dry_run: bool = False,
    wait_ms: int = WAIT_MS,
) -> list[MovingFolder]:
    """Move a topic, or one partition of it, to the log directory ``target`` of its node.

    ``rate`` is how many bytes a second are copied, 0 for as many as go. Returns what was moved, or
    would be with ``dry_run``.

    Raises:
        UnknownTopicOrPartitionError: the node of that directory has nothing of it.
        LogDirectoryError: ``target`` is no directory of the set; or a replica is not in sync.
        KafkaLogError: somebody else holds the set, or its state cannot be trusted.
    """
    directories = existing(paths)
    check_written(directories)
    policy = SetPolicy.of_upkeep(wait_ms)
    done: list[MovingFolder] = []
    while True:
        check_interrupt()
        begun, room = system.monotonic(), CopyBudget(rate or COPIED_BYTES)
        with opened_set(
            directories, policy, refuse_lost_tail, holder=_HOLDER, dry_run=dry_run
        ) as log_set:
            place = _place_of(log_set, target)
            left = _left(log_set, place, topic, partition)
            if dry_run:
                return [_moving(each, place) for each in left]
            moved = _moved(log_set, left, place, room)
        done += moved
        if len(moved) == len(left):
            return done
        copied = (rate or COPIED_BYTES) - room.left
        pause(max(0.0, copied / rate - (system.monotonic() - begun)) if rate else 0.0)


def _left(
    log_set: LogSet, place: Path, topic: str, partition: int | None
) -> list[PartitionDirectory]:
    """Find the folders that are not in the log directory yet; raises as :func:`_found`."""
    found = _found(log_set, place, topic, partition)
    return [each for each in found if each.log_dir != place]


def _moving(where: PartitionDirectory, place: Path) -> MovingFolder:
    return MovingFolder(where.topic_partition, where.log_dir, place)


def _moved(
    log_set: LogSet, left: Sequence[PartitionDirectory], place: Path, room: CopyBudget
) -> list[MovingFolder]:
    """Copy as far as there is room, and put in place what is whole; returns that."""
    moved = _copied(log_set, left, place, room)
    if moved:
        put_in_place(log_set, moved)
    return [_moving(each, place) for each in left[: len(moved)]]


@shielded
def check_places(paths: Sequence[str], moves: Sequence[Move]) -> None:
    """Refuse a plan that names log directories which its nodes have not.

    Raises:
        LogDirectoryError: it does; or fewer than a majority of the nodes are there.
        KafkaLogError: the directories are no set, or their state cannot be trusted.
    """
    if not any(any(move.log_dirs) for move in moves):
        return
    directories = existing(paths)
    check_written(directories)
    policy = SetPolicy.of_upkeep(WAIT_MS)
    with opened_set(directories, policy, holder=_HOLDER, dry_run=True) as log_set:
        nodes = log_set.node.nodes()
        for move in moves:
            for node, log_dir in zip(move.replicas, move.log_dirs, strict=bool(move.log_dirs)):
                if log_dir is None:
                    continue
                place = _place_of(log_set, log_dir)
                if log_set.state.is_replicated and place not in nodes.get(node, {}).values():
                    raise LogDirectoryError(f"{log_dir} is no log directory of node {node}")


def move_planned(
    paths: Sequence[str],
    moves: Sequence[Move],
    *,
    rate: int = 0,
    dry_run: bool = False,
    wait_ms: int = WAIT_MS,
) -> list[MovingFolder]:
    """Move partitions to the log directories that a plan names, after they are on their nodes.

    Raises:
        UnknownTopicOrPartitionError, KafkaLogError: as :func:`move_folders`.
    """
    told = {"rate": rate, "dry_run": dry_run, "wait_ms": wait_ms}
    return [
        moved
        for (topic, number), _, log_dirs in moves
        for log_dir in log_dirs
        if log_dir is not None
        for moved in move_folders(paths, topic, log_dir, number, **told)  # type: ignore[arg-type]
    ]


def _place_of(log_set: LogSet, target: str) -> Path:
    real = os.path.realpath(target)
    for folder in log_set.directories:
        if os.path.realpath(folder) == real:
            return folder
    raise LogDirectoryError(
        f"{target} is no log directory of the set: expected one of "
        f"{', '.join(map(str, log_set.directories))}"
    )


def _found(
    log_set: LogSet, place: Path, topic: str, partition: int | None
) -> list[PartitionDirectory]:
    """Find the folders of a topic on the node of a log directory.

    Raises:
        UnknownTopicOrPartitionError: there is none.
        LogDirectoryError: a replica is not in sync: it lacks what is to be moved.
    """
    nodes = log_set.node.nodes()
    node = next(node for node, members in nodes.items() if place in members.values())
    found = [
        where
        for key, where in partitions_by_node(nodes).get(node, {}).items()
        if key.topic == topic
        and partition in {None, key.partition}
        and log_set.state.partition(*_named(where)) is not None
    ]
    if not found:
        name = topic if partition is None else f"{topic}-{partition}"
        raise UnknownTopicOrPartitionError(f"{name} has no folder that was written on that node")
    for where in found:
        known = log_set.state.topic(topic, read_topic_id(where.path))
        each = known.replicas.get(where.topic_partition.partition) if known else None
        if each is not None and node not in each.isr:
            raise LogDirectoryError(
                f"{where.topic_partition} is not in sync on node {node}: run `kafkalog recover`"
            )
    return found


def _named(where: PartitionDirectory) -> tuple[str, str | None, int]:
    name, number = where.topic_partition
    return name, read_topic_id(where.path), number


def _copied(
    log_set: LogSet, left: Sequence[PartitionDirectory], place: Path, room: CopyBudget
) -> list[MovedFolder]:
    """Copy folders, one after the other, as far as there is room; returns those that are whole."""
    moved = []
    for where in left:
        check_interrupt()
        log_set.verify_locks()
        finish_swap(where.path)
        end = log_set.state.log_end(*_named(where))
        assert end is not None  # noqa: S101 - it was looked for
        copy = _copy_of(place, where)
        try:
            seen = catch_up(where.path, copy, where.topic_partition, end, room)
        except CorruptRecordError as error:
            raise _unmoved(log_set, where, error) from error
        if seen is None:
            break
        check = partial(check_in_place, seen, place, where.topic_partition)
        moved.append(MovedFolder(where.topic_partition, where.path, copy, check))
    return moved


def _unmoved(
    log_set: LogSet, where: PartitionDirectory, error: CorruptRecordError
) -> CorruptRecordError:
    """Make the error about a partition that is damaged, and stays where it is."""
    way = (
        "`kafkalog recover` copies it from another replica"
        if log_set.state.is_replicated
        else "Restore that file from a copy; `kafkalog salvage` shows what would be lost without it"
    )
    return CorruptRecordError(
        f"{where.topic_partition} is damaged, and stays in {where.log_dir}: "
        f"{error.__cause__ or error}. {way}"
    )


def _copy_of(place: Path, where: PartitionDirectory) -> Path:
    """Return the folder of a copy: one that was begun; what it has of others is cut."""
    key = where.topic_partition
    begun = (each.name for each in entries_of(place) if parse_future_directory(each.name) == key)
    return place / next(begun, future_directory_name(*key, system.random_id().hex))
