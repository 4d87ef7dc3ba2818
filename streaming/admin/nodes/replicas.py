"""The replicas of a set: leaders, in-sync replicas, log ends, and whether bytes are equal."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from kafkalog.checkpoints.broker import (
    PARTITION_METADATA,
    RECOVERY_POINT,
    read_leader_epochs,
    read_offset_checkpoint,
    read_topic_id,
)
from kafkalog.checkpoints.commit_state import NO_LEADER, topic_key
from kafkalog.checkpoints.voters import find_voters, require_voters
from kafkalog.errors import CorruptRecordError, KafkaLogError, LogDirectoryError, OptionError
from kafkalog.files.deferred_signals import check_interrupt, shielded
from kafkalog.files.open_file import read_at
from kafkalog.files.regular import open_regular, read_regular
from kafkalog.model import ALL_TOPICS, TopicPartition, TopicSelection
from kafkalog.streaming.admin.old_segments import opened_logs
from kafkalog.streaming.log.files import (
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
    parse_base_offset,
)
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.store.log_dirs import partitions_by_node
from kafkalog.streaming.store.policy import WAIT_MS
from kafkalog.streaming.store.replicas.in_sync import lagging_replicas
from kafkalog.streaming.store.session import existing_log_dirs, parse_log_dirs
from kafkalog.streaming.store.topics import check_known

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kafkalog.checkpoints.commit_state import CommitState, ReplicaState, TopicState
    from kafkalog.checkpoints.voters import Voters
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.log.read.slice_reader import SegmentSlice
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.replicas.in_sync import Lagging


__all__ = [
    "CaughtUp",
    "NodeView",
    "Replicas",
    "ReplicasView",
    "catch_up_replicas",
    "compare_replicas",
    "differences",
    "inspect_replicas",
    "known_topic",
    "log_end_of",
    "progress_of",
    "replicas_of",
    "wrong_id",
]


# ----------------------------------------------------------------------------------------------
# Which replicas a set of several nodes has: who leads, who is in sync, how far each log goes.


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node: its log directories, as far as they were found; ``missing`` says why it is not there.

    ``missing`` is empty of one that is there.
    """

    node: int
    is_witness: bool
    directories: tuple[Path, ...]
    missing: str = ""


@dataclass(frozen=True, slots=True)
class ReplicasView:
    """A partition: nodes by their ids, offsets; a log end is None where it cannot be told.

    ``leader`` is -1 of a partition that has none.
    """

    key: TopicPartition
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader_epoch: int
    high_watermark: int
    log_ends: Mapping[int, int | None]
    missing: Mapping[int, str]
    """Why its nodes are not there, of those that are not."""
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    """Of one that moves, the nodes that it is added to, and those that it goes from."""

    @property
    def is_offline(self) -> bool:
        """Whether no replica in sync is there."""
        return self.leader == NO_LEADER or not {*self.isr} - self.missing.keys()

    @property
    def is_under_replicated(self) -> bool:
        """Whether not all of its replicas are there and in sync."""
        return len(self.isr) < len(self.replicas) or bool(self.missing)


@dataclass(frozen=True, slots=True)
class Replicas:
    """The nodes and partitions of a replicated set, and what a person should know."""

    nodes: tuple[NodeView, ...]
    partitions: tuple[ReplicasView, ...]
    problems: list[str] = field(default_factory=list)


def inspect_replicas(paths: Sequence[str], topics: TopicSelection = ALL_TOPICS) -> Replicas:
    """Look at the replicas of topics of a set; changes nothing.

    Fewer nodes than a majority are a problem that is named, and looked at all the same.

    Raises:
        LogDirectoryError: the directories are of different sets, or of none that is replicated.
        UnknownTopicOrPartitionError: there is no such topic.
    """
    directories = parse_log_dirs(paths)
    voters = require_voters(
        directories,
        "this is no replicated set. A path names the nodes of one with semicolons between them, in "
        "quotes on a command line",
    )
    check_known(voters.newest, directories, topics)
    folders = partitions_by_node(voters.live)
    partitions = tuple(
        _view(voters, key, each, folders)
        for key, each in replicas_of(voters.newest)
        if key.topic in topics
    )
    found = Replicas(tuple(_nodes(voters)), partitions)
    found.problems.extend(filter(None, [voters.too_few_text, voters.strangers_text]))
    try:
        voters.check_one_history()
    except LogDirectoryError as error:
        found.problems.append(str(error))
    return found


def replicas_of(state: CommitState) -> list[tuple[TopicPartition, ReplicaState]]:
    """List the replicas of all partitions that a state knows, in order."""
    return sorted(
        (TopicPartition(topic.name, number), each)
        for topic in state.topics.values()
        for number, each in topic.replicas.items()
    )


def known_topic(state: CommitState, key: TopicPartition) -> tuple[str, TopicState]:
    """Return a topic that is known, and the key under which the state has it."""
    return next((at, topic) for at, topic in state.topics.items() if topic.name == key.topic)


