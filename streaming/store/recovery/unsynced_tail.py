"""Accept what a loss of power took of unsynced rows: cut the logs, and move the state back.

What was lost, :mod:`.unsynced` finds out. Nobody continues by himself. A person accepts the loss by
``kafkalog recover --accept-os-loss``: logs are cut where their whole batches end, never below what
is durable, and the commit state moves back to these ends. Who wrote what is kept as it was: a batch
of which rows are lost counts as written, and is not written again, since the rest of it is there.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import read_leader_epochs, write_leader_epochs
from kafkalog.errors import CommitError
from kafkalog.files.regular import fsync_directory, fsync_file
from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.files import LOG, SNAPSHOT, file_name, parse_base_offset
from kafkalog.streaming.log.recovery import (
    correct_indexes_of_sound,
    recover_segment,
    remove_segment,
)
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.store.broker_files import WrittenEnd, write_ends
from kafkalog.streaming.store.log_dirs import partitions_by_node
from kafkalog.streaming.store.recovery.partition_states import ended_at
from kafkalog.streaming.store.recovery.rollback import roll_back
from kafkalog.streaming.store.recovery.unsynced import LostOffsets, find_lost, lost_text
from kafkalog.streaming.store.replicas.election import shrunk
from kafkalog.streaming.store.replicas.quorum import Quorum

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kafkalog.checkpoints.commit_state import CommitState, ReplicaState, TopicState
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.nodes import Node


__all__ = ["accept_lost_tail", "boot_of", "find_lost_tails", "lost_on_all", "refuse_lost_tail"]


# ----------------------------------------------------------------------------------------------
# After a loss of power: a replica that lost records is copied from one that has them.
#
# Example: ``flush=os`` had left offsets 40 to 60 of a partition to the system. After the loss of
# power its leader ends at 50, and another replica in sync has all. That one leads from then on,
# and the other is not in sync until it is copied.
#
# Each node is looked at from where the log was durable, as a broker looks at its own from its
# recovery point. Records are lost only where no replica in sync has them.


_LOGGER: Final = logging.getLogger("kafkalog.sink")

_Lost = dict[TopicPartition, dict[int, "LostOffsets"]]


def lost_on_all(log_set: LogSet, nodes: Quorum) -> list[LostOffsets]:
    """Return what no replica in sync has of what was left unsynced.

    Replicas that have lost something leave the in-sync sets of ``log_set.state``. Where all have,
    the one that has most stays, and what that lacks is returned.

    REQUIRES: the locks are held.

    Raises:
        NotEnoughReplicasError: fewer than a majority of the nodes can be looked at.
    """
    lost: _Lost = defaultdict(dict)
    there: dict[int, set[TopicPartition]] = {}
    for node, found in partitions_by_node(nodes.nodes()).items():
        with nodes.writing(node):
            for each in find_lost(log_set.state, found):
                lost[each.where.topic_partition][node] = each
            there[node] = {*found}
    behind, gone = set(), []
    for key, replicas in _unsynced_replicas(log_set.state):
        able = [n for n in replicas.isr if n in nodes.live and key in there.get(n, ())]
        best = max(able, key=lambda n: _whole_end(lost[key].get(n)), default=None)
        if best is None:
            continue
        behind |= {(n, key) for n in able if n != best and n in lost[key]}
        if best in lost[key]:
            gone.append(lost[key][best])
    for node, key in sorted(behind):
        text = "a loss of power took records of %s on node %d, which gets those that others have"
        _LOGGER.warning(text, key, node)
    log_set.state = shrunk(log_set.state, nodes.live, behind)
    return gone


def _unsynced_replicas(state: CommitState) -> Iterator[tuple[TopicPartition, ReplicaState]]:
    for topic in state.topics.values():
        for number in topic.durable_ends:
            if number in topic.replicas:
                yield TopicPartition(topic.name, number), topic.replicas[number]


def _whole_end(lost: LostOffsets | None) -> float:
    return float("inf") if lost is None else lost.start


# ----------------------------------------------------------------------------------------------


def boot_of(node: Node) -> str | None:
    """Return the run of the machine that records are left to; None if it is another host's."""
    return None if any(map(node.is_shared, node.directories)) else system.boot_id()


def refuse_lost_tail(log_set: LogSet, *, mends: bool = True) -> None:
    """Refuse to continue after records that flush=os had left unsynced are lost.

    Costs nothing unless the machine has started again since. Then all of them are read, once, and
    indexes that are torn are mended: those of sealed segments nobody looks at again. Not so unless
    it ``mends``.

    Raises:
        CommitError: some are, or are damaged.
    """
    state = log_set.state
    current = boot_of(log_set.node)
    if state.boot is None or state.boot == current:
        return
    lost = find_lost_tails(log_set)
    if lost:
        raise CommitError(lost_text(lost))
    if mends:
        _mend_indexes(log_set)
    log_set.state = replace(log_set.state, boot=current)


