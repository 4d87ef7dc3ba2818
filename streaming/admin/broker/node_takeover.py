"""Take the nodes of a replicated set over again from the brokers that had them.

Each broker has written to its own node. Of each partition the replica with the highest leader epoch
is the truth, and of several the longest: whoever was elected had all that was acknowledged before,
and its followers have none of its epoch that it has not had. The others become equal to it: what
differs is cut, what lacks is copied.

An epoch counts by ``leader-epoch-checkpoint``, as far as the log goes: a log that a loss of power
has cut below the beginning of an epoch has nothing of it.

Until the last step the state says that the cluster has the set, so no writer of ours continues, and
a takeover that was cut off is run again: to make others equal changes no truth.

Source: Kafka ``LeaderEpochFileCache``, ``LeaderEndPoint``; KIP-101, KIP-279.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import (
    read_leader_epochs,
    read_topic_id,
    remove_clean_shutdown_marker,
    write_leader_epochs,
    write_topic_id,
)
from kafkalog.checkpoints.commit_state import ReplicaState, Rewritten, TopicState, topic_key
from kafkalog.errors import KafkaLogError, LogDirectoryError
from kafkalog.model import TopicPartition, partition_directory_name
from kafkalog.streaming.admin.broker.handover_state import (
    changed_settings,
    moved_ends,
    newest_view,
    opened_nodes,
    sync_folder,
    with_broker_settings,
    write_broker_checkpoints,
)
from kafkalog.streaming.admin.broker.open_transactions import (
    EndedTransactions,
    end_transactions_of,
)
from kafkalog.streaming.admin.groups import empty_groups
from kafkalog.streaming.admin.recovery import Preview, RecoveryReport, put_in_order
from kafkalog.streaming.commit.tail_recovery import check_no_open_transaction
from kafkalog.streaming.store.log_dirs import (
    LogDirs,
    choose_directory,
    partitions_by_node,
    without_deleted,
)
from kafkalog.streaming.store.log_set import LogSet
from kafkalog.streaming.store.nodes import Node, handover_is_over, is_being_handed_over
from kafkalog.streaming.store.replicas.copying import CopyBudget
from kafkalog.streaming.store.replicas.in_sync import ALL_BYTES, catch_up, check_in_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.checkpoints.voters import Voters
    from kafkalog.streaming.admin.broker.open_transactions import TransactionEnds
    from kafkalog.streaming.coordinator.cluster_metadata import ClusterView
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.recovery.partition_states import PartitionEnd

__all__ = ["take_over_nodes"]

_HOLDER: Final = "kafkalog broker takeover"


@dataclass(slots=True)
class _Found:
    """What the nodes hold: each partition's replicas by node, and the one that counts."""

    replicas: dict[TopicPartition, dict[int, PartitionEnd]] = field(default_factory=dict)
    truth: dict[TopicPartition, tuple[int, PartitionEnd]] = field(default_factory=dict)
    forgotten: list[str] = field(default_factory=list)
    """The keys of topics that the cluster has deleted."""


class _OneNode(LogSet):
    """A node as if it were a set of its own: what lies in it counts, whoever leads."""

    def partitions(self) -> Mapping[TopicPartition, PartitionDirectory]:
        """Find all partitions in the node's directories, also those that the state does not know.

        Folders of topics that are being deleted are none.
        """
        (found,) = partitions_by_node({0: self.members}).values()
        return without_deleted(found, self.state)


def take_over_nodes(
    directories: Sequence[Path],
    before: Voters,
    metadata: Sequence[Path],
    ends: Callable[[LogSet], TransactionEnds | None],
    *,
    dry_run: bool,
    wait_ms: int,
) -> RecoveryReport:
    """Let our sink continue on nodes after the brokers of a cluster, which have stopped.

    ``before`` are the nodes as they are found. ``metadata`` are directories with copies of the
    cluster's metadata log, where the nodes have none: topics get their settings from there.
    ``ends`` tells how open transactions of the truth end, or None if they are not to be ended.
    Where a problem was found nothing is taken over.

    Raises:
        LogDirectoryError: a node is not there, a broker is still running, or the set was not
            handed over.
        KafkaLogError, OSError: a replica cannot be read or written; the takeover is run again.
    """
    look = RecoveryReport().look(mends=not dry_run)
    with opened_nodes(
        directories, before, look, holder=_HOLDER, wait_ms=wait_ms, dry_run=dry_run
    ) as log_set:
        done = RecoveryReport(log_set.state.set_id)
        if not log_set.state.handed_to:
            _check_was_handed_over(log_set, before)
        else:
            found = _Found(_replicas(log_set, done, dry_run=dry_run))
            truth, known = _chosen(log_set, found, done, metadata, ends)
            if not done.problems:
                state = _taken(log_set.state, found, [*directories, *metadata])
                _note(log_set.state, state, found, done)
                if not dry_run:
                    _settle(log_set, truth, known)
                    _take(log_set, found, state)
        if not done.problems and not dry_run:
            _end(log_set, done)
        return done