def _nodes(voters: Voters) -> Iterator[NodeView]:
    for node in voters.newest.nodes:
        live = voters.live.get(node.node_id, {})
        missing = voters.missing.get(node.node_id, "")
        yield NodeView(node.node_id, node.is_witness, tuple(live.values()), missing)


def _view(
    voters: Voters,
    key: TopicPartition,
    each: ReplicaState,
    folders: Mapping[int, Mapping[TopicPartition, PartitionDirectory]],
) -> ReplicasView:
    _, topic = known_topic(voters.newest, key)
    where = topic.partitions[key.partition]
    return ReplicasView(
        key,
        each.leader,
        each.replicas,
        each.isr,
        where.leader_epoch,
        where.high_watermark,
        {node: log_end_of(folders.get(node, {}).get(key)) for node in each.replicas},
        {node: voters.missing[node] for node in each.replicas if node in voters.missing},
        each.adding,
        tuple(node for node in each.removing if node in each.replicas),
    )


def log_end_of(where: PartitionDirectory | None) -> int | None:
    """Return where the log in a folder ends, in whole batches; None where that cannot be told."""
    if where is None:
        return None
    try:
        with PartitionLog(where.path, where.topic_partition) as log:
            return log.log_end().offset
    except (KafkaLogError, OSError):
        return None


# ----------------------------------------------------------------------------------------------
# Whether the replicas in sync of a partition hold the same bytes below the high watermark.


_PIECE_BYTES: Final = 1 << 20
_LARGEST_INDEX: Final = 1 << 30


def compare_replicas(
    paths: Sequence[str], topics: TopicSelection = ALL_TOPICS
) -> Iterator[tuple[TopicPartition, str]]:
    """Compare each replica in sync with its leader; yield what differs, for a person.

    Nothing is yielded for a set that is not replicated, nor for nodes that are away.

    Raises:
        LogDirectoryError: the directories are of different sets.
    """
    try:
        voters = find_voters(parse_log_dirs(paths))
    except OptionError:
        return  # in a store, where nothing is written, and so nothing replicated
    if voters is None:
        return
    folders = partitions_by_node(voters.live)
    for key, each in replicas_of(voters.newest):
        there = [node for node in each.isr if node in voters.live]
        if key.topic not in topics or not there:
            continue
        leader = each.leader if each.leader in there else there[0]
        id_key, known = known_topic(voters.newest, key)
        where = known.partitions[key.partition]
        source = folders.get(leader, {}).get(key)
        for node in there:
            found = folders.get(node, {}).get(key)
            if found is None:
                yield key, f"node {node} is in sync, and has no folder of it"
                continue
            if wrong := wrong_id(id_key, key, found.path):
                yield key, f"node {node} is in sync, and {wrong}"
            if source is not None and node != leader:
                span = where.log_start, where.high_watermark
                for text in differences(key, source.path, found.path, *span):
                    yield key, f"node {node} differs from node {leader}: {text}"


def wrong_id(expected: str, key: TopicPartition, folder: Path) -> str | None:
    """Say what is wrong with the topic id in a replica's folder; None if nothing is.

    ``expected`` is the key under which the state has the topic.
    """
    try:
        topic_id = read_topic_id(folder)
    except (KafkaLogError, OSError) as error:
        return f"its topic id cannot be read: {error}"
    if topic_key(key.topic, topic_id) == expected:
        return None
    path = folder / PARTITION_METADATA
    return f"{path} is missing" if topic_id is None else f"{path} has topic id {topic_id}"


def differences(
    key: TopicPartition, source: Path, target: Path, start: int, end: int
) -> Iterator[str]:
    """Yield what differs between the logs in two folders, from offset ``start`` to ``end``.

    Compared are the bytes of the segments, the indexes of those that are sealed, and the leader
    epochs that begin below ``end``.
    """
    try:
        with PartitionLog(source, key) as log:
            pieces = log.slices(max(start, log.log_start_offset), end) if end > start else []
    except (KafkaLogError, OSError) as error:
        yield f"it cannot be read there: {error}"
        return
    active = max(list_base_offsets(source), default=-1)
    for piece in pieces:
        check_interrupt()
        base = parse_base_offset(Path(piece.path).name, LOG)
        try:
            if base is not None:
                yield from _different_segment(source, target, base, piece, base < active)
        except (KafkaLogError, OSError) as error:
            yield f"{error}"
    try:
        one, other = (_epochs_below(end, folder) for folder in (source, target))
        if one != other:
            yield f"leader epochs {_shown(one)} and {_shown(other)}"
    except (KafkaLogError, OSError) as error:
        yield f"{error}"


def _epochs_below(end: int, folder: Path) -> list[object]:
    return [each for each in read_leader_epochs(folder) if each.start_offset < end]


def _shown(epochs: Sequence[object]) -> str:
    return ", ".join(map(str, epochs)) or "none"


def _different_segment(
    source: Path, target: Path, base: int, piece: SegmentSlice, is_sealed: bool
) -> Iterator[str]:
    name = file_name(base, LOG)
    size = piece.end_position if is_sealed else _size_below(source, base, piece.end_offset)
    at = _first_difference(source / name, target / name, size)
    if at is not None:
        yield f"{name} from byte {at} on"
    for suffix in (OFFSET_INDEX, TIME_INDEX, TXN_INDEX) if is_sealed else ():
        index = file_name(base, suffix)
        if _content(source / index) != _content(target / index):
            yield index


