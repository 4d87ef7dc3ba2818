"""Give the nodes of a replicated set to the brokers of one cluster, a node to each.

A cluster (KRaft) elects by what its own metadata says, and its brokers trust their logs. So nothing
is given before all nodes hold the same bytes, the cluster knows the topics as we do
(:mod:`~kafkalog.streaming.admin.broker.handover_state`), and no leader epoch lies above the
cluster's.

In this order, so that it may be cut off anywhere and is ended by the next handover::

    note     kafkalog.unfinished/handover in every directory    no broker starts from here on
    lend     the commit state names the cluster                 no writer of ours continues
    ready    topic ids, epochs, checkpoint files, all durable   on all nodes
    settle   the state knows topics by the cluster's ids alone
    mark     the clean shutdown, as the broker would            on all nodes
    give     the notes go                                       brokers may start

A takeover gets the set again from any of these steps.
"""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import (
    LeaderEpoch,
    read_leader_epochs,
    read_topic_id,
    write_clean_shutdown_marker,
    write_leader_epochs,
    write_topic_id,
)
from kafkalog.checkpoints.commit_state import NO_LEADER
from kafkalog.checkpoints.topic_ids import note_changed_ids
from kafkalog.errors import CorruptRecordError
from kafkalog.files.deferred_signals import check_interrupt
from kafkalog.files.open_file import read_at
from kafkalog.files.regular import open_regular, write_all
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.broker.handover_state import (
    check_all_there,
    compare_with_cluster,
    opened_nodes,
    sync_folder,
    warn_of_broker_retention,
    write_broker_checkpoints,
)
from kafkalog.streaming.admin.groups import empty_groups
from kafkalog.streaming.admin.nodes.node_recovery import bring_nodes_in_order
from kafkalog.streaming.admin.nodes.replicas import known_topic, log_end_of, replicas_of
from kafkalog.streaming.admin.recovery import (
    Preview,
    RecoveryReport,
    look_again,
    put_in_order,
    report_lost,
)
from kafkalog.streaming.log.files import LOG, file_name
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.records.batch_layout import (
    LEADER_EPOCH_POSITION,
    OVERHEAD,
    PREFIX,
    PREFIX_SIZE,
)
from kafkalog.streaming.store.log_dirs import partitions_by_node
from kafkalog.streaming.store.nodes import handover_is_over, note_handover

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.checkpoints.voters import Voters
    from kafkalog.streaming.admin.broker.handover_state import Cluster
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet


__all__ = ["hand_over_nodes", "set_epochs_down"]


# ----------------------------------------------------------------------------------------------
# Set the leader epochs of a log down: a cluster that gets it must know none above its own.
#
# A broker takes the epochs of its cluster for the highest there are. A leader whose log has a
# higher one throws away what its checkpoint says of it, and cannot append; its followers leave
# the in-sync set (tried with Kafka 4.1, see docs/replicas.md).
#
# The epoch of a batch lies outside its checksum: 4 bytes at byte 12 of the header, from magic 2
# on. Message sets of older magics have none. An epoch may not change which batches there are, nor
# their positions: so replicas that were equal are equal again once all of them are set down
# alike.
#
# Source: Kafka ``DefaultRecordBatch``, ``LeaderEpochFileCache``.


_EPOCH: Final = struct.Struct(">i")
_PIECE_BYTES: Final = 1 << 20


def set_epochs_down(folder: Path, most: int) -> int:
    """Let no batch and no line of the checkpoint in a partition's folder have an epoch above this.

    Return how many batches had one. What is cut off can be done again.

    REQUIRES: the locks are held, and the log ends in a whole batch. The caller makes it durable.

    Raises:
        CorruptRecordError: a batch is damaged.
        CheckpointError: the checkpoint is.
        OSError: a file cannot be read or written.
    """
    changed = 0
    for base in list_base_offsets(folder):
        check_interrupt()
        changed += _set_down(folder / file_name(base, LOG), most)
    epochs = read_leader_epochs(folder)
    if epochs and epochs[-1].epoch > most:
        write_leader_epochs(folder, _lowered(epochs, most))
    return changed


def _lowered(epochs: Sequence[LeaderEpoch], most: int) -> list[LeaderEpoch]:
    """Return the epochs with those above ``most`` as one, which begins with the first of them."""
    kept = [each for each in epochs if each.epoch < most]
    above = [each.start_offset for each in epochs if each.epoch >= most]
    return [*kept, *(LeaderEpoch(most, start) for start in above[:1])]


