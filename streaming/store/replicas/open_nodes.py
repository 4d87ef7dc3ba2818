"""Open a replicated set: lock, find the committed state, roll back, bring replicas in sync.

Whoever holds the locks of a majority of the voters is the controller. Its epoch rises when another
process was the controller before, and when something is unfinished. What it finds out first is said
in :mod:`~kafkalog.streaming.store.replicas.controller`.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from kafkalog.checkpoints.broker import (
    OFFSET_CHECKPOINTS,
    RECOVERY_POINT,
    broker_holds,
    is_locked,
    read_offset_checkpoint,
    read_topic_id,
)
from kafkalog.checkpoints.commit_state import LOCK_FILE, PREPARED_FILE, STATE_FILE
from kafkalog.checkpoints.intent import INTENT_FILE, load_intent
from kafkalog.checkpoints.sealed_file import read_head
from kafkalog.checkpoints.state_file import state_bytes
from kafkalog.checkpoints.voters import fault_of, require_voters
from kafkalog.errors import (
    CheckpointError,
    CommitError,
    DurabilityError,
    KafkaLogError,
    LockTimeoutError,
    LogDirectoryError,
)
from kafkalog.files.atomic import prepare, publish
from kafkalog.files.closing import Closing
from kafkalog.files.deferred_signals import check_interrupt
from kafkalog.files.system import once_per_process, remembered, system
from kafkalog.files.timeouts import at, hold, let_go, taken_over
from kafkalog.files.watch import Watch
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.files import (
    deleted_directory_name,
    parse_deleted_directory,
    stray_directory_name,
)
from kafkalog.streaming.log.log_dir import entries_of
from kafkalog.streaming.store.broker_files import drop_entries_of_missing
from kafkalog.streaming.store.folder_changes import remove_folder
from kafkalog.streaming.store.locks import DirectoryLocks, check_unused
from kafkalog.streaming.store.log_dirs import LogDirs, partitions_by_node
from kafkalog.streaming.store.log_set import LogSet, remove_dead
from kafkalog.streaming.store.recovery.rollback import roll_back
from kafkalog.streaming.store.replicas.controller import (
    decide,
    finish_change,
    others_of,
    own_states,
)
from kafkalog.streaming.store.replicas.copying import CopyBudget, drop_recovery_points
from kafkalog.streaming.store.replicas.election import changed_topics, preferred
from kafkalog.streaming.store.replicas.in_sync import ALL_BYTES, COPIED_BYTES, bring_in_sync
from kafkalog.streaming.store.replicas.quorum import Controller, Quorum

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kafkalog.checkpoints.commit_state import CommitState, PartitionState, ReplicaState
    from kafkalog.checkpoints.voters import Voters
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import Condition
    from kafkalog.streaming.store.policy import SetPolicy
    from kafkalog.streaming.store.replicas.election import Changed

__all__ = [
    "LostNode",
    "QuorumSession",
    "committed_nodes",
    "find_lost",
    "is_in_sync_beside_others",
    "put_checkpoints_aside",
    "rebuild",
    "remove_moved",
]

_Gone = tuple[int, TopicPartition]


def remove_moved(log_set: LogSet, nodes: Quorum) -> None:
    """Remove what nodes have left of partitions that have moved away; the state forgets it then.

    REQUIRES: the locks are held, a majority has the state in place, and nothing is unfinished.

    Raises:
        NotEnoughReplicasError: fewer than a majority of the nodes are left.
        LogDirectoryError, CommitError: the locks are lost.
    """
    left: dict[int, dict[TopicPartition, str]] = defaultdict(dict)
    for key, topic in log_set.state.topics.items():
        for number, each in topic.replicas.items():
            for node in each.left:
                left[node][TopicPartition(topic.name, number)] = key
    if not left.keys() & {*nodes.live}:
        return
    folders = partitions_by_node(nodes.nodes())
    gone: set[_Gone] = set()
    for node, keys in left.items():
        log_set.verify_locks()
        if node not in nodes.live:
            continue
        with nodes.writing(node):
            _rename(log_set.state, keys, folders[node])
            for log_dir in nodes.by_node[node].values():
                _remove(log_set.state, keys, log_dir)
            gone |= {(node, name) for name in keys}
    log_set.state = _without(log_set.state, gone)


def _rename(
    state: CommitState,
    keys: Mapping[TopicPartition, str],
    folders: Mapping[TopicPartition, PartitionDirectory],
) -> None:
    """Give the folders of partitions on a node the names of deleted ones."""
    for name, key in keys.items():
        check_interrupt()
        found = folders.get(name)
        if found is not None and _is_of(state, key, name.topic, found.path):
            retired = deleted_directory_name(*name, system.random_id().hex)
            # It stays renamed: to prepare a state here that forgets it syncs the directory first.
            found.path.rename(found.log_dir / retired)


def _remove(state: CommitState, keys: Mapping[TopicPartition, str], log_dir: Path) -> None:
    """Remove the folders of partitions from a log directory that are called deleted."""
    drop_entries_of_missing(log_dir)
    for entry in entries_of(log_dir):
        deleted = parse_deleted_directory(entry.name)
        if deleted is None:
            continue
        path = log_dir / entry.name
        named = [n for n in keys if n.partition == deleted.partition]
        if any(
            name.topic.startswith(deleted.topic) and _is_of(state, keys[name], name.topic, path)
            for name in named
        ):
            check_interrupt()
            remove_folder(path)


def _is_of(state: CommitState, key: str, topic: str, folder: Path) -> bool:
    try:
        return state.key_of(topic, read_topic_id(folder)) == key
    except CheckpointError:
        return False


def _without(state: CommitState, gone: set[_Gone]) -> CommitState:
    def change(topic: str, number: int, each: ReplicaState, where: PartitionState) -> Changed:
        name = TopicPartition(topic, number)
        removing = tuple(node for node in each.removing if (node, name) not in gone)
        return each._replace(removing=removing), where

    return changed_topics(state, change)


# ----------------------------------------------------------------------------------------------

_LOGGER: Final = logging.getLogger("kafkalog.sink")


class QuorumSession(Closing):
    """The locks of a majority of the nodes of a set from ``with`` to its end, and the set.

    ``directories`` are those that the path names, of all its nodes. ``holder`` is what others read
    about us while they wait.
    """

    def __init__(self, directories: Sequence[Path], policy: SetPolicy, *, holder: str) -> None:
        self._directories = directories
        self._policy = policy
        self._holder = holder
        self._locks: dict[int, DirectoryLocks] = {}
        self._away: dict[int, str] = {}

    def __enter__(self) -> Self:
        """Take the locks of the nodes that are there, in their order.

        Raises:
            LockTimeoutError: another writer held so many of them that no majority was left.
            LogDirectoryError: a broker holds one, or fewer than a majority are there.
        """
        voters = self._voters()
        others = others_of(voters)
        deadline = system.monotonic() + self._policy.wait_ms / 1000
        busy: LockTimeoutError | None = None
        with ExitStack() as undo:
            undo.callback(self.close)
            for node, members in {**voters.live, **others}.items():
                left_ms = max(0, int(1000 * (deadline - system.monotonic())))
                folders = list(members.values())
                try:
                    with at(folders[0]):
                        self._lock(node, folders, left_ms)
                except LockTimeoutError as error:
                    busy = busy or error
                    self._away[node] = str(error)
                except (LogDirectoryError, OSError) as error:
                    _refuse_broker(folders, error)
                    self._away[node] = str(error)
            if busy is not None and len(self._locks.keys() & voters.live.keys()) < voters.majority:
                raise busy
            undo.pop_all()
        return self

    def _lock(self, node: int, folders: Sequence[Path], timeout_ms: int) -> None:
        """Take the locks of a node; they may have passed on from a thread that was left behind."""
        known = taken_over(folders)
        if isinstance(known, DirectoryLocks):
            self._locks[node] = known
            remembered(Controller).begin()  # what that thread had prepared, it does not know
        else:
            locks = DirectoryLocks(folders, holder=self._holder, timeout_ms=timeout_ms)
            self._locks[node] = locks.__enter__()
        hold(self._locks[node].given, self._locks[node])

    def close(self) -> None:
        """Give all locks back, but for those that have passed on."""
        while self._locks:
            _, locks = self._locks.popitem()
            if let_go(locks.given):
                with ExitStack() as undo:
                    undo.callback(locks.close)  # in any case
                    with suppress(OSError), at(locks.given[0]):
                        locks.close()

    def _voters(self) -> Voters:
        voters = require_voters(self._directories, "there is no commit state of a replicated set")
        if voters.strangers_text:
            _tell_strangers(voters.strangers_text)
        return voters

    def open(
        self,
        *conditions: Condition,
        rolls_back: bool = True,
        copies_all: bool = False,
        room: CopyBudget | None = None,
        deletes: str | None = None,
    ) -> LogSet:
        """Open the set as :meth:`~kafkalog.streaming.store.session.Session.open` does.

        Nodes that are away leave the in-sync sets of the state that is published next. Nodes that
        are back are brought in sync, in bounded steps, or at once if this ``copies_all``. With
        ``room`` for so many bytes those are copied, too, that are to be copied slowly. ``deletes``
        is a topic that goes next.

        REQUIRES: the locks are held.

        Raises:
            LogDirectoryError: fewer than a majority of the nodes are there; or they were restored
                from old copies; or a cluster has the set; or a rollback is not possible.
            CommitError: whether a prepared state is published is not known.
        """
        voters = self._present()
        if not rolls_back:
            log_set, _ = self._set_of(voters)
            for check in conditions:
                check(log_set)
            return log_set
        given = room or CopyBudget(ALL_BYTES if copies_all else COPIED_BYTES)
        opened = partial(self._opened, room=given, moves_slowly=room is not None, deletes=deletes)
        lost = {} if voters.newest.handed_to else find_lost(voters)
        self._put_checkpoints_aside(voters)
        if any(is_in_sync_beside_others(node, voters.newest) for node in lost):
            log_set = opened(voters.without(lost), conditions)
            with _of_earlier_commits():
                log_set.publish(log_set.state.following())  # nobody reads there from now on
            voters, conditions = self._present(), ()
        if lost:
            voters = self._rebuilt(lost, voters)
        return opened(voters, conditions)

    def inspect(self, *conditions: Condition) -> LogSet:
        """Return the set that :meth:`open` would, and change nothing; no lock is needed.

        Raises:
            LockTimeoutError: a writer is at work on a node.
            LogDirectoryError: a broker is, or a cluster has the set; or fewer than a majority of
                the nodes are there, or they were restored from old copies.
        """
        voters = require_voters(self._directories)
        log_set = committed_nodes(voters)
        for members in voters.live.values():
            for folder in members.values():
                check_unused(folder)
        _refuse_handed_over(log_set.state, self._policy)
        for check in conditions:
            check(log_set)
        return log_set

    def _set_of(self, voters: Voters) -> tuple[LogSet, Quorum]:
        nodes = _nodes(voters)
        log_set = LogSet(voters.newest, nodes, lambda: self.verify(nodes))
        _refuse_handed_over(log_set.state, self._policy)
        return log_set, nodes

    def _opened(
        self,
        voters: Voters,
        conditions: Sequence[Condition],
        *,
        room: CopyBudget,
        moves_slowly: bool,
        deletes: str | None,
    ) -> LogSet:
        """Find out what was decided, roll back what is unfinished, and bring nodes in sync."""
        log_set, nodes = self._set_of(voters)
        nodes = self._decided(log_set, nodes, voters)
        for check in conditions:
            check(log_set)
        roll_back(log_set, durable=self._policy.is_durable, deletes=deletes)
        remove_dead(log_set)
        if not log_set.state.handed_to:  # a cluster knows better who leads, and how far
            with _of_earlier_commits():
                self._bring_in_sync(log_set, nodes, room, moves_slowly=moves_slowly)
        return log_set

    @staticmethod
    def _put_checkpoints_aside(voters: Voters) -> None:
        for members in voters.live.values() if not voters.newest.handed_to else ():
            for folder in members.values():
                with suppress(OSError, KafkaLogError), at(folder):
                    put_checkpoints_aside(folder)

    def _rebuilt(self, lost: Mapping[int, LostNode], voters: Voters) -> Voters:
        """Rebuild the nodes that have lost their states; one on which that fails stays away."""
        for node, members in lost.items():
            folders = list(members.values())
            try:
                with at(folders[0]):
                    if node not in self._locks:
                        self._lock(node, folders, 0)
                    rebuild(node, members, voters)
            except (KafkaLogError, OSError) as error:
                self._away[node] = fault_of(error)
                _LOGGER.warning("node %d cannot be rebuilt: %s", node, error)
        return self._present()

    def _decided(self, log_set: LogSet, nodes: Quorum, voters: Voters) -> Quorum:
        """Find out what was decided, and finish that; returns the nodes that are voters then."""
        own = own_states(voters.states, voters.live)
        with _of_earlier_commits():
            change = decide(log_set, nodes, own)
            _refuse_handed_over(log_set.state, self._policy)  # what was prepared may be
            if change is None:
                return nodes
            others = {n: each for n, each in others_of(voters).items() if n in self._locks}
            return finish_change(log_set, change, others, own, self.verify)

    def _bring_in_sync(
        self, log_set: LogSet, nodes: Quorum, room: CopyBudget, *, moves_slowly: bool
    ) -> None:
        remove_moved(log_set, nodes)
        bring_in_sync(log_set, nodes, room, moves_slowly=moves_slowly)
        if self._policy.rebalances:
            log_set.state = preferred(log_set.state, nodes.live)

    def _present(self) -> Voters:
        """Return the voters; those are there whose locks are held.

        Raises:
            LogDirectoryError: fewer than a majority are; or they were restored from old copies.
        """
        voters = self._voters()
        live = {node: members for node, members in voters.live.items() if node in self._locks}
        voters = replace(voters, live=live, missing={**voters.missing, **self._away})
        voters.check_majority()
        return voters

    def lock(self, node: int, folders: Sequence[Path]) -> None:
        """Take the locks of one more node, which is to join the set; they are given back with ours.

        Raises:
            LockTimeoutError: another writer held one of its directories for too long.
            LogDirectoryError: a broker holds one, or the file system has no locks.
        """
        real = {Path(os.path.realpath(folder)) for folder in folders}
        for locks in self._locks.values():
            if {*locks.directories} == real:
                self._locks[node] = locks
                return
        self._lock(node, folders, self._policy.wait_ms)

    def verify(self, nodes: Quorum) -> None:
        """See that the locks of a majority hold; a node whose locks are lost is out.

        Raises:
            NotEnoughReplicasError: fewer than a majority are left.
        """
        for node in nodes.live:
            try:
                with at(self._locks[node].given[0]):
                    self._locks[node].verify()
            except (LogDirectoryError, OSError) as error:
                nodes.fail(node, error)
        nodes.check_majority()


@contextmanager
def _of_earlier_commits() -> Iterator[None]:
    """Tell what earlier commits lack from what a writer is told of its own rows.

    Raises:
        CommitError: in place of ``DurabilityError``, which says that the rows are there.
    """
    try:
        yield
    except DurabilityError as error:
        raise CommitError(
            f"an earlier commit could not be brought to a majority of the nodes: {error.__cause__}."
            " Nothing was written; try again"
        ) from error


@once_per_process
def _tell_strangers(text: str) -> None:
    """Say once that a directory that is named is of no node of the set."""
    _LOGGER.warning("%s", text)


def committed_nodes(voters: Voters) -> LogSet:
    """Return a replicated set as it is committed.

    Raises:
        LogDirectoryError: fewer than a majority of the nodes are there.
    """
    voters.check_majority()
    return LogSet(voters.newest, _nodes(voters))


def _nodes(voters: Voters) -> Quorum:
    live = voters.live
    members = {member: folder for each in live.values() for member, folder in each.items()}
    return Quorum(members, live, voters.newest.voters[:1], dict(voters.missing))


def _refuse_handed_over(state: CommitState, policy: SetPolicy) -> None:
    """Refuse a set that a cluster has: its brokers may have written, each to a node of its own.

    Raises:
        LogDirectoryError: it has, and the policy does not allow that.
    """
    if state.handed_to and not policy.accepts_handed_over:
        raise LogDirectoryError(
            f"set {state.set_id} was handed over to the brokers of cluster {state.handed_to}, and "
            "they alone know what it holds. Stop them, and run `kafkalog broker takeover` with all "
            "nodes. If the handover was cut off, `kafkalog broker handover` ends it"
        )


def _refuse_broker(folders: Sequence[Path], error: Exception) -> None:
    """Stop the whole set if a broker holds a node: it continues without the others."""
    if any(map(_is_of_broker, folders)):
        raise error


def _is_of_broker(folder: Path) -> bool:
    try:
        return broker_holds(folder) and not is_locked(folder / LOCK_FILE)
    except OSError:
        return False


# ----------------------------------------------------------------------------------------------
# Rebuild what a node of a replicated set has lost: its commit state, intent, or a checkpoint.
#
# Example: a bit flips in ``kafkalog.commit`` of one of three nodes. The other two are a majority,
# so they know all that is committed. The damaged file is put aside, and the node gets a state like
# that of a node that was away: the one before the newest, of which it can have had no part. What
# follows is what follows then: its replicas are not in sync, are compared, and get what they lack.
#
# ========================== =====================================================================
# state damaged              rebuilt, if it, or what lies beside it, is of this set
# state removed              rebuilt, if the node has a folder of each partition that it is to have
# state of another set       rebuilt, if the directory holds partitions of this set and none of that
# intent damaged, or foreign rebuilt: where logs were about to grow is not known there any more
# offset checkpoint damaged  put aside; the commit state knows log starts and high watermarks
# ========================== =====================================================================
#
# Other directories stay missing: their disk may not be mounted. What lies below the mount then may
# be locks, what a commit was about to do, and folders that it has made: it had begun at the disk,
# and its next call found another directory. A file of a later release, or one that may not be read,
# is not damaged, and left alone.
#
# A node that forgets may have voted for something. So whoever rebuilds it needs a majority without
# it: each commit that was made is known there, and what was not made by then never will be.


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
        drop_recovery_points([folder], *read_offset_checkpoint(folder, RECOVERY_POINT))
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