def _chosen(
    log_set: LogSet,
    found: _Found,
    done: RecoveryReport,
    metadata: Sequence[Path],
    ends: Callable[[LogSet], TransactionEnds | None],
) -> tuple[dict[TopicPartition, tuple[int, PartitionEnd]], TransactionEnds | None]:
    """Choose the replicas that count, and foresee how open transactions of them end."""
    if not done.problems:
        _choose(log_set, found, done, metadata)
    truth, known = dict(found.truth), ends(log_set)
    if not done.problems:
        _foresee_ends(found, known, done)
    return truth, known


def _note(before: CommitState, state: CommitState, found: _Found, done: RecoveryReport) -> None:
    done.partitions = [each for _, (_, each) in sorted(found.truth.items())]
    done.written += _changes(before, state, found)


def _check_was_handed_over(log_set: LogSet, before: Voters) -> None:
    """Refuse a set that is ours: its state says who is in sync, which no broker has changed.

    One whose takeover was cut off after it was published, or is so only now, comes to its end.
    """
    if before.newest.handed_to:
        return
    if not any(is_being_handed_over(folder) for folder in log_set.directories):
        raise LogDirectoryError(
            f"{', '.join(map(str, log_set.directories))}: set {log_set.state.set_id} was not "
            "handed over to a cluster, or was taken over since: there is nothing to take over. "
            "Nothing was changed"
        )


def _replicas(
    log_set: LogSet, done: RecoveryReport, *, dry_run: bool
) -> dict[TopicPartition, dict[int, PartitionEnd]]:
    """Bring the end of every log of every node in order, each by itself; note problems.

    An open transaction is none: the replica that counts may have the marker that ends it. The
    cluster's ``__consumer_offsets`` becomes a topic of the set, as each that it has made.
    """
    ends: dict[TopicPartition, dict[int, PartitionEnd]] = {}
    order = partial(put_in_order, takes_over=True, takes_positions=True, ends_open=True)
    for node, members in log_set.node.nodes().items():
        one = _OneNode(_without_ends(log_set.state), Node(members), log_set.verify_locks)
        preview = Preview(one, takes_over=True, ends_open=True) if dry_run else None
        mended = order(one, RecoveryReport(), preview=preview)
        done.skipped += mended.skipped
        done.problems += [f"node {node}: {problem}" for problem in mended.problems]
        for each in (*mended.partitions, *mended.positions):
            ends.setdefault(each.topic_partition, {})[node] = each
    return dict(sorted(ends.items()))


def _without_ends(state: CommitState) -> CommitState:
    """Return a state by which one node is looked at: nothing is committed that it has to have."""
    topics = {
        key: replace(
            topic,
            partitions={
                number: where._replace(log_start=0, high_watermark=0, log_end=0)
                for number, where in topic.partitions.items()
            },
            durable_ends={},
            replicas={},
        )
        for key, topic in state.topics.items()
    }
    return replace(state, topics=topics, nodes=())


def _choose(log_set: LogSet, found: _Found, done: RecoveryReport, metadata: Sequence[Path]) -> None:
    """Choose the truth of each partition, or note why there is none."""
    view = newest_view(log_set.directories, metadata)
    for key, by_node in found.replicas.items():
        able = _of_one_topic(log_set.state, key, by_node, view)
        if able:
            found.truth[key] = _truth(log_set.state, able)
            continue
        named = ", ".join(f"{each.key} on node {n}" for n, each in by_node.items())
        done.problems.append(
            f"{key} has the topic ids {named}, and nothing says which is the cluster's. Name a "
            "copy of its metadata with --cluster-metadata, or move the folders of a topic that was "
            "deleted away; if a handover was cut off, run `kafkalog broker handover` again"
        )
    done.problems += _fallen_back(log_set.state, found)
    there = {each.key for _, each in found.truth.values()}
    for name, topic in log_set.state.topics.items():
        if there & {name, *_other_keys(log_set.state, name)}:
            continue
        if view is None or name in view.names:
            done.problems.append(f"no node has a folder of topic {topic.name!r}")
        else:
            found.forgotten.append(name)