def _set_down(path: Path, most: int) -> int:
    changed = 0
    file = open_regular(path, os.O_RDWR)
    try:
        size, position, piece, begin = os.fstat(file).st_size, 0, b"", 0
        while position + PREFIX_SIZE <= size:
            if position + PREFIX_SIZE > begin + len(piece):
                begin, length = position, min(_PIECE_BYTES, size - position)
                piece = bytes(read_at(file, begin, length).data)
            _, left, magic = PREFIX.unpack_from(piece, position - begin)
            (epoch,) = _EPOCH.unpack_from(piece, position - begin + LEADER_EPOCH_POSITION)
            if left < PREFIX_SIZE - OVERHEAD:
                raise CorruptRecordError(f"{path}: the batch at position {position} has no size")
            if magic >= 2 and epoch > most:
                write_all(file, _EPOCH.pack(most), position + LEADER_EPOCH_POSITION)
                changed += 1
            position += OVERHEAD + left
    finally:
        os.close(file)
    return changed


# ----------------------------------------------------------------------------------------------

_HOLDER = "kafkalog broker handover"


def hand_over_nodes(
    directories: Sequence[Path],
    before: Voters,
    metadata: Sequence[Path],
    *,
    dry_run: bool,
    wait_ms: int,
) -> RecoveryReport:
    """Make a replicated set one that the brokers of a cluster can start on, a node each.

    ``before`` are the nodes as they are found. ``metadata`` are directories with copies of the
    cluster's metadata log, where the nodes have none. Nothing is given where a problem was found.

    Raises:
        LogDirectoryError: a node is not there, or failed meanwhile.
        KafkaLogError: see :func:`~kafkalog.streaming.admin.recovery.recover`.
    """
    begun = RecoveryReport()
    look = begun.look(mends=not dry_run)
    with opened_nodes(
        directories, before, look, holder=_HOLDER, wait_ms=wait_ms, dry_run=dry_run
    ) as log_set:
        done = _ordered(log_set, begun, before, dry_run=dry_run)
        cluster = compare_with_cluster(log_set.state, log_set.node.nodes(), metadata)
        done.problems += cluster.problems
        if done.problems:
            return done
        done.written += _changes(log_set, cluster)
        if not dry_run:
            _give(log_set, cluster)
        done.written.append(
            "given: "
            + ", ".join(f"node {n} to broker {b}" for n, b in sorted(cluster.brokers.items()))
            + f" of cluster {cluster.cluster_id}"
        )
        return done


def _ordered(
    log_set: LogSet, begun: RecoveryReport, before: Voters, *, dry_run: bool
) -> RecoveryReport:
    """Bring logs and replicas in order, or say what keeps them from it. REQUIRES: the locks."""
    warn_of_broker_retention(log_set.state)
    preview = Preview(log_set) if dry_run else None
    done = put_in_order(log_set, begun, preview=preview)
    report_lost(log_set, done)
    if log_set.state.handed_to:
        done.problems += _written_by_brokers(log_set)
        return done
    if done.problems:
        return done
    emptied = empty_groups(log_set, dry_run=dry_run)
    if emptied and not dry_run:
        done = look_again(log_set, done)
    done.written += emptied
    bring_nodes_in_order(log_set, before, done, dry_run=dry_run)
    if not dry_run:
        check_all_there(log_set, _HOLDER)
    done.problems += _not_in_sync(log_set.state, may_lag=dry_run)
    return done


def _not_in_sync(state: CommitState, *, may_lag: bool) -> Iterator[str]:
    """Say which partitions have no leader, or not all replicas in sync: a cluster might elect one.

    With ``may_lag`` those that lag are passed over: they would be brought in sync.
    """
    for key, each in replicas_of(state):
        if each.leader == NO_LEADER or (not may_lag and {*each.isr} != {*each.replicas}):
            yield (
                f"{key} is in sync on nodes {[*each.isr]} of {[*each.replicas]} only: a broker of "
                "another one would lose what that lacks, on all nodes. Run `kafkalog recover`"
            )


def _written_by_brokers(log_set: LogSet) -> Iterator[str]:
    """Say which logs do not end where they ended when they were handed over."""
    for node, key, found in _replicas(log_set):
        _, topic = known_topic(log_set.state, key)
        end = topic.partitions[key.partition].log_end
        held = log_end_of(found)
        if held != end:
            yield (
                f"{key} ends at offset {held} on node {node}, and ended at {end} when it was "
                "handed over: a broker has written since. Run `kafkalog broker takeover` first"
            )


