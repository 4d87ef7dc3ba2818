"""Rebuild what a node of a replicated set has lost: its commit state, intent, or a checkpoint.

Example: a bit flips in ``kafkalog.commit`` of one of three nodes. The other two are a majority, so
they know all that is committed. The damaged file is put aside, and the node gets a state like that
of a node that was away: the one before the newest, of which it can have had no part. What follows
is what follows then: its replicas are not in sync, are compared, and get what they lack.

==========================  =======================================================================
state damaged               rebuilt, if it, or what lies beside it, is of this set
state removed               rebuilt, if the node has a folder of each partition that it is to have
state of another set        rebuilt, if the directory holds partitions of this set and none of that
intent damaged, or foreign  rebuilt: where logs were about to grow is not known there any more
offset checkpoint damaged   put aside; the commit state knows log starts and high watermarks
==========================  =======================================================================

Other directories stay missing: their disk may not be mounted. What lies below the mount then may be
locks, what a commit was about to do, and folders that it has made: it had begun at the disk, and
its next call found another directory. A file of a later release, or one that may not be read, is
not damaged, and left alone.

A node that forgets may have voted for something. So whoever rebuilds it needs a majority without
it: each commit that was made is known there, and what was not made by then never will be.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import (
    OFFSET_CHECKPOINTS,
    RECOVERY_POINT,
    read_offset_checkpoint,
    read_topic_id,
)
from kafkalog.checkpoints.commit_state import PREPARED_FILE, STATE_FILE
from kafkalog.checkpoints.intent import INTENT_FILE, load_intent
from kafkalog.checkpoints.sealed_file import read_head
from kafkalog.checkpoints.state_file import state_bytes
from kafkalog.errors import CheckpointError, KafkaLogError, LogDirectoryError
from kafkalog.files.atomic import prepare, publish
from kafkalog.files.system import remembered, system
from kafkalog.files.timeouts import at
from kafkalog.files.watch import Watch
from kafkalog.streaming.log.files import stray_directory_name
from kafkalog.streaming.store.log_dirs import LogDirs
from kafkalog.streaming.store.replicas.rewriting import distrust

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.checkpoints.voters import Voters
    from kafkalog.streaming.log.log_dir import PartitionDirectory

__all__ = [
    "LostNode",
    "find_lost",
    "is_in_sync_beside_others",
    "put_checkpoints_aside",
    "rebuild",
]

_LOGGER: Final = logging.getLogger("kafkalog.sink")

_ASIDE: Final = ".lost"
"""What is appended to the name of a file that is put aside; a broker ignores it."""


class LostNode(dict[str, Path]):
    """The directories of a node that has lost its state, by member id; ``why`` says how."""

    def __init__(self, members: Mapping[str, Path], why: str) -> None:
        super().__init__(members)
        self.why = why


def find_lost(voters: Voters) -> dict[int, LostNode]:
    """Return the nodes that can be rebuilt, by their ids: a majority is there without them."""
    found: dict[int, LostNode] = {}
    for node, members in voters.lost.items():
        with suppress(OSError, KafkaLogError), at(next(iter(members.values()))):
            without = [folder for folder in members.values() if folder not in voters.states]
            is_removed = not all((folder / STATE_FILE).exists() for folder in without)
            if is_removed and not _has_all_folders(node, members.values(), voters.newest):
                continue
            if all(_is_of_set(folder, voters) for folder in without):
                found[node] = LostNode(members, voters.missing[node])
    for node, members in voters.live.items():
        with suppress(OSError), at(next(iter(members.values()))):
            faults = (_fault_of_intent(each, voters.newest.set_id) for each in members.values())
            if fault := next(filter(None, faults), ""):
                found[node] = LostNode(members, fault)
    left = voters.live.keys() - found.keys()
    return found if len(left) >= voters.majority else {}


def _fault_of_intent(folder: Path, set_id: str) -> str:
    try:
        intent = load_intent(folder)
    except CheckpointError as error:
        return error.fault
    if intent is None or intent.set_id == set_id:
        return ""
    return f"{folder / INTENT_FILE} belongs to set {intent.set_id}"


def _is_of_set(folder: Path, voters: Voters) -> bool:
    """Whether what lies in a directory shows that it is of the set, though its state does not."""
    state = voters.newest
    foreign = voters.found.foreign.get(folder)
    known = state.topics.keys() | state.deleted.keys()
    own: list[PartitionDirectory] = []
    others: list[PartitionDirectory] = []
    for found in LogDirs([folder], are_of_one_node=True).partitions().values():
        (own if _key_of(state, found) in known else others).append(found)
    if foreign is not None:
        return bool(own) and not any(_key_of(foreign, each) in foreign.topics for each in others)
    if own:
        return True
    with suppress(OSError, CheckpointError):
        head = read_head(folder / STATE_FILE)
        if head is not None:
            return bool(head.get("set") == state.set_id)
    return not others


def _has_all_folders(node: int, folders: Iterable[Path], state: CommitState) -> bool:
    """Whether a node has a folder of each partition that it is to have, and is to have any."""
    wanted = {
        (key, number)
        for key, topic in state.topics.items()
        for number, each in topic.replicas.items()
        if node in each.replicas
    }
    there = {
        (_key_of(state, found), found.topic_partition.partition)
        for found in LogDirs(folders, are_of_one_node=True).partitions().values()
    }
    return bool(wanted) and wanted <= there


def _key_of(state: CommitState, found: PartitionDirectory) -> str:
    try:
        topic_id = read_topic_id(found.path)
    except CheckpointError:
        topic_id = None
    return state.key_of(found.topic_partition.topic, topic_id)


def is_in_sync_beside_others(node: int, state: CommitState) -> bool:
    """Whether readers may be sent to a node that is rebuilt, and others have what they want."""
    replicas = (each for topic in state.topics.values() for each in topic.replicas.values())
    return any(node in each.isr and len(each.isr) > 1 for each in replicas)


def rebuild(node: int, lost: LostNode, voters: Voters) -> None:
    """Put aside what a node has in place of its state, and give it one as if it had been away.

    REQUIRES: a majority without the node is locked, and so is the node; and the newest state does
    not send readers to it where they find other replicas in sync.

    The node is looked at again once its new state lies beside the place: its mount may have gone
    since the first look. If it goes after this one, there is nothing below it to be renamed.

    Raises:
        LogDirectoryError: it is not the node any more.
        OSError, KafkaLogError: the node cannot be written.
    """
    state = voters.newest
    before = max(state.sequence - 1, 0)
    former = state.previous or system.random_id().hex
    stamp = state.commit_id if before == state.sequence else former
    old = replace(state, sequence=before, commit_id=stamp, controller="")
    for member, folder in lost.items():
        prepare(folder / STATE_FILE, state_bytes(old.of_member(member)))
    if node not in find_lost(voters):
        raise LogDirectoryError(
            f"{', '.join(map(str, lost.values()))} is not what it was a moment ago: is it mounted?"
        )
    for folder in lost.values():
        _put_orphans_aside(folder, state)
        put_checkpoints_aside(folder)
        distrust([folder], *read_offset_checkpoint(folder, RECOVERY_POINT))
    for folder in lost.values():
        for name in (INTENT_FILE, PREPARED_FILE, STATE_FILE):
            _put_aside(folder / name)
        publish(folder / STATE_FILE)
    text = "node %d is rebuilt from the others, what it had is kept in files named *%s: %s"
    _LOGGER.warning(text, node, _ASIDE, lost.why)


class _SeenCheckpoints(dict[Path, Watch]):
    """The checkpoint files that this process has read: a set may have many partitions."""


def put_checkpoints_aside(folder: Path) -> None:
    """Put aside the offset checkpoints of a log directory that cannot be read.

    One that may not be opened, or that is a folder, is left alone: who needs it says what to do.

    Raises:
        OSError: one cannot be read, or not be renamed.
    """
    seen = remembered(_SeenCheckpoints)
    for name in OFFSET_CHECKPOINTS:
        path = folder / name
        watch = seen.setdefault(path, Watch(path))
        if not watch.changed() and not path.is_symlink():
            continue
        try:
            read_offset_checkpoint(folder, name)
        except (CheckpointError, LogDirectoryError) as error:
            if isinstance(error.__cause__, PermissionError) or path.is_dir():
                continue
            fault = error.fault if isinstance(error, CheckpointError) else error
            _LOGGER.warning("it is put aside as %s%s: %s", name, _ASIDE, fault)
            _put_aside(path)


def _put_aside(path: Path) -> None:
    with suppress(FileNotFoundError):
        path.rename(path.with_name(f"{path.name}{_ASIDE}"))


def _put_orphans_aside(folder: Path, state: CommitState) -> None:
    """Rename the folders of topics that the set does not have, as those of a node that was away."""
    for found in LogDirs([folder], are_of_one_node=True).partitions().values():
        if _key_of(state, found) not in state.topics.keys() | state.deleted.keys():
            _LOGGER.warning("%s is of a topic that is gone, and is put aside", found.path)
            stray = stray_directory_name(*found.topic_partition, system.random_id().hex)
            found.path.rename(found.log_dir / stray)