def _of_one_topic(
    state: CommitState,
    key: TopicPartition,
    by_node: Mapping[int, PartitionEnd],
    view: ClusterView | None,
) -> dict[int, PartitionEnd]:
    """Return the replicas of the topic that the cluster has now; none where that cannot be told.

    A handover that was cut off has given some folders the cluster's id: the state knows both then.
    """
    same = {name for name, topic in state.topics.items() if topic.name == key.topic}
    ids = {each.key for each in by_node.values()}
    now = ids | same if len(same) > 1 else ids
    if len(now) > 1:
        now = set() if view is None else now & view.names.keys()
    if len(now) != 1:
        return {}
    (name,) = now
    of_it = {name, *same} if name in same else {name}
    return {n: replace(each, key=name) for n, each in by_node.items() if each.key in of_it}


def _other_keys(state: CommitState, key: str) -> Iterator[str]:
    """Return under what else a topic is known, where a handover that gave it an id was cut off."""
    name = state.topics[key].name
    return (other for other, each in state.topics.items() if each.name == name and other != key)


def _truth(state: CommitState, able: Mapping[int, PartitionEnd]) -> tuple[int, PartitionEnd]:
    """Return the node with the highest epoch, of those the longest log, and its replica."""

    def rank(node: int) -> tuple[int, int, bool]:
        each = able[node]
        topic, number = state.topics.get(each.key), each.topic_partition.partition
        replicas = None if topic is None else topic.replicas.get(number)
        leads = replicas is not None and replicas.leader == node
        return _epoch_of(each), each.end, leads

    node = max(able, key=rank)
    return node, able[node]


def _epoch_of(each: PartitionEnd) -> int:
    """Return the last leader epoch that a log has come to."""
    epochs = [e.epoch for e in read_leader_epochs(each.where.path) if e.start_offset <= each.end]
    return epochs[-1] if epochs else 0


def _fallen_back(state: CommitState, found: _Found) -> Iterator[str]:
    """Say which partitions have less than was committed when they were handed over."""
    for key, (node, each) in found.truth.items():
        topic = state.topics.get(each.key)
        known = None if topic is None else topic.partitions.get(key.partition)
        if known is not None and each.end < known.log_end:
            yield (
                f"{key} ends at offset {each.end} on node {node}, which has most of it, yet "
                f"everything below {known.log_end} was committed when it was handed over: put the "
                "folder of one that has it back"
            )


def _taken(state: CommitState, found: _Found, settings_in: Sequence[Path]) -> CommitState:
    """Return the state that commits what the truth holds, with all replicas in sync.

    Topics get their settings from the metadata logs in ``settings_in``.
    """
    topics: dict[str, TopicState] = {
        key: topic
        for key, topic in state.topics.items()
        if key not in found.forgotten and not _is_former(state, key, found)
    }
    names = {key.topic for key in found.truth}
    for name, known in list(topics.items()):
        if known.name in names:
            topics[name] = replace(
                known, partitions={}, replicas={}, durable_ends={}, cluster_epochs={}
            )
    for key, (node, each) in found.truth.items():
        number = key.partition
        before = state.topics.get(each.key, TopicState(key.topic))
        where = each.committed
        if number in before.partitions:
            where = where.starting_at(before.partitions[number].log_start)
        topic = topics.get(each.key, TopicState(key.topic))
        replicas = _replicas_of(before.replicas.get(number), node, found.replicas[key])
        # A broker compacts each replica by itself, so older copies may differ from early on.
        replicas = replicas._replace(rewritten=Rewritten(state.sequence + 1))
        topics[each.key] = replace(
            topic,
            partitions={
                **topic.partitions,
                number: where._replace(leader_epoch=_epoch_of(each)),
            },
            replicas={**topic.replicas, number: replicas},
        )
    taken = replace(state, topics=topics, handed_to="").with_boot(state.boot)
    return with_broker_settings(taken, settings_in)


def _is_former(state: CommitState, key: str, found: _Found) -> bool:
    """Whether no folder is of a topic's id any more, but of another one that the topic got."""
    there = {each.key for _, each in found.truth.values()}
    return key not in there and any(other in there for other in _other_keys(state, key))