def _replicas(log_set: LogSet) -> Iterator[tuple[int, TopicPartition, PartitionDirectory]]:
    """List the folders of all replicas that the state knows, by node."""
    known = dict(replicas_of(log_set.state))
    for node, folders in partitions_by_node(log_set.node.nodes()).items():
        for key, found in folders.items():
            if key in known and node in known[key].replicas:
                yield node, key, found


def _changes(log_set: LogSet, cluster: Cluster) -> Iterator[str]:
    """Say what a topic is called from now on, and which epochs go down."""
    for key, topic in log_set.state.topics.items():
        if cluster.topic_ids[topic.name] != key:
            yield f"topic {topic.name} gets the id {cluster.topic_ids[topic.name]}"
        for number, where in topic.partitions.items():
            most = cluster.epochs[TopicPartition(topic.name, number)]
            if where.leader_epoch > most:
                yield (
                    f"{topic.name}-{number}: leader epochs above {most} are set down to {most}, "
                    f"the latest is {where.leader_epoch}"
                )


def _give(log_set: LogSet, cluster: Cluster) -> None:
    """Let brokers have the nodes; what is cut off here is ended by the next handover."""
    for folder in log_set.directories:
        note_handover(folder)
    handed_over = _handed_over(log_set.state, cluster)
    log_set.publish(handed_over)
    check_all_there(log_set, _HOLDER)
    _make_ready(log_set, cluster)
    topics = {cluster.topic_ids[each.name]: each for each in log_set.state.topics.values()}
    log_set.publish(log_set.state.following(topics=topics))
    check_all_there(log_set, _HOLDER)
    log_set.check_current()
    for node in cluster.brokers:
        for folder in log_set.node.nodes()[node].values():
            _mark(log_set, folder, cluster.broker_epoch_of(node))
    for folder in log_set.directories:
        handover_is_over(folder)  # a loss of power may bring it back: then this is run again


def _handed_over(state: CommitState, cluster: Cluster) -> CommitState:
    """Return the state that gives the set away; it knows topics by their former ids, too.

    In between folders have one id or the other, and there is always something committed for them.
    """
    topics = dict(state.topics)
    for topic in state.topics.values():
        partitions = {
            number: where._replace(
                leader_epoch=min(
                    where.leader_epoch, cluster.epochs[TopicPartition(topic.name, number)]
                )
            )
            for number, where in topic.partitions.items()
        }
        given = replace(topic, partitions=partitions, durable_ends={}, cluster_epochs={})
        topics[cluster.topic_ids[topic.name]] = given
    following = state.following(topics=topics)
    return replace(following, handed_to=cluster.cluster_id).with_boot(state.boot)


def _make_ready(log_set: LogSet, cluster: Cluster) -> None:
    """Give all folders of all nodes the cluster's ids and epochs, and make them durable."""
    where = {
        TopicPartition(topic.name, number): each
        for topic in log_set.state.topics.values()
        for number, each in topic.partitions.items()
    }
    starts = {key: each.log_start for key, each in where.items()}
    ends = {key: each.log_end for key, each in where.items()}
    replicas = list(_replicas(log_set))
    changes = sorted(_changed_ids(replicas, cluster))
    for folder in log_set.directories:
        note_changed_ids(folder, changes)
    by_directory: dict[Path, dict[TopicPartition, PartitionDirectory]] = {}
    for _, key, found in replicas:
        log_set.verify_locks()
        write_topic_id(found.path, cluster.topic_ids[key.topic])
        set_epochs_down(found.path, cluster.epochs[key])
        sync_folder(found.path)
        by_directory.setdefault(found.log_dir, {})[key] = found
    for folder in log_set.directories:
        write_broker_checkpoints(folder, by_directory.get(folder, {}), starts, ends)


def _changed_ids(
    replicas: Sequence[tuple[int, TopicPartition, PartitionDirectory]], cluster: Cluster
) -> set[tuple[str, str, str]]:
    """Return which topics get another id, and the ids before and after, for streaming queries."""
    found = set()
    for _, key, replica in replicas:
        before, now = read_topic_id(replica.path), cluster.topic_ids[key.topic]
        if before is not None and before != now:
            found.add((key.topic, before, now))
    return found


def _mark(log_set: LogSet, folder: Path, broker_epoch: int) -> None:
    """Mark a log directory as cleanly shut down, unless a broker has logs of its own in it."""
    known = dict(replicas_of(log_set.state))
    (found,) = partitions_by_node({0: {"": folder}}).values()
    if found.keys() <= known.keys():
        write_clean_shutdown_marker(folder, broker_epoch=broker_epoch)
