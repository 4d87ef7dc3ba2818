"""Elect leaders on request: preferred ones, or one that lacks records.

A leader changes by itself only where it is lost, to a replica that is in sync. It comes back by
:func:`elect_preferred`. A partition whose replicas in sync are all away has no leader until one is
back. If they are lost for good, :func:`elect_unclean` continues with another replica, at the end of
what that one has: records are lost that were acknowledged.

Source: Kafka ``ElectionType``, ``kafka-leader-election.sh``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kafkalog.checkpoints.broker import read_leader_epochs, read_topic_id, write_leader_epochs
from kafkalog.checkpoints.commit_state import NO_LEADER, ReplicaState, Rewritten, topic_key
from kafkalog.checkpoints.state_file import load_state
from kafkalog.checkpoints.voters import require_voters
from kafkalog.errors import LogDirectoryError, UnknownTopicOrPartitionError
from kafkalog.files.deferred_signals import shielded
from kafkalog.files.regular import fsync_directory
from kafkalog.model import said_there
from kafkalog.streaming.admin.nodes.replicas import log_end_of, replicas_of
from kafkalog.streaming.log.files import SNAPSHOT, parse_base_offset
from kafkalog.streaming.log.recovery import cut_segment, remove_segment
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.store.broker_files import WrittenEnd, write_ends
from kafkalog.streaming.store.log_dirs import partitions_by_node
from kafkalog.streaming.store.policy import WAIT_MS, SetPolicy
from kafkalog.streaming.store.recovery.unsynced_tail import refuse_lost_tail
from kafkalog.streaming.store.replicas.copying import drop_recovery_points
from kafkalog.streaming.store.replicas.election import preferred
from kafkalog.streaming.store.session import existing_log_dirs, opened_set

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState, PartitionState
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet

__all__ = ["Elected", "elect_preferred", "elect_unclean"]


class Elected(NamedTuple):
    """A partition that got another leader; nodes by their ids, -1 for none.

    Offsets ``[end, end_before)`` are lost: none where both are the same.
    """

    key: TopicPartition
    leader_before: int
    leader: int
    leader_epoch: int
    end_before: int
    end: int


@shielded
def elect_preferred(
    paths: Sequence[str], *, dry_run: bool = False, wait_ms: int = WAIT_MS
) -> list[Elected]:
    """Let each partition be led by the first of its replicas that is in sync and there.

    Raises:
        KafkaLogError: this is no replicated set, or somebody else holds it.
    """
    with _opened(paths, dry_run=dry_run, wait_ms=wait_ms) as log_set:
        before, after = log_set.state, preferred(log_set.state, log_set.node.nodes())
        if after is not before and not dry_run:
            log_set.publish(after.following())
        return _differing(before, after)


@shielded
def elect_unclean(
    paths: Sequence[str],
    topic: str,
    partition: int | None = None,
    *,
    dry_run: bool = False,
    wait_ms: int = WAIT_MS,
) -> list[Elected]:
    """Continue partitions that have no leader with the replica that has most of them.

    Other partitions are left as they are. What the chosen replica holds above what its own node
    knows as committed is cut off.

    Raises:
        UnknownTopicOrPartitionError: the set does not know the topic or the partition.
        LogDirectoryError: no replica of a partition is there.
        KafkaLogError: this is no replicated set, or somebody else holds it.
    """
    with _opened(paths, dry_run=dry_run, wait_ms=wait_ms) as log_set:
        before = log_set.state
        state = before
        chosen = []
        for key, each in _named(before, topic, partition):
            if each.leader == NO_LEADER or not {*each.isr} & log_set.node.nodes().keys():
                node, where, end = _best(log_set, key, each)
                state = _continued(state, key, node, end)
                chosen.append((where, end))
        if chosen and not dry_run:
            for where, end in chosen:
                log_set.verify_locks()
                _distrust_others(log_set, where)
                _cut(where, end, log_set.state)
            write_ends(
                [WrittenEnd(w.log_dir, w.topic_partition, e) for w, e in chosen], durable=True
            )
            log_set.publish(state.following())
        return _differing(before, state)


def _distrust_others(log_set: LogSet, where: PartitionDirectory) -> None:
    for folder in log_set.directories:
        if folder != where.log_dir:
            with log_set.node.isolated_at(folder):
                drop_recovery_points([folder], where.topic_partition)


def _opened(paths: Sequence[str], *, dry_run: bool, wait_ms: int) -> AbstractContextManager[LogSet]:
    directories = existing_log_dirs(paths)
    require_voters(directories, "this is no replicated set, so there is no leader to elect")
    policy = SetPolicy.of_upkeep(wait_ms)
    return opened_set(
        directories,
        policy,
        refuse_lost_tail,
        holder="kafkalog node elect",
        dry_run=dry_run,
    )


def _differing(before: CommitState, after: CommitState) -> list[Elected]:
    known = dict(replicas_of(before))
    return [
        Elected(
            key,
            known[key].leader,
            each.leader,
            _standing(after, key).leader_epoch,
            _standing(before, key).log_end,
            _standing(after, key).log_end,
        )
        for key, each in replicas_of(after)
        if each != known[key]
    ]


def _standing(state: CommitState, key: TopicPartition) -> PartitionState:
    return state.topics[_key_of(state, key)].partitions[key.partition]


def _key_of(state: CommitState, key: TopicPartition) -> str:
    return state.key_of(key.topic, None)


def _named(
    state: CommitState, topic: str, partition: int | None
) -> Iterator[tuple[TopicPartition, ReplicaState]]:
    found = [
        (key, each)
        for key, each in replicas_of(state)
        if key.topic == topic and partition in {None, key.partition}
    ]
    if not found:
        name = topic if partition is None else f"{topic}-{partition}"
        known = said_there(topic, dict(replicas_of(state)))
        raise UnknownTopicOrPartitionError(f"the set has no {name}. {known}")
    yield from found


def _best(
    log_set: LogSet, key: TopicPartition, each: ReplicaState
) -> tuple[int, PartitionDirectory, int]:
    """Find the replica that has most of a partition, and up to where: what its own state knows."""
    ends = {}
    for node, folders in partitions_by_node(log_set.node.nodes()).items():
        where = folders.get(key)
        held = log_end_of(where)
        if node in each.replicas and where is not None and held is not None:
            topic_id = read_topic_id(where.path)
            own = load_state(where.log_dir)
            known = None if own is None else own.log_end(key.topic, topic_id, key.partition)
            is_same = topic_key(key.topic, topic_id) == _key_of(log_set.state, key)
            ends[node] = where, min(held, known or 0) if is_same else 0
    if not ends:
        raise LogDirectoryError(f"{key}: none of its replicas on nodes {[*each.replicas]} is there")
    node = max(ends, key=lambda each: ends[each][1])
    where, end = ends[node]
    start = _standing(log_set.state, key).log_start
    if end < start:
        raise LogDirectoryError(
            f"{key}: the log of node {node} ends at offset {end}, below the log start {start}: "
            "nothing in it counts any more"
        )
    return node, where, end


def _continued(state: CommitState, key: TopicPartition, node: int, end: int) -> CommitState:
    name = _key_of(state, key)
    topic, number = state.topics[name], key.partition
    before = topic.partitions[number]
    after = before._replace(
        high_watermark=min(before.high_watermark, end),
        log_end=end,
        leader_epoch=before.leader_epoch + 1,
    )
    # What others have of it may be of the same size, and other records.
    rewritten = Rewritten(state.sequence + 1)
    replicas = topic.replicas[number]._replace(leader=node, isr=(node,), rewritten=rewritten)
    changed = replace(
        topic,
        partitions={**topic.partitions, number: after},
        replicas={**topic.replicas, number: replicas},
        durable_ends={p: each for p, each in topic.durable_ends.items() if p != number},
    )
    return replace(state, topics={**state.topics, name: changed})


def _cut(where: PartitionDirectory, end: int, state: CommitState) -> None:
    """Cut a log at an offset at which a batch ends, and what is kept beside it."""
    folder = where.path
    bases = list_base_offsets(folder)
    kept = [base for base in bases if base < end] or bases[:1]
    for base in reversed(bases[len(kept) :]):
        remove_segment(folder, base)
    settings = state.topics[_key_of(state, where.topic_partition)].settings
    for base in kept[-1:]:
        with LogSegment(folder, base) as segment:
            position = segment.translate_offset(end)
        if position is not None:
            interval = LogConfig.of_topic(settings).index_interval_bytes
            cut_segment(folder, base, position, index_interval_bytes=interval)
    _forget_above(folder, end)
    fsync_directory(folder)


def _forget_above(folder: Path, end: int) -> None:
    for path in list(folder.iterdir()):
        offset = parse_base_offset(path.name, SNAPSHOT)
        if offset is not None and offset > end:
            path.unlink()
    epochs = read_leader_epochs(folder)
    left = [each for each in epochs if each.start_offset < end]
    if left != epochs:
        write_leader_epochs(folder, left)
