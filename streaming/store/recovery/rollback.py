"""Roll back an unfinished commit: exactly the bytes that its intent names, and nothing else.

A commit that was cut off has left, in some order, parts of what its intent names: segments and
folders that it made, bytes after the former end of a log. They go. Before that they are compared,
batch by batch, with the staged runs: bytes that are ours, or no valid batch at all (a torn write),
may go; a valid batch that is not ours was written by somebody else since, and then nothing is
touched. Every step may be cut off itself and done again.

On a file system that hosts share, the log continues in a new segment then. A host that was taken
for dead may still have bytes on their way: they land in the segment before, after its end. If the
log ended in an empty segment, its files are recreated: what comes late has no name to land under.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    LEADER_EPOCHS,
    PARTITION_METADATA,
    RECOVERY_POINT,
    read_leader_epochs,
    write_leader_epochs,
)
from kafkalog.checkpoints.commit_state import STAGED_PREFIX, UNFINISHED_FOLDER
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.errors import CheckpointError, LogDirectoryError
from kafkalog.files.atomic import TEMPORARY_SUFFIX
from kafkalog.files.parallel import for_each
from kafkalog.files.regular import fsync_directory
from kafkalog.model import partition_directory_name
from kafkalog.streaming.log.files import SNAPSHOT, file_name
from kafkalog.streaming.log.recovery import (
    cut_segment,
    inspect_segment,
    remove_segment,
    start_segment,
)
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.store.broker_files import (
    WrittenEnd,
    drop_stale_entries_on_nodes,
    repeat_log_starts,
    write_ends,
)
from kafkalog.streaming.store.ends.recorded import BrokerMarks
from kafkalog.streaming.store.ends.rule import marks_above
from kafkalog.streaming.store.file_systems import is_shared
from kafkalog.streaming.store.folder_changes import finish_moves, remove_deleted, retire_deleted
from kafkalog.streaming.store.nodes import forget_prepared
from kafkalog.streaming.store.recovery.intent_verification import check_ours
from kafkalog.streaming.store.recovery.partition_states import LogReach, sync_up_to

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from kafkalog.checkpoints.intent import IntendedPartition, Intent
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.store.log_set import LogSet

__all__ = ["roll_back", "verify_unfinished"]

_LOGGER: Final = logging.getLogger("kafkalog.sink")


def roll_back(
    log_set: LogSet,
    *,
    durable: bool,
    cut: Collection[TopicPartition] = (),
    staged_may_be_lost: bool = False,
    deletes: str | None = None,
) -> None:
    """Undo every unfinished commit, and end every finished one that left its intent behind.

    A deletion of topics that was cut off comes to its end, too.
    REQUIRES: the locks are held. Costs nothing where the last commit came to its end. ``durable``:
    a finished one, which may have left its records to the system, is made durable too. After a loss
    of power, ``cut`` are partitions whose logs have been cut already, below where the commit began,
    and with ``staged_may_be_lost`` what no staged file can tell is taken for the commit's own.
    ``deletes`` is a topic that goes next: its folders may be gone already.

    Raises:
        LogDirectoryError: something that is not ours lies where an intent's bytes should be, or
            what it names was committed; or the locks are lost.
        CommitError: the locks were lost, and another writer has committed since.
        CheckpointError: an intent that cannot be read or does not belong here.
    """
    _forget_prepared(log_set)
    intents = list(log_set.node.intents())
    if any(not intent.partitions for intent in intents):
        finish_moves(log_set)
    unfinished = log_set.unfinished() if intents else []
    check = partial(_check_partition, log_set, marks=BrokerMarks(log_set.state), deletes=deletes)
    check = partial(check, staged_may_be_lost=staged_may_be_lost)
    for intent in unfinished:
        _check_belongs(log_set, intent)
        with log_set.node.taking_back(intent):
            _undo(log_set, _proved(log_set, intent, check, cut), cut)
    if unfinished:
        log_set.check_current()
    elif intents:
        _end_finished(log_set, durable=durable)
    log_set.node.withdraw(durable=bool(unfinished))
    remove_deleted(log_set)


def _forget_prepared(log_set: LogSet) -> None:
    for node, alone in log_set.node.isolated_per_node():
        with alone:
            forget_prepared(node)


def _proved(
    log_set: LogSet,
    intent: Intent,
    check: Callable[[IntendedPartition], None],
    cut: Collection[TopicPartition],
) -> Intent:
    """Return an intent with those partitions only in which what is to go is its own.

    A replica that is not in sync needs no proof: it is compared with its leader, and cut.
    """
    others = set()

    def prove(each: IntendedPartition) -> None:
        try:
            check(each)
        except LogDirectoryError as error:
            if not _lags(log_set, each):
                raise
            others.add(each)
            _LOGGER.warning("%s is compared with its leader: %s", _folder(log_set, each), error)

    for_each(prove, [each for each in intent.partitions if each.topic_partition not in cut])
    return replace(intent, partitions=tuple(p for p in intent.partitions if p not in others))


def _lags(log_set: LogSet, intended: IntendedPartition) -> bool:
    """Whether a partition is one of a replica that is not in sync."""
    topic = log_set.state.topics.get(intended.key)
    node = log_set.node.node_of(intended.member_id)
    return topic is not None and not topic.is_in_sync(intended.partition, node)


def _undo(log_set: LogSet, intent: Intent, cut: Collection[TopicPartition]) -> None:
    """Roll back what is proved to be the intent's own."""
    for_each(
        lambda each: _roll_back_partition(log_set, each, is_cut=each.topic_partition in cut),
        intent.partitions,
    )
    _sync_parents(log_set, intent)