def accept_lost_tail(log_set: LogSet) -> list[LostOffsets]:
    """Let logs end where their whole records do, after a loss of power; the caller has the locks.

    Rolls back an unfinished commit, too. May be cut off anywhere, and run again.

    Returns:
        what was lost.

    Raises:
        CommitError: records are gone that flush=os had not left unsynced.
        KafkaLogError: see :func:`~kafkalog.streaming.store.recovery.rollback.roll_back`.
    """
    lost = find_lost_tails(log_set)
    durable = [each for each in lost if each.start < each.durable_end]
    if durable:
        places = ", ".join(
            f"{each.where.topic_partition} at offset {each.start} (durable up to "
            f"{each.durable_end})"
            for each in durable
        )
        raise CommitError(
            f"records are damaged or gone that were on the disk: {places}. That was no loss of "
            "power. Restore the log directories; nothing was changed"
        )
    for each in lost:
        _cut(log_set, each)
    cut = frozenset(each.where.topic_partition for each in lost)
    roll_back(log_set, durable=True, cut=cut, staged_may_be_lost=True)
    _mend_indexes(log_set)
    if lost:
        # First, or a reader would go by a broker's high watermark above the new end.
        ends = [WrittenEnd(e.where.log_dir, e.where.topic_partition, e.start) for e in lost]
        write_ends(ends, durable=True)
        log_set.publish(_moved_back(log_set, lost))
    return lost


def find_lost_tails(log_set: LogSet) -> list[LostOffsets]:
    """Look at all that was left unsynced, and give what is not there.

    Of several nodes, replicas that lack what others have are not in sync any more.
    """
    if isinstance(log_set.node, Quorum):
        return lost_on_all(log_set, log_set.node)
    return list(find_lost(log_set.state, log_set.partitions()))


def _cut(log_set: LogSet, lost: LostOffsets) -> None:
    """Cut a log where its whole records end, and make durable what is left."""
    folder = lost.where.path
    bases = list_base_offsets(folder)
    kept = [base for base in bases if base <= lost.start]
    for base in reversed(bases[len(kept) :]):
        remove_segment(folder, base)
    if kept:
        settings = log_set.state.topics[lost.key].settings
        interval = LogConfig.of_topic(settings).index_interval_bytes
        recover_segment(folder, kept[-1], index_interval_bytes=interval)
    for path in list(folder.iterdir()):
        offset = parse_base_offset(path.name, SNAPSHOT)
        if offset is not None and offset > lost.start:
            path.unlink()
    epochs = read_leader_epochs(folder)
    left = [each for each in epochs if each.start_offset <= lost.start]
    if left != epochs:
        write_leader_epochs(folder, left)
    for base in kept:
        fsync_file(folder / file_name(base, LOG))
    fsync_directory(folder)


def _mend_indexes(log_set: LogSet) -> None:
    """Correct the indexes of segments that were left unsynced, or active until then."""
    by_node = _partitions_by_node(log_set)
    for topic in log_set.state.topics.values():
        interval = LogConfig.of_topic(topic.settings).index_interval_bytes
        for number, durable_end in topic.durable_ends.items():
            for where in _in_sync(by_node, topic, number):
                bases = list_base_offsets(where.path)
                for base, following in zip(bases, [*bases[1:], None], strict=True):
                    if following is None or following >= durable_end:
                        with log_set.node.isolated_at(where.log_dir):
                            correct_indexes_of_sound(
                                where.path, base, index_interval_bytes=interval
                            )


def _partitions_by_node(
    log_set: LogSet,
) -> Mapping[int, Mapping[TopicPartition, PartitionDirectory]]:
    if isinstance(log_set.node, Quorum):
        return partitions_by_node(log_set.node.nodes())
    return {0: log_set.partitions()}


def _in_sync(
    by_node: Mapping[int, Mapping[TopicPartition, PartitionDirectory]],
    topic: TopicState,
    number: int,
) -> Iterator[PartitionDirectory]:
    """List the folders of a partition on all nodes where it is in sync; missing ones are not."""
    for node, there in by_node.items():
        found = there.get(TopicPartition(topic.name, number))
        if found is not None and topic.is_in_sync(number, node):
            yield found


def _moved_back(log_set: LogSet, lost: Iterable[LostOffsets]) -> CommitState:
    topics = dict(log_set.state.topics)
    for each in lost:
        topic, number = topics[each.key], each.where.topic_partition.partition
        cut = ended_at(topic, number, each.start, each.where.path, log_set.directories)
        durable = {p: end for p, end in topic.durable_ends.items() if p != number}
        topics[each.key] = replace(cut, durable_ends=durable)
    return log_set.state.following(topics=topics).with_boot(boot_of(log_set.node))
