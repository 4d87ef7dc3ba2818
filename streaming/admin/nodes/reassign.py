"""Reassign partitions to other nodes of a set, or to other directories of a node, on request.

A commit notes which replicas a partition is to have. New ones are caught up as any replica that
lags: here, in bounded steps between which writers have their turn, and by the commits of others. It
is done with the commit in which all that it is to have are in sync; the others go with it. So
whatever is killed amid this, the next call continues: what was copied is not copied again.

With a rate only the calls of this module copy, so many bytes a second.

Source: Kafka ``ReplicationControlManager.alterPartitionReassignments``, ``PartitionReassignment``.
"""

from __future__ import annotations

import json
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.checkpoints.voters import require_voters
from kafkalog.errors import (
    CorruptRecordError,
    LogDirectoryError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.deferred_signals import check_interrupt, pause, shielded
from kafkalog.files.system import system
from kafkalog.model import TopicPartition, said_there
from kafkalog.streaming.admin.nodes.replicas import progress_of, replicas_of
from kafkalog.streaming.commit.tail_recovery import remedy_of
from kafkalog.streaming.log.files import future_directory_name, parse_future_directory
from kafkalog.streaming.log.log_dir import entries_of
from kafkalog.streaming.log.swap import finish_swap
from kafkalog.streaming.options.quantities import RepeatedNameError, parse_json
from kafkalog.streaming.store.folder_changes import MovedFolder, put_in_place
from kafkalog.streaming.store.log_dirs import partitions_by_node
from kafkalog.streaming.store.policy import WAIT_MS, SetPolicy
from kafkalog.streaming.store.recovery.unsynced_tail import refuse_lost_tail
from kafkalog.streaming.store.replicas.copying import CopyBudget
from kafkalog.streaming.store.replicas.election import changed_topics, data_nodes, led
from kafkalog.streaming.store.replicas.in_sync import (
    COPIED_BYTES,
    catch_up,
    check_in_place,
    lagging_replicas,
)
from kafkalog.streaming.store.replicas.open_nodes import QuorumSession
from kafkalog.streaming.store.session import existing_log_dirs, opened_set, require_commit_state

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState, PartitionState, ReplicaState
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.replicas.election import Changed

__all__ = [
    "Move",
    "Moving",
    "MovingFolder",
    "cancel_moves",
    "check_moves",
    "check_places",
    "inspect_moves",
    "known_state",
    "move_folders",
    "move_planned",
    "moves_of_topic",
    "parse_plan",
    "reassign",
]

_ANY: Final = "any"
_KINDS: Final = {"topic": str, "partition": int, "replicas": list, "log_dirs": list}
_ACCEPTS: Final = {
    "topic": "a text",
    "partition": "a number",
    "replicas": "a list of numbers",
    "log_dirs": "a list of texts",
}
_FIELDS: Final = _KINDS.keys()


class Move(NamedTuple):
    """A partition, and the nodes that are to hold it, the preferred leader first.

    ``log_dirs`` are where, for each of them; None where that does not matter.
    """

    key: TopicPartition
    replicas: tuple[int, ...]
    log_dirs: tuple[str | None, ...] = ()


def parse_plan(text: str) -> list[Move]:
    """Parse a plan.

    Raises:
        OptionError: it is none, or names a partition or a node twice.
    """
    try:
        plan = parse_json(text)
    except RepeatedNameError as error:
        raise _no_plan(str(error)) from None
    except (ValueError, RecursionError):
        raise _no_plan("it is no JSON") from None
    moves = [_parse_move(each) for each in _partitions_of(plan)]
    keys = [move.key for move in moves]
    for key in keys:
        if keys.count(key) > 1:
            raise OptionError(f"the plan names {key} twice")
    return moves


def _no_plan(why: str) -> OptionError:
    return OptionError(
        f"no plan of partitions: {why}. Expected, as kafka-reassign-partitions does, "
        '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[0,1]}]}'
    )


def _partitions_of(plan: Any) -> list[Any]:  # noqa: ANN401 - what JSON has
    if not isinstance(plan, dict) or not isinstance(plan.get("partitions"), list):
        raise _no_plan('it is no object with a list "partitions"')
    version = plan.get("version", 1)
    if version != 1:
        raise _no_plan(f"its version is {json.dumps(version):.20}, not 1")
    partitions: list[Any] = plan["partitions"]
    return partitions


def _parse_move(line: Any) -> Move:  # noqa: ANN401 - what JSON has
    shown = f"{json.dumps(line):.100}"
    if not isinstance(line, dict):
        raise _no_plan(f"{shown} is no partition")
    if unknown := sorted(line.keys() - _FIELDS):
        raise _no_plan(f'a partition has "{unknown[0]:.40}"')
    for name, kind in _KINDS.items():
        if type(line.get(name)) is not kind and (name in line or name != "log_dirs"):
            raise _no_plan(f'{shown} lacks "{name}", {_ACCEPTS[name]}')
    key = TopicPartition(line["topic"], line["partition"])
    replicas, log_dirs = tuple(line["replicas"]), tuple(line.get("log_dirs", ()))
    if not all(type(each) is int for each in replicas):
        raise _no_plan(f'{shown} lacks "replicas", {_ACCEPTS["replicas"]}')
    if not all(isinstance(each, str) for each in log_dirs):
        raise _no_plan(f'{shown} lacks "log_dirs", {_ACCEPTS["log_dirs"]}')
    if log_dirs and len(log_dirs) != len(replicas):
        raise _no_plan(f"{key} has {len(replicas)} replicas and {len(log_dirs)} log_dirs")
    return Move(key, replicas, tuple(None if each == _ANY else each for each in log_dirs))


def moves_of_topic(
    state: CommitState, topic: str, partition: int | None, replicas: Sequence[int]
) -> list[Move]:
    """Return the plan that lets some nodes hold a topic, or one partition of it.

    Leaders are spread: each partition begins with the next of the nodes.

    Raises:
        UnknownTopicOrPartitionError: the set does not know it.
    """
    known = [each for each in state.topics.values() if each.name == topic]
    numbers = sorted(n for each in known for n in each.replicas if partition in {None, n})
    if not numbers:
        name = topic if partition is None else f"{topic}-{partition}"
        raise UnknownTopicOrPartitionError(
            f"the set has no {name}. {said_there(topic, dict(replicas_of(state)))}"
        )
    return [
        Move(TopicPartition(topic, n), _turned(replicas, n if partition is None else 0))
        for n in numbers
    ]


def _turned(nodes: Sequence[int], steps: int) -> tuple[int, ...]:
    turn = steps % len(nodes) if nodes else 0
    return (*nodes[turn:], *nodes[:turn])


def check_moves(state: CommitState, moves: Iterable[Move]) -> None:
    """Refuse what a set cannot do.

    Raises:
        UnknownTopicOrPartitionError: it does not know a partition.
        OptionError: it does not know a node; or one is a witness, or named twice.
    """
    there = dict(replicas_of(state))
    able = data_nodes(state)
    for key, replicas, _ in moves:
        if key not in there:
            known = said_there(key.topic, there)
            raise UnknownTopicOrPartitionError(f"the set has no {key}. {known}")
        if not replicas or len({*replicas}) < len(replicas):
            raise OptionError(
                f"{key} is to lie on nodes {[*replicas]}: expected each node once, and one at least"
            )
        for node in replicas:
            if node not in able:
                raise OptionError(
                    f"{key} is to lie on node {node}: expected one of {able}, the nodes that hold "
                    "partitions"
                )


# ----------------------------------------------------------------------------------------------

_HOLDER: Final = "kafkalog node reassign"
_NO_OTHER_NODE: Final = (
    "this is no replicated set, and its partitions have no other node to move to"
)


class Moving(NamedTuple):
    """A partition that moves, or is to lie somewhere: nodes by their ids.

    ``replicas`` are those that it is to have, ``adding`` and ``removing`` those that are new and
    that go, ``isr`` those in sync. ``is_done``: it lies there.
    """

    key: TopicPartition
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    isr: tuple[int, ...]
    is_done: bool


@shielded
def reassign(
    paths: Sequence[str],
    moves: Sequence[Move] = (),
    *,
    rate: int | None = None,
    dry_run: bool = False,
    wait_ms: int = WAIT_MS,
) -> list[Moving]:
    """Let partitions lie where ``moves`` say, and continue what was begun; none: only that.

    ``rate`` is how many bytes a second are copied to new replicas, 0 for as many as go; None leaves
    it as it is. Returns what moves and what has moved, when all is done, or when what is left needs
    nodes that are away. With ``dry_run`` nothing is changed.

    Raises:
        OptionError, UnknownTopicOrPartitionError: it cannot lie there.
        LogDirectoryError: a partition moves elsewhere already.
        KafkaLogError: this is no replicated set, or somebody else holds it.
    """
    directories = _nodes_of(paths)
    if dry_run:
        state = _held(directories, wait_ms).inspect(refuse_lost_tail).state
        after = _started(state, moves, rate)
        return _moving(after, {move.key for move in moves} | {*_moving_keys(after)})
    keys = {move.key for move in moves}
    if moves or rate is not None:
        with _held(directories, wait_ms) as held:
            log_set = held.open(refuse_lost_tail)
            after = _started(log_set.state, moves, rate)
            if after is not log_set.state:
                log_set.publish(after.following())
    earlier: object = None
    while True:
        check_interrupt()
        step = _step(directories, wait_ms)
        keys |= step.keys
        if step.is_over or step.progress == earlier:
            return _moving(step.state, keys)
        earlier = step.progress
        pause(step.rest_s)


@shielded
def cancel_moves(
    paths: Sequence[str], *, dry_run: bool = False, wait_ms: int = WAIT_MS
) -> list[Moving]:
    """Let all partitions that move stay where they were.

    Raises:
        LogDirectoryError: the only replica of one that is in sync is a new one.
        KafkaLogError: this is no replicated set, or somebody else holds it.
    """
    directories = _nodes_of(paths)
    if dry_run:
        state = _held(directories, wait_ms).inspect(refuse_lost_tail).state
        return _moving(_cancelled(state, {*state.node_of_member.values()}), {*_moving_keys(state)})
    with _held(directories, wait_ms) as held:
        log_set = held.open(refuse_lost_tail)
        keys = {*_moving_keys(log_set.state)}
        after = _cancelled(log_set.state, log_set.node.nodes())
        if after is not log_set.state:
            log_set.publish(after.following())
    return _moving(_step(directories, wait_ms).state, keys)


def inspect_moves(paths: Sequence[str], moves: Sequence[Move] = ()) -> list[Moving]:
    """Say how far partitions are: those of ``moves``, or all that move; changes nothing.

    Raises:
        LogDirectoryError: this is no replicated set, or fewer than a majority of its nodes are
            there.
        OptionError, UnknownTopicOrPartitionError: they cannot lie there.
    """
    state = known_state(paths)
    check_moves(state, moves)
    asked = {move.key: move.replicas for move in moves}
    found = _moving(state, {*asked} or {*_moving_keys(state)})
    return [
        each._replace(is_done=each.is_done and asked.get(each.key, each.replicas) == each.replicas)
        for each in found
    ]


def known_state(paths: Sequence[str]) -> CommitState:
    """Return the newest state of a replicated set.

    Raises:
        LogDirectoryError: it is none, or fewer than a majority of its nodes are there.
    """
    voters = require_voters(existing_log_dirs(paths), _NO_OTHER_NODE)
    voters.check_majority()
    return voters.newest


def _nodes_of(paths: Sequence[str]) -> list[Path]:
    directories = existing_log_dirs(paths)
    require_voters(directories, _NO_OTHER_NODE)
    return directories


def _held(directories: Sequence[Path], wait_ms: int) -> QuorumSession:
    return QuorumSession(directories, SetPolicy.of_upkeep(wait_ms), holder=_HOLDER)


class _Step(NamedTuple):
    """What a step has come to; ``rest_s`` is how long to rest before another one (seconds).

    ``keys`` are the partitions that moved before it.
    """

    state: CommitState
    keys: set[TopicPartition]
    is_over: bool
    progress: object
    rest_s: float


def _step(directories: Sequence[Path], wait_ms: int) -> _Step:
    """Copy some bytes, and publish what that has brought about."""
    begun = system.monotonic()
    with _held(directories, wait_ms) as held:
        before = require_voters(directories).newest
        rates = [each.rate for _, each in replicas_of(before) if each.is_moving]
        rate = max(rates, default=0)
        size = rate or COPIED_BYTES
        room = CopyBudget(size)
        log_set = held.open(refuse_lost_tail, room=room)
        if log_set.state.topics != before.topics:
            log_set.publish(log_set.state.following())
        copied, state = size - room.left, log_set.state
        is_over = not any(each.is_moving for _, each in replicas_of(state)) and not _left(log_set)
        progress = _progress(log_set)
    seconds = max(0.0, copied / rate - (system.monotonic() - begun)) if rate else 0.0
    return _Step(state, {*_moving_keys(before)}, is_over, progress, seconds)


def _progress(log_set: LogSet) -> object:
    """Return what differs as long as steps bring anything about, whatever writers do meanwhile.

    A step that has copied bytes may have done nothing: they do not fit on a disk that is full.
    """
    nodes = {
        key: (each.replicas, each.isr, each.removing) for key, each in replicas_of(log_set.state)
    }
    lagging = lagging_replicas(log_set.state, log_set.node.nodes(), moves_slowly=True)
    return nodes, progress_of(log_set, lagging)


def _left(log_set: LogSet) -> bool:
    """Whether a node that is there has the folder of a partition that has moved away."""
    live = log_set.node.nodes()
    return any(node in live for _, each in replicas_of(log_set.state) for node in each.left)


def _started(state: CommitState, moves: Sequence[Move], rate: int | None) -> CommitState:
    """Return the state in which partitions begin to move; the very same where nothing is new."""
    check_moves(state, moves)
    asked = {move.key: move.replicas for move in moves}

    def change(topic: str, number: int, each: ReplicaState, where: PartitionState) -> Changed:
        after = _with_added_replicas(each, asked.get(TopicPartition(topic, number), each.target))
        if after is None:
            raise LogDirectoryError(
                f"{topic}-{number} moves to nodes {[*each.target]} already, and that has not come "
                "to its end: `kafkalog node reassign PATH` continues it, and `kafkalog node "
                "reassign PATH --cancel` lets all that moves stay where it was"
            )
        if rate is not None:
            after = after._replace(rate=rate)
        return (after if after.adding else after._replace(rate=0)), where

    return changed_topics(state, change)


def _with_added_replicas(each: ReplicaState, target: tuple[int, ...]) -> ReplicaState | None:
    """Return the replicas of a partition that begins to move; None if it moves elsewhere."""
    if target == each.target:
        return each
    if each.is_moving:
        return None
    before = tuple(node for node in each.replicas if node not in target)
    return each._replace(
        replicas=(*target, *before),
        adding=tuple(node for node in target if node not in each.replicas),
        removing=(*before, *(node for node in each.left if node not in target)),
    )


def _cancelled(state: CommitState, live: Container[int]) -> CommitState:
    def change(topic: str, number: int, each: ReplicaState, where: PartitionState) -> Changed:
        if not each.is_moving:
            return each, where
        isr = tuple(node for node in each.isr if node not in each.adding)
        if not isr:
            raise LogDirectoryError(
                f"{topic}-{number} is in sync on nodes {[*each.isr]} only, to which it moves: it "
                "cannot stay where it was"
            )
        replicas = tuple(node for node in each.replicas if node not in each.adding)
        removing = (*each.adding, *each.left)
        kept = each._replace(replicas=replicas, isr=isr, adding=(), removing=removing, rate=0)
        return led(kept, where, live)

    return changed_topics(state, change)


def _moving_keys(state: CommitState) -> list[TopicPartition]:
    return [key for key, each in replicas_of(state) if each.is_moving]


def _moving(state: CommitState, keys: Collection[TopicPartition]) -> list[Moving]:
    return [
        Moving(
            key,
            each.target,
            each.adding,
            tuple(node for node in each.removing if node in each.replicas),
            each.isr,
            not each.is_moving,
        )
        for key, each in replicas_of(state)
        if key in keys
    ]


# ----------------------------------------------------------------------------------------------
# Move partitions to another log directory of their node, on request.
#
# A partition is copied to a folder that ends in ``-future``, as a broker does it, in bounded steps
# between which writers have their turn. When the copy is whole it becomes the partition's folder,
# and the other one is removed. Whatever is killed amid this, the next call continues with the copy.


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
    directories = existing_log_dirs(paths)
    require_commit_state(directories)
    policy = SetPolicy.of_upkeep(wait_ms)
    done: list[MovingFolder] = []
    while True:
        check_interrupt()
        begun, room = system.monotonic(), CopyBudget(rate or COPIED_BYTES)
        with opened_set(
            directories, policy, refuse_lost_tail, holder=_HOLDER, dry_run=dry_run
        ) as log_set:
            place = _place_of(log_set, target)
            found = _found(log_set, place, topic, partition)
            left = [each for each in found if each.log_dir != place]
            if dry_run:
                return [MovingFolder(each.topic_partition, each.log_dir, place) for each in left]
            moved = _moved(log_set, left, place, room)
        done += moved
        if len(moved) == len(left):
            return done
        pause(max(0.0, (rate - room.left) / rate - (system.monotonic() - begun)) if rate else 0.0)


def _moved(
    log_set: LogSet, left: Sequence[PartitionDirectory], place: Path, room: CopyBudget
) -> list[MovingFolder]:
    """Copy as far as there is room, and put in place what is whole; returns that."""
    moved = _copied(log_set, left, place, room)
    if moved:
        put_in_place(log_set, moved)
    return [MovingFolder(each.topic_partition, each.log_dir, place) for each in left[: len(moved)]]


@shielded
def check_places(paths: Sequence[str], moves: Sequence[Move]) -> None:
    """Refuse a plan that names log directories which its nodes have not.

    Raises:
        LogDirectoryError: it does; or fewer than a majority of the nodes are there.
        KafkaLogError: the directories are no set, or their state cannot be trusted.
    """
    if not any(any(move.log_dirs) for move in moves):
        return
    directories = existing_log_dirs(paths)
    require_commit_state(directories)
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
    way = remedy_of(
        log_set.state,
        "Restore that file from a copy; `kafkalog salvage` shows what would be lost without it",
        "`kafkalog recover` copies it from another replica",
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