def verify_unfinished(log_set: LogSet) -> list[IntendedPartition]:
    """Prove that every unfinished commit can be rolled back, and give what it touches.

    Raises:
        LogDirectoryError, CheckpointError: as :func:`roll_back`.
    """
    marks = BrokerMarks(log_set.state)
    touched: list[IntendedPartition] = []
    for intent in log_set.unfinished():
        _check_belongs(log_set, intent)
        for each in intent.partitions:
            _check_partition(log_set, each, marks, staged_may_be_lost=False, deletes=None)
            touched.append(each)
    return touched


def _check_belongs(log_set: LogSet, intent: Intent) -> None:
    members = {partition.member_id for partition in intent.partitions}
    members |= {file.member_id for file in intent.files}
    if intent.set_id != log_set.state.set_id or not members <= {*log_set.state.member_ids}:
        raise CheckpointError(
            f"{log_set.directories[0] / INTENT_FILE} belongs to another set of log directories "
            f"({intent.set_id}) than the commit state ({log_set.state.set_id}): one of them was "
            "copied here. Restore all log directories of the set from one backup"
        )


def _end_finished(log_set: LogSet, *, durable: bool) -> None:
    """Do what a commit had still to do that was cut off after it was published."""
    intents = [intent for intent in log_set.node.intents() if intent.stamp == log_set.state.stamp]
    if not intents:
        return
    log_set.check_current()
    partitions = dict.fromkeys(each for intent in intents for each in intent.partitions)
    made = {each.topic_partition for each in partitions if each.created}
    drop_stale_entries_on_nodes(log_set.node, made)
    for intent in intents if durable else ():
        with log_set.node.taking_back(intent):
            _sync(log_set, intent)
    # What says where logs end must not survive a loss of power without what was published.
    log_set.make_durable()
    for intent in intents:
        with log_set.node.taking_back(intent):
            _write_ends(log_set, intent, durable=durable)
            _drop_staged(log_set, intent)
    if not partitions:
        repeat_log_starts(log_set)
        retire_deleted(log_set)


def _sync(log_set: LogSet, intent: Intent) -> None:
    reaches = (
        LogReach(
            _folder(log_set, each),
            each.topic_partition,
            each.end_offset,
            _index_interval(log_set, each),
        )
        for each in _still_there(log_set, intent)
    )
    sync_up_to(reaches, whole=True)


def _write_ends(log_set: LogSet, intent: Intent, *, durable: bool) -> None:
    ends = [
        WrittenEnd(log_set.members[each.member_id], each.topic_partition, each.end_offset)
        for each in _still_there(log_set, intent)
    ]
    write_ends(ends, durable=durable)


def _still_there(log_set: LogSet, intent: Intent) -> list[IntendedPartition]:
    """Return the partitions of an intent, without those that were deleted by hand since.

    They have nothing to be made durable; others say that they are gone. A replica that is not in
    sync may have anything: it is compared with its leader, which no checkpoint may prevent.
    """
    return [
        each
        for each in intent.partitions
        if _is_there(log_set, _folder(log_set, each)) and not _lags(log_set, each)
    ]


def _drop_staged(log_set: LogSet, intent: Intent) -> None:
    """Remove what a published commit was made of; of a job without an id nobody else knows it."""
    for member, name in intent.files:
        if member in log_set.members and name.startswith(STAGED_PREFIX):
            (log_set.members[member] / name).unlink(missing_ok=True)


def _folder(log_set: LogSet, intended: IntendedPartition) -> Path:
    name = partition_directory_name(*intended.topic_partition)
    return log_set.members[intended.member_id] / name