def _replicas_of(
    known: ReplicaState | None, node: int, by_node: Mapping[int, PartitionEnd]
) -> ReplicaState:
    """Return who has a partition: whoever had, and whoever has a folder of it now."""
    former = (node,) if known is None else known.replicas
    replicas = (*former, *(each for each in by_node if each not in former))
    leader = node if known is None or known.leader not in replicas else known.leader
    return ReplicaState(leader, replicas, replicas)


def _changes(before: CommitState, state: CommitState, found: _Found) -> Iterator[str]:
    yield from moved_ends(before, state)
    yield from changed_settings(before, state)
    for key, (node, each) in found.truth.items():
        ends = {n: other.end for n, other in found.replicas[key].items() if other.end != each.end}
        for other, end in ends.items():
            yield f"{key} of node {other}, which ends at offset {end}, becomes that of node {node}"
    for name in found.forgotten:
        yield f"topic {before.topics[name].name} was deleted in the cluster, and is forgotten"


def _take(log_set: LogSet, found: _Found, state: CommitState) -> None:
    """Make all replicas equal to the truth, durably, and publish the state that says so."""
    log_set.check_current()
    nodes = log_set.node.nodes()
    folders = partitions_by_node(nodes)
    checks: list[Callable[[], None]] = []
    for key, (node, each) in found.truth.items():
        for other in state.topics[each.key].replicas[key.partition].replicas:
            if other != node:
                log_set.verify_locks()
                target = folders[other].get(key)
                path = target.path if target else _new_place(key, nodes[other])
                room = CopyBudget(ALL_BYTES)
                seen = catch_up(each.where.path, path, key, each.end, room, trusts=False)
                assert seen is not None  # noqa: S101 - there is room for all
                checks.append(partial(check_in_place, seen, path.parent, key))
                sync_folder(path)
        sync_folder(each.where.path)
    log_set.verify_locks()
    for check in checks:
        check()
    _tell(log_set, state)
    log_set.publish(state.following())


def _end(log_set: LogSet, done: RecoveryReport) -> None:
    """Do what is left once the set is ours again."""
    for folder in log_set.directories:
        handover_is_over(folder)
    done.written += empty_groups(log_set)


def _tell(log_set: LogSet, state: CommitState) -> None:
    """Let checkpoint files say no more than the logs hold, before somebody reads them as ours."""
    where = {
        TopicPartition(topic.name, number): each
        for topic in state.topics.values()
        for number, each in topic.partitions.items()
    }
    starts = {key: each.log_start for key, each in where.items()}
    ends = {key: each.log_end for key, each in where.items()}
    for folder in log_set.directories:
        remove_clean_shutdown_marker(folder)  # what it marks is not what is there from now on
        (found,) = partitions_by_node({0: {"": folder}}).values()
        write_broker_checkpoints(folder, found, starts, ends)


def _foresee_ends(found: _Found, known: TransactionEnds | None, done: RecoveryReport) -> None:
    """Let the truth end behind the markers that it gets, and note them, or why there are none."""
    ended = EndedTransactions()
    for key, (node, each) in found.truth.items():
        try:
            if known is None:
                check_no_open_transaction(each.where.path, key, each.end)
                continue
            end = known.preview(key, each.where.path, each.end, ended)
        except KafkaLogError as error:
            done.problems.append(f"node {node}: {error}")
            continue
        found.truth[key] = (node, replace(each, end=end))
    done.aborted, done.committed = ended.aborted, ended.committed


def _settle(
    log_set: LogSet,
    truth: Mapping[TopicPartition, tuple[int, PartitionEnd]],
    known: TransactionEnds | None,
) -> None:
    """Let what lies beside the logs of the truth be right, and end their open transactions.

    A marker is in a log before others become equal to it: after a crash in between, that log is the
    longest, or nobody has the marker.
    """
    for key, (_, each) in truth.items():
        log_set.verify_locks()
        _settle_one(each)
        if known is not None:
            end_transactions_of(key, each.where, log_set, known, EndedTransactions())


def _settle_one(each: PartitionEnd) -> None:
    """Let what lies beside the truth's log say no more than it, and be of the cluster's topic."""
    folder = each.where.path
    epochs = read_leader_epochs(folder)
    kept = [epoch for epoch in epochs if epoch.start_offset <= each.end]
    if kept != epochs:
        write_leader_epochs(folder, kept)
    if each.key != topic_key(each.topic_partition.topic, read_topic_id(folder)):
        write_topic_id(folder, each.key)


def _new_place(key: TopicPartition, members: Mapping[str, Path]) -> Path:
    counts = LogDirs(members.values()).partition_counts()
    return choose_directory(counts) / partition_directory_name(*key)
