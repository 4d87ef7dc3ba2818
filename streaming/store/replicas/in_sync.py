"""Shrink and expand in-sync sets: bring a replica up to date before it joins."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    RECOVERY_POINT,
    is_topic_id,
    read_offset_checkpoint,
    read_topic_id,
    write_offset_checkpoint,
    write_topic_id,
)
from kafkalog.checkpoints.commit_state import NO_LEADER
from kafkalog.errors import KafkaLogError, LogDirectoryError
from kafkalog.files.deferred_signals import check_interrupt
from kafkalog.files.regular import make_directory
from kafkalog.model import TopicPartition, partition_directory_name
from kafkalog.streaming.log.files import CLEANED, SWAP
from kafkalog.streaming.log.recovery import remove_segment
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.log.swap import finish_swap
from kafkalog.streaming.store.broker_files import (
    WrittenEnd,
    drop_stale_entries,
    raise_log_start,
    write_ends,
)
from kafkalog.streaming.store.log_dirs import LogDirs, choose_directory, partitions_by_node
from kafkalog.streaming.store.replicas.copying import (
    CopyBudget,
    Copying,
    LeaderUnreadableError,
    SeenFiles,
    drop_recovery_points,
    end_rewriting,
    of_leader,
    own_topic_id,
)
from kafkalog.streaming.store.replicas.election import joined, moved, shrunk

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.replicas.quorum import Quorum


__all__ = [
    "ALL_BYTES",
    "COPIED_BYTES",
    "Lagging",
    "bring_in_sync",
    "catch_up",
    "check_in_place",
    "lagging_replicas",
]


# ----------------------------------------------------------------------------------------------
# Bring a replica up to date with its leader: what differs is cut, what lacks is copied.
#
# Example: a node was away for an hour, and its log ends at offset 900, where a commit was cut
# off; the leader's ends at 1,500. Up to 880 the two are equal, byte for byte. The replica is cut
# there, and gets the leader's bytes from there on.
#
# A follower of Kafka cuts its log by leader epochs (KIP-101), since it cannot see its leader's
# bytes. Here one process sees both, so it compares them. What lies below the replica's own
# recovery point was made durable after it was committed, so it is not compared where the segment
# has the right size. Where the leader's segments were replaced since, its recovery point was
# rolled back before (:mod:`~kafkalog.streaming.store.replicas.copying`). So all is compared, in
# bounded steps, too: the recovery point follows each segment that is equal.
#
# Whatever is cut off amid this leaves a replica that is not in sync. The next one continues:
# copied bytes count once they are equal.


def catch_up(
    source: Path,
    target: Path,
    key: TopicPartition,
    log_end: int,
    room: CopyBudget,
    *,
    trusts: bool = True,
) -> SeenFiles | None:
    """Let the log in the folder ``target`` become that of its leader in ``source``.

    REQUIRES: the locks of both are held, and no commit is unfinished in the source, which ends at
    ``log_end``. Unless this ``trusts`` it, all is compared, whatever its recovery point says.
    Returns the files that it has then; None where ``room`` was too little: call it again.

    Raises:
        LeaderUnreadableError: a file of the source cannot be read.
        CorruptRecordError: a batch of the source is damaged, and was not copied.
        OSError, KafkaLogError: one of the target cannot be read or written, or is another by now.
    """
    with of_leader(source):
        finish_swap(source)
        bases, topic_id = list_base_offsets(source), read_topic_id(source)
    if _make(target, topic_id):
        drop_stale_entries([target.parent], {key})
    own, copying = _drop_others(target, bases), Copying(source, target, log_end, room)
    equal_to, point = 0, read_offset_checkpoint(target.parent, RECOVERY_POINT).get(key, 0)
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        check_interrupt()
        trusted, sealed = trusts and following is not None and following <= point, base in own[:-1]
        is_full = room.is_used_up and not trusted
        if is_full or not copying.copy_log(base, trusted=trusted, sealed=sealed):
            _note_progress(copying, key, equal_to, point)
            return None
        copying.copy_beside(base, durable=following is not None)
        equal_to = following or log_end
    copying.copy_rest(key)
    copying.check_place(bases, topic_id)
    write_ends([WrittenEnd(target.parent, key, log_end)], durable=True)  # and the folder's name
    return copying.seen


def check_in_place(seen: SeenFiles, log_dir: Path, key: TopicPartition) -> None:
    """See that what :func:`catch_up` has seen to lies beside the lock that is held.

    The log directory may have been away while a log was copied into it, and be back since. Then
    another log lies there, of which nothing was compared.

    REQUIRES: the locks were verified after that.

    Raises:
        LogDirectoryError: it does not; all that lies there is compared the next time.
        OSError, CheckpointError: the directory cannot be read or written.
    """
    try:
        seen.check()
    except LogDirectoryError:
        drop_recovery_points([log_dir], key)
        raise


def _drop_others(target: Path, bases: Sequence[int]) -> Sequence[int]:
    """Remove segments that the leader does not have; returns the base offsets of all there were.

    What somebody has left who replaced segments goes, too: all of it is copied, if it counts.
    """
    for path in list(target.iterdir()):
        if path.suffix in {CLEANED, SWAP}:
            path.unlink()
    own = list_base_offsets(target)
    for base in reversed(own):
        if base not in bases:
            remove_segment(target, base)
    return own


def _note_progress(copying: Copying, key: TopicPartition, equal_to: int, point: int) -> None:
    """Durably say up to where nothing is to be compared again: with its indexes, that is synced."""
    copying.seen.check()
    if equal_to > point:
        write_offset_checkpoint(copying.target.parent, RECOVERY_POINT, {key: equal_to})


def _make(target: Path, topic_id: str | None) -> bool:
    """Make the folder of a replica; one of another topic's id held what was deleted since.

    Returns whether what is noted of the partition in the directory is of no use any more.
    """
    if target.is_symlink():
        raise LogDirectoryError(f"{target} is a link, and no replica is kept behind one")
    own = own_topic_id(target)
    is_other = not target.is_dir() or own != topic_id
    if is_other and target.is_dir():
        if own is not None and is_topic_id(own):
            write_topic_id(target, own)  # as below
        for base in reversed(list_base_offsets(target)):
            remove_segment(target, base)
        for name in (PARTITION_METADATA, LEADER_EPOCHS):
            (target / name).unlink(missing_ok=True)
    if not target.is_dir():
        make_directory(target)
    if topic_id is not None:
        # Readers that were sent here know by the new file that what comes is of two moments.
        write_topic_id(target, topic_id)
    return is_other


# ----------------------------------------------------------------------------------------------

_LOGGER: Final = logging.getLogger("kafkalog.sink")

COPIED_BYTES: Final = 64 << 20
"""So much a commit copies to replicas that lag. ``kafkalog recover`` copies all there is."""

ALL_BYTES: Final = 1 << 62
"""More than any disk has."""


class Lagging(NamedTuple):
    """A replica that is not in sync though there is a leader, on a node that is there."""

    node: int
    key: TopicPartition
    topic_key: str
    leader: int
    log_start: int
    log_end: int


class _Brought(NamedTuple):
    """A replica that was brought up to date, where its files lay at that moment."""

    lagging: Lagging
    log_dir: Path
    seen: SeenFiles


def bring_in_sync(
    log_set: LogSet, nodes: Quorum, room: CopyBudget, *, moves_slowly: bool = False
) -> None:
    """Let the state say who is in sync now, for whoever publishes the next one.

    Replicas that lag are brought up to date, with as many bytes as there is ``room``. New ones that
    are to be copied slowly are left to who ``moves_slowly``. A partition that moves has moved when
    all replicas that it is to have are in sync.

    REQUIRES: the locks are held, and nothing is unfinished.

    Raises:
        OSError, KafkaLogError: a replica is in sync as readers know it, and that it is not any more
            was not published.
    """
    state = shrunk(log_set.state, nodes.live)
    state = end_rewriting(state, nodes, log_set.verify_locks)
    lagging = list(lagging_replicas(state, nodes.live, moves_slowly=moves_slowly))
    if lagging:
        state = _seen_to_lag(log_set, state, lagging)
        folders = partitions_by_node(nodes.nodes())
        brought = [found for each in lagging if (found := _brought(each, nodes, folders, room))]
        if brought:  # an older copy may lie in the place of a leader, or of a replica, by now
            log_set.verify_locks()
        caught_up = [
            (each.lagging.node, each.lagging.key) for each in brought if _is_in_place(each, nodes)
        ]
        state = joined(shrunk(state, nodes.live), caught_up)
    log_set.state = moved(state, nodes.live)


def _seen_to_lag(log_set: LogSet, state: CommitState, lagging: Iterable[Lagging]) -> CommitState:
    """Publish a state by which replicas lag before they are changed; returns what follows it.

    Readers are sent to those that are in sync, as far as they know.
    """
    if any(each.node in _known_in_sync(log_set, each) for each in lagging):
        log_set.publish(state.following())
        return log_set.state
    return state


def _known_in_sync(log_set: LogSet, lagging: Lagging) -> tuple[int, ...]:
    topic = log_set.published.topics.get(lagging.topic_key)
    known = None if topic is None else topic.replicas.get(lagging.key.partition)
    return () if known is None else known.isr


def lagging_replicas(
    state: CommitState, live: Container[int], *, moves_slowly: bool = False
) -> Iterator[Lagging]:
    """List the replicas on the nodes in ``live`` that are to be brought in sync.

    Those that a throttled move adds are its own to copy: they count if this ``moves_slowly``.
    """
    for key, topic in state.topics.items():
        for number, each in topic.replicas.items():
            slow = each.adding if each.rate and not moves_slowly else ()
            for node in (n for n in each.replicas if n not in slow):
                if node in live and node not in each.isr and each.leader != NO_LEADER:
                    name = TopicPartition(topic.name, number)
                    where = topic.partitions[number]
                    yield Lagging(node, name, key, each.leader, where.log_start, where.log_end)


def _brought(
    lagging: Lagging,
    nodes: Quorum,
    folders: dict[int, dict[TopicPartition, PartitionDirectory]],
    room: CopyBudget,
) -> _Brought | None:
    """Bring one replica up to date; a node on which that fails is out."""
    source = folders.get(lagging.leader, {}).get(lagging.key)
    if source is None or lagging.node in nodes.failed or lagging.leader in nodes.failed:
        return None
    try:
        with nodes.at(lagging.node):
            target = folders.get(lagging.node, {}).get(lagging.key)
            path = _new_place(lagging, nodes) if target is None else target.path
            seen = catch_up(source.path, path, lagging.key, lagging.log_end, room)
            if seen is not None:
                raise_log_start(path.parent, lagging.key, lagging.log_start)
                return _Brought(lagging, path.parent, seen)
    except LeaderUnreadableError as error:
        nodes.fail(lagging.leader, error)
    except OSError as error:
        nodes.fail(lagging.node, error)
    except KafkaLogError as error:
        _tell_behind(lagging, nodes, error)
    return None


def _tell_behind(lagging: Lagging, nodes: Quorum, error: KafkaLogError) -> None:
    """Say of a replica that it stays behind; others of the node may be as they should."""
    nodes.behind[lagging.node, lagging.key] = str(error)
    text = "the replica of %s on node %d cannot be brought in sync: %s"
    _LOGGER.warning(text, lagging.key, lagging.node, error)


def _is_in_place(brought: _Brought, nodes: Quorum) -> bool:
    """See that a replica that was brought up to date lies beside the lock that is held.

    REQUIRES: the locks were verified after the replica was brought up to date.
    """
    lagging, log_dir, seen = brought
    if not nodes.failed.keys().isdisjoint({lagging.node, lagging.leader}):
        return False
    try:
        with nodes.at(lagging.node):
            check_in_place(seen, log_dir, lagging.key)
            return True
    except OSError as error:
        nodes.fail(lagging.node, error)
    except KafkaLogError as error:
        _tell_behind(lagging, nodes, error)
    return False


def _new_place(lagging: Lagging, nodes: Quorum) -> Path:
    counts = LogDirs(nodes.by_node[lagging.node].values()).partition_counts()
    return choose_directory(counts) / partition_directory_name(*lagging.key)