def _size_below(folder: Path, base: int, end: int) -> int:
    """Return up to which position an active segment has offsets below ``end``."""
    with LogSegment(folder, base) as segment:
        try:
            position = segment.translate_offset(end)
        except CorruptRecordError as error:  # a torn tail, above what is committed
            position = error.position
        return segment.size if position is None else position


def _content(path: Path) -> bytes | None:
    try:
        return read_regular(path, limit=_LARGEST_INDEX)
    except FileNotFoundError:
        return None


def _first_difference(one: Path, other: Path, size: int) -> int | None:
    """Return the first position at which two files differ, of the first ``size`` bytes."""
    files: list[int] = []
    try:
        files.extend(open_regular(path) for path in (one, other))
        found = min(os.fstat(file).st_size for file in files)
        for position in range(0, min(size, found), _PIECE_BYTES):
            length = min(_PIECE_BYTES, size - position, found - position)
            first, second = (bytes(read_at(file, position, length)) for file in files)
            if first != second:
                return position + next(n for n in range(length) if first[n] != second[n])
        return found if found < size else None
    finally:
        for file in files:
            os.close(file)


# ----------------------------------------------------------------------------------------------
# Bring replicas that lag in sync, while writers continue: what the job ``maintain`` does first.
#
# A commit copies some of what a replica lacks. Where that is much, or nobody writes, this
# continues: in sessions of bounded steps, between which writers get the locks.


_Replica: TypeAlias = "tuple[TopicPartition, int]"
"""A partition, and a node that it lies on."""


@dataclass(slots=True)
class CaughtUp:
    """What was done: a line for each replica in ``said``; ``problems`` for those that stay behind.

    ``missing`` says which nodes are not there, a line each.
    """

    said: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def catch_up_replicas(
    paths: Sequence[str], *, allows_broker: bool = False, wait_ms: int = WAIT_MS
) -> CaughtUp:
    """Bring all replicas in sync whose nodes are there; nothing is done with a set of one node.

    Args:
        paths: all log directories of the set.
        allows_broker: whether to do so though a broker had the directories last.
        wait_ms: how long each step waits for a writer of ours.

    Raises:
        KafkaLogError, OSError: the set cannot be opened, or its state not be published.
    """
    done = CaughtUp()
    earlier: object = None
    while True:
        step = _step(paths, allows_broker=allows_broker, wait_ms=wait_ms)
        done.said += [
            f"{key} is in sync on node {node}"
            for key, node in step.lagged
            if (key, node) not in step.lagging
        ]
        done.missing = step.missing
        if not step.lagging:
            return done
        if step.progress == earlier:
            done.problems += [f"{key} stays out of sync on node {n}" for key, n in step.lagging]
            return done
        earlier = step.progress


class _Step(NamedTuple):
    """Which replicas lagged before a step and after it, and how far these have come."""

    lagged: list[_Replica]
    lagging: list[_Replica]
    missing: list[str]
    progress: object = None


@shielded
def _step(paths: Sequence[str], *, allows_broker: bool, wait_ms: int) -> _Step:
    """Open the set once, which copies some, and publish what has come of it."""
    check_interrupt()
    directories = existing_log_dirs(paths)
    voters = find_voters(directories)
    if voters is None:
        return _Step([], [], [])
    newest = voters.newest
    lagged = _named(lagging_replicas(newest, voters.live))
    missing = [f"node {node} is not there: {why}" for node, why in sorted(voters.missing.items())]
    is_old = any(voters.sequence_of(node) < newest.sequence for node in voters.live)
    if not lagged and not is_old and not _differs(newest):
        return _Step([], [], missing)
    with opened_logs(
        paths,
        "kafkalog maintain",
        allows_broker=allows_broker,
        dry_run=False,
        wait_ms=wait_ms,
    ) as log_set:
        log_set.publish(log_set.state.following())
        left = list(lagging_replicas(log_set.state, log_set.node.nodes()))
        return _Step(lagged, _named(left), missing, progress_of(log_set, left))


def _named(lagging: Iterable[Lagging]) -> list[_Replica]:
    return [(each.key, each.node) for each in lagging]


def _differs(state: CommitState) -> bool:
    return any(each.rewritten.is_under_way for _, each in replicas_of(state))


def progress_of(log_set: LogSet, lagging: Iterable[Lagging]) -> object:
    """Return how far replicas have come: equal after a step that has brought none any further.

    That is how large their logs are, and up to where they were compared.
    """
    folders = partitions_by_node(log_set.node.nodes())
    found = []
    for key, node in _named(lagging):
        where = folders.get(node, {}).get(key)
        if where is None:
            continue
        sizes = [path.stat().st_size for path in sorted(where.path.glob(f"*{LOG}"))]
        point = read_offset_checkpoint(where.log_dir, RECOVERY_POINT).get(key, 0)
        found.append((key, node, tuple(sizes), point))
    return found