def _check_partition(
    log_set: LogSet,
    intended: IntendedPartition,
    marks: BrokerMarks,
    *,
    staged_may_be_lost: bool,
    deletes: str | None,
) -> None:
    """Prove what is to go, in all partitions before the first one is touched."""
    folder = _folder(log_set, intended)
    if _is_there(log_set, folder):
        if not intended.created:  # of a new one, the marks are of an earlier topic
            _check_not_acknowledged(folder, intended, marks)
        check_ours(log_set, intended, folder, staged_may_be_lost=staged_may_be_lost)
    elif intended.topic != deletes:
        _check_absent(folder, intended)


def _check_not_acknowledged(folder: Path, intended: IntendedPartition, marks: BrokerMarks) -> None:
    """Refuse to roll back what was published: the state is older than that."""
    said = marks.said(folder, intended.topic_partition)
    above = list(marks_above(said, intended.start_offset, lambda: intended.end_offset))
    if above:
        acknowledged = max(mark.offset for mark in above)
        raise LogDirectoryError(
            f"{folder}: a commit that was cut off began at offset {intended.start_offset}, yet "
            f"{HIGH_WATERMARK} or {RECOVERY_POINT} says that offsets up to {acknowledged - 1} "
            "were committed: the commit state is older than the log. Nothing was changed. Restore "
            "all log directories of the set from one backup. Or, to keep the records that are "
            f"there, remove {INTENT_FILE} and {UNFINISHED_FOLDER} from all log directories, and "
            "run `kafkalog broker takeover`"
        )


def _roll_back_partition(log_set: LogSet, intended: IntendedPartition, *, is_cut: bool) -> None:
    folder = _folder(log_set, intended)
    if not _is_there(log_set, folder):
        return
    segments = () if is_cut else intended.segments
    # Files that are there now, and are ours by the proof that follows.
    looks = {each.base_offset: inspect_segment(folder, each.base_offset) for each in segments}
    log_set.check_current()
    for segment in reversed(segments):
        if segment.created:
            remove_segment(folder, segment.base_offset)
        else:
            cut_segment(
                folder,
                segment.base_offset,
                segment.size_before,
                index_interval_bytes=_index_interval(log_set, intended),
                looked_at=looks[segment.base_offset],
            )
    for offset in intended.snapshots:
        (folder / file_name(offset, SNAPSHOT)).unlink(missing_ok=True)
    if intended.starts_epoch:
        _forget_epoch(folder, intended.leader_epoch)
    if intended.created:
        _remove_folder(folder)
        return
    if is_shared(folder) and not is_cut:
        # Should its writer wake up on another host, what it writes late lands in a file that is
        # read up to its present end only, or, if the log ended in an empty one, in none any more.
        # Were our locks lost by now, another writer may have committed to what would be replaced.
        log_set.check_current()
        start_segment(folder, intended.start_offset)
    fsync_directory(folder)


def _is_there(log_set: LogSet, folder: Path) -> bool:
    """Return whether a partition has a folder; its log directory may be away for a moment.

    Raises:
        LogDirectoryError, CommitError: it is, so that its lock is gone; or the locks are lost.
    """
    if folder.is_dir():
        return True
    log_set.check_current()
    return folder.is_dir()


def _index_interval(log_set: LogSet, intended: IntendedPartition) -> int:
    topic = log_set.state.topics.get(intended.key)
    return LogConfig.of_topic(topic.settings if topic else {}).index_interval_bytes


def _check_absent(folder: Path, intended: IntendedPartition) -> None:
    if not intended.created:
        raise LogDirectoryError(
            f"{folder} is gone, though a commit that was cut off appended to it: restore it. Or "
            f"run `kafkalog topic delete --topic {intended.topic}`, which gives that commit up"
        )


def _remove_folder(folder: Path) -> None:
    """Remove a folder that the commit made; what else lies in it was put there by others."""
    _unlink_with_temporary(folder / PARTITION_METADATA)
    try:
        folder.rmdir()
    except OSError as error:
        strange = sorted(path.name for path in folder.iterdir())
        raise LogDirectoryError(
            f"{folder} was made by a commit that was cut off, and holds what that did not put "
            f"there: {', '.join(strange[:5])}. Move it away"
        ) from error


def _forget_epoch(folder: Path, epoch: int) -> None:
    """Take out of the list of leader epochs the one that the commit began with."""
    earlier = [each for each in read_leader_epochs(folder) if each.epoch < epoch] if epoch else []
    if earlier:
        write_leader_epochs(folder, earlier)
    else:
        _unlink_with_temporary(folder / LEADER_EPOCHS)


def _unlink_with_temporary(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_name(path.name + TEMPORARY_SUFFIX).unlink(missing_ok=True)


def _sync_parents(log_set: LogSet, intent: Intent) -> None:
    for member in sorted(set(_members_with_new_folders(intent))):
        fsync_directory(log_set.members[member])


def _members_with_new_folders(intent: Intent) -> Iterator[str]:
    return (partition.member_id for partition in intent.partitions if partition.created)
