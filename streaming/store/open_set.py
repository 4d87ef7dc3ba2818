"""Open a log set: identify its directories, create a new one, of nodes too, or add a directory."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalog.checkpoints.broker import META_PROPERTIES
from kafkalog.checkpoints.commit_state import (
    PREPARED_FILE,
    STATE_FILE,
    UNFINISHED_FOLDER,
    CommitState,
    NodeState,
    ReplicaState,
)
from kafkalog.checkpoints.committed import check_one_history
from kafkalog.checkpoints.intent import INTENT_FILE, load_intent
from kafkalog.checkpoints.state_file import find_state, load_state
from kafkalog.checkpoints.voters import find_voters, members_of
from kafkalog.errors import CheckpointError, LogDirectoryError, OptionError
from kafkalog.files.atomic import make_with_parents
from kafkalog.files.deferred_signals import shielded_part
from kafkalog.files.paths import NodePlace
from kafkalog.files.system import system
from kafkalog.files.timeouts import at, stalled
from kafkalog.files.watch import stamp_of
from kafkalog.streaming.log.files import parse_partition_directory
from kafkalog.streaming.store.broker_files import drop_entries_of_missing
from kafkalog.streaming.store.file_systems import (
    check_file_system,
    note_mounts,
    refuse_unmounted,
)
from kafkalog.streaming.store.locks import DirectoryLocks, check_no_broker
from kafkalog.streaming.store.log_dirs import LogDirs
from kafkalog.streaming.store.log_set import LogSet
from kafkalog.streaming.store.nodes import Node, unfinished_salvage
from kafkalog.streaming.store.recovery.lost_partitions import MissingMembers
from kafkalog.streaming.store.recovery.rollback import roll_back
from kafkalog.streaming.store.replicas.election import MOST_BY_DEFAULT
from kafkalog.streaming.store.replicas.quorum import Quorum

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kafkalog.checkpoints.voters import Voters
    from kafkalog.streaming.store.policy import SetPolicy

__all__ = [
    "check_given",
    "check_no_broker_lived",
    "ensure_nodes",
    "has_nodes",
    "inspect_set",
    "known_set",
    "make_log_directory",
    "open_set",
    "replicated_set_error",
]


def check_given(folders: Sequence[Path]) -> None:
    """Refuse what can be no set of log directories, whatever lies in it.

    Raises:
        LogDirectoryError: a folder is given twice, or is the folder of a partition.
    """
    if len(folders) > 1:
        _check_distinct(folders)
    for folder in folders:
        _check_no_partition(folder)


def _check_distinct(folders: Sequence[Path]) -> None:
    """Refuse one folder under two names: nobody can hold its locks twice."""
    known: dict[object, Path] = {}
    for folder in folders:
        other = known.setdefault(_identity(folder), folder)
        if other is not folder:
            raise LogDirectoryError(
                f"log directory {folder} is given twice, by way of a link or a mount: it is {other}"
            )


def _identity(folder: Path) -> object:
    try:
        found = folder.stat()
    except FileNotFoundError:
        return folder
    return found.st_dev, found.st_ino


def _check_no_partition(folder: Path) -> None:
    """Refuse a partition's folder, which can be read alone and not written."""
    if parse_partition_directory(folder.name) is None or not folder.is_dir():
        return
    if any(each.path == folder for each in LogDirs([folder]).partitions().values()):
        raise LogDirectoryError(
            f"{folder} is the folder of a partition: name the log directory around it, "
            f"{folder.parent}, and the topic by an option or a column"
        )


def make_log_directory(folder: Path) -> None:
    """Make a log directory whose name is on the disk: what is committed in it is lost without.

    Raises:
        LogDirectoryError: it cannot be made.
    """
    if (folder / STATE_FILE).exists():
        return  # who wrote that has seen to it
    for around in () if folder.is_dir() else folder.parents:
        if _is_checkpoint(around):
            raise LogDirectoryError(
                f"log directory {folder} is not there, and would lie in {around}, which is the "
                "checkpoint of a streaming query: name a folder elsewhere"
            )
    try:
        make_with_parents(folder)
    except OSError as error:
        raise LogDirectoryError(f"log directory {folder} cannot be made: {error}") from error


def _is_checkpoint(folder: Path) -> bool:
    """Whether Spark keeps a query's place in a folder (its ``checkpointLocation``)."""
    return (folder / "metadata").is_file() and (folder / "offsets").is_dir()


def known_set(folders: Sequence[Path]) -> CommitState | None:
    """Return the newest state of the set that all of ``folders`` belong to; None if they are none.

    Raises:
        LogDirectoryError: one of the set is missing, or belongs to another set or was copied.
        CheckpointError: a state is damaged or newer.
    """
    known, strangers = _members_and_strangers(folders, find_state)
    if strangers or _starts(known, strangers):
        return None
    newest = _newest(known)
    _members(known, newest)
    return newest


def open_set(
    folders: Sequence[Path], policy: SetPolicy, verify_locks: Callable[[], None]
) -> LogSet:
    """Find out which set the directories are; start one where there is nothing yet.

    REQUIRES: their locks are held, which ``verify_locks`` proves; the paths are real ones.

    Raises:
        LogDirectoryError: a directory of the set is missing; one belongs to another set, was
            copied, or was away while the others committed; a broker lived here and the policy does
            not allow that; or the locks are lost.
        CheckpointError: a state is damaged or newer; or there is none where there should be.
    """
    files = {folder: stamp_of(str(folder / STATE_FILE)) for folder in folders}
    known, strangers, starts = _look(folders, policy)
    if starts:
        return _start(folders, verify_locks)
    newest = _newest(known)
    log_set = LogSet(newest, Node(_members(known, newest, strangers)), verify_locks)
    for folder, state in known.items():
        log_set.node.note_read(folder, files[folder], state.stamp)
    _check_may_grow(policy, strangers, known)
    intents = {folder: found for folder in known if (found := load_intent(folder)) is not None}
    check_one_history({folder: state.stamp for folder, state in known.items()}, intents)
    if not strangers:
        return log_set
    # To name new members is a state of its own, and has the next sequence number: the one of an
    # unfinished commit, which would count as published from then on.
    roll_back(log_set, durable=True)
    return _join(newest, log_set, strangers)


def _look(
    folders: Sequence[Path], policy: SetPolicy
) -> tuple[dict[Path, CommitState], list[Path], bool]:
    """Return the states there are, who has none and may join, and whether a set is to start."""
    for folder in folders:
        check_no_broker_lived(folder, policy)
    known, strangers = _members_and_strangers(folders)
    starts = _starts(known, strangers)
    for folder in strangers:
        _check_may_join(folder, policy, joins=not starts)
    return known, strangers, starts


def _starts(known: Mapping[Path, CommitState], strangers: Sequence[Path]) -> bool:
    """Return whether directories are to become a set: nothing was ever committed in any of them.

    A start that was cut off, or for which one of them was not mounted, has left them of no one set.
    """
    if not known:
        return True
    is_one_set = not strangers and len({state.set_id for state in known.values()}) == 1
    if is_one_set or _newest(known).sequence:
        return False
    return not any((folder / INTENT_FILE).exists() for folder in known)


def inspect_set(folders: Sequence[Path], policy: SetPolicy) -> LogSet:
    """Return the set that :func:`open_set` would give, and change nothing; no lock is needed.

    Raises:
        LogDirectoryError, CheckpointError: as :func:`open_set`.
    """
    known, strangers, starts = _look(folders, policy)
    members = {} if starts else _members(known, _newest(known), strangers)
    if not starts:
        _check_may_grow(policy, strangers, known)
    members |= {f"new {folder}": folder for folder in (folders if starts else strangers)}
    state = CommitState(0, "", "", ()) if starts else _newest(known)
    return LogSet(replace(state, member_ids=tuple(members)), Node(members))


def _start(folders: Sequence[Path], verify_locks: Callable[[], None]) -> LogSet:
    """Start a set; what a start that was cut off has left is written over."""
    members = {_new_id(): folder for folder in folders}
    state = CommitState(0, _new_id(), "", tuple(members), commit_id=_new_id())
    _write(state, members, verify_locks)
    return LogSet(state, Node(members), verify_locks)


def _join(newest: CommitState, log_set: LogSet, folders: Sequence[Path]) -> LogSet:
    """Take empty directories into the set, as a broker's ``log.dirs`` may grow.

    They are invited first, by a copy of the present state that names them. They belong once a
    member names them: its rename is what counts, or the members could continue without them, and
    have two states of one sequence number. See :func:`_members_and_strangers`.
    """
    for folder in folders:
        drop_entries_of_missing(folder)  # partitions that are moved here later are others
    new = {_new_id(): folder for folder in folders}
    joined = {**log_set.members, **new}
    invitation = replace(newest, member_ids=tuple(joined))
    for member, folder in new.items():
        _write(invitation, {member: folder}, log_set.verify_locks)
    state = invitation.following()
    _write(state, joined, log_set.check_current)
    return LogSet(state, Node(joined), log_set.verify_locks)


def replicated_set_error(folder: Path, state: CommitState) -> LogDirectoryError:
    """Say that a log directory is not one of a set that is written as one node."""
    return LogDirectoryError(
        f"log directory {folder} belongs to a replicated set of {len(state.nodes)} nodes, which "
        "this does not change. Writers and `kafkalog recover` do: name all its nodes in one path, "
        "with semicolons between them"
    )


def _members_and_strangers(
    folders: Sequence[Path], read: Callable[[Path], CommitState | None] = load_state
) -> tuple[dict[Path, CommitState], list[Path]]:
    """Read the states of those that belong to a set; the rest belongs to none.

    An empty directory that was only invited belongs to none: whoever took it in was cut off.

    Raises:
        CheckpointError: a state is damaged or newer.
    """
    states = {folder: read(folder) for folder in folders}
    for folder, state in states.items():
        if state is not None and state.is_replicated:
            raise replicated_set_error(folder, state)
    known = {folder: state for folder, state in states.items() if state is not None}
    named = {
        folder: state for folder, state in known.items() if not _is_only_invited(folder, known)
    }
    return named, [folder for folder in folders if folder not in named]


def _is_only_invited(folder: Path, states: Mapping[Path, CommitState]) -> bool:
    state, newest = states[folder], _newest(states)
    is_unnamed = state.set_id == newest.set_id and state.member_id not in newest.member_ids
    return is_unnamed and not LogDirs([folder]).partitions()


def _write(state: CommitState, members: Mapping[str, Path], check: Callable[[], None]) -> None:
    """Write a state whose rename ``check`` has let pass."""
    failed = Node(members).publish(state, check)
    if failed is not None:
        raise failed


def _newest(states: Mapping[Path, CommitState]) -> CommitState:
    """Return the state that counts; an invitation does not count beside what it copies."""
    return max(states.values(), key=lambda state: state.rank)


def _members(
    states: Mapping[Path, CommitState], newest: CommitState, strangers: Sequence[Path] = ()
) -> dict[str, Path]:
    """Match directories with the members that the newest state names; ``strangers`` have none."""
    for folder, state in states.items():
        if state.set_id != newest.set_id or state.member_id not in newest.member_ids:
            raise LogDirectoryError(
                f"log directory {folder} belongs to another set ({state.set_id}) than the others "
                f"({newest.set_id}): directories are written together with those that they were "
                "first written with"
            )
    found = members_of(states)
    if len(found) < len(newest.member_ids):
        given = tuple(found.values())
        missing = MissingMembers(newest.set_id, len(newest.member_ids), given, tuple(strangers))
        raise LogDirectoryError(missing.refusal)
    return found


def check_no_broker_lived(folder: Path, policy: SetPolicy) -> None:
    """Refuse a directory of a broker, unless the policy allows that.

    Raises:
        LogDirectoryError: a broker lived there.
    """
    if (folder / META_PROPERTIES).exists() and not policy.allows_broker:
        raise LogDirectoryError(
            f"log directory {folder} has a {META_PROPERTIES}: a broker lived here, and does not "
            f"know of what others append. {policy.broker_advice}"
        )


def _check_may_grow(
    policy: SetPolicy, strangers: Sequence[Path], known: Mapping[Path, CommitState]
) -> None:
    """Refuse directories that nobody has begun to take into a set, unless it may grow."""
    for folder in strangers:
        if not policy.may_grow and load_state(folder) is None:
            raise LogDirectoryError(
                f"log directory {folder} does not belong to the set of "
                f"{', '.join(map(str, known))}: leave it out. The next write that names it takes "
                "an empty directory into the set"
            )


def _check_may_join(folder: Path, policy: SetPolicy, *, joins: bool) -> None:
    """Refuse a directory without a state that is not empty: its state may have been lost."""
    salvaged = unfinished_salvage(folder)
    if salvaged is not None:
        raise LogDirectoryError(salvaged)
    for name in (INTENT_FILE, UNFINISHED_FOLDER):
        if (folder / name).exists():
            raise CheckpointError(
                f"log directory {folder} has {name} but no {STATE_FILE}: its commit state was "
                "lost. Restore all log directories of the set from one backup"
            )
    partitions = LogDirs([folder]).partitions()
    if partitions and (joins or not policy.allows_broker):
        raise CheckpointError(
            f"log directory {folder} holds {len(partitions)} partitions ({next(iter(partitions))}, "
            f"…) and no {STATE_FILE}: its commit state was lost, or others made them. Restore it; "
            "or, to continue from what the logs hold, run `kafkalog broker takeover`"
        )


def _new_id() -> str:
    return system.random_id().hex


# ----------------------------------------------------------------------------------------------
# Start a replicated set, of empty nodes or around one that is a set already.
#
# A set that is there becomes the first node: its partitions are in sync there, and lag on the
# others until the next commits, or ``kafkalog recover``, have copied them.


def has_nodes(paths: Sequence[str | Path]) -> bool:
    """Whether paths are those of several nodes, or of one that is a witness."""
    return any(isinstance(path, NodePlace) for path in paths)


@shielded_part
def ensure_nodes(paths: Sequence[NodePlace], policy: SetPolicy) -> str:
    """Return the id of the replicated set whose nodes are named; new nodes start one.

    Raises:
        OptionError: all of them are witnesses.
        LogDirectoryError, CheckpointError: they are none that may be written; or fewer than a
            majority of a set is there.
    """
    folders = [Path(path) for path in paths]
    _finish_start(folders, policy)
    voters = find_voters(folders)
    if voters is not None and _has_started(voters, folders):
        voters.check_majority()
        for folder in folders:
            with suppress(OSError), at(folder):  # who takes the locks finds out what fails
                _check_member(folder, voters, policy, given=len(paths))
                note_mounts([folder])
        return voters.newest.set_id
    nodes = _named_nodes(paths)
    check_given(folders)
    for folder in folders:
        refuse_unmounted(folder)
        make_with_parents(folder)
        check_file_system(folder)
        check_no_broker_lived(folder, policy)
        check_no_broker(folder, timeout_ms=policy.wait_ms)
    with DirectoryLocks(folders, holder="a new writer", timeout_ms=policy.wait_ms) as locks:
        found = find_voters(folders)  # another writer may have been faster
        if found is not None and _has_started(found, folders):
            return found.newest.set_id
        set_id = _start_nodes(nodes, locks).set_id
    note_mounts(folders)
    return set_id


def _check_member(folder: Path, voters: Voters, policy: SetPolicy, *, given: int) -> None:
    check_no_broker_lived(folder, policy)
    if folder not in voters.states and _is_extra(folder, given, voters.newest):
        raise LogDirectoryError(
            f"log directory {folder} belongs to no node of set {voters.newest.set_id}: leave it out"
        )


def _has_started(voters: Voters, folders: Sequence[Path]) -> bool:
    """Whether a set is there; one that was cut off in starting is started again."""
    is_whole = not voters.missing
    return voters.newest.sequence > 0 or is_whole or not all(each.is_dir() for each in folders)


@shielded_part
def _finish_start(folders: Sequence[Path], policy: SetPolicy) -> None:
    """Put in place on all nodes the first state of a set that a writer was cut off in starting.

    Only its first state can lie prepared where none is in place.
    """
    if all(_may_be_whole(folder) for folder in folders):
        return
    with DirectoryLocks(
        [folder for folder in folders if folder.is_dir()],
        holder="a new writer",
        timeout_ms=policy.wait_ms,
    ):
        voters = find_voters(folders)
        if voters is None or voters.newest.controller:
            return  # it is started again; or it has begun, and what is prepared is no first state
        for folder in folders:
            prepared = load_state(folder, PREPARED_FILE) if load_state(folder) is None else None
            if prepared is not None and prepared.stamp == voters.newest.stamp:
                (folder / PREPARED_FILE).replace(folder / STATE_FILE)


def _may_be_whole(folder: Path) -> bool:
    """Whether a directory has its first state; one that stalls has to wait."""
    if stalled(folder) is not None:
        return True
    try:
        with at(folder):
            return (folder / STATE_FILE).exists() or not (folder / PREPARED_FILE).exists()
    except OSError:
        return True  # of a node that cannot be read nothing is finished


def _is_extra(folder: Path, given: int, state: CommitState) -> bool:
    """Whether a directory without a state is one too many: else it is what is left of a member."""
    return folder.is_dir() and given > len(state.member_ids)


def _named_nodes(paths: Sequence[NodePlace]) -> list[tuple[list[Path], bool]]:
    nodes: dict[int, list[NodePlace]] = {}
    for path in paths:
        nodes.setdefault(path.node, []).append(path)
    found = [([Path(p) for p in each], each[0].is_witness) for each in nodes.values()]
    if all(is_witness for _, is_witness in found):
        raise OptionError("option 'path' names witnesses only, and they hold no partitions")
    return found


def _start_nodes(
    nodes: Sequence[tuple[Sequence[Path], bool]], locks: DirectoryLocks
) -> CommitState:
    first = _set_that_is_there(nodes)
    known = {} if first is None else {load_state(f).member_id: f for f in nodes[first][0]}  # type: ignore[union-attr]
    before = None if first is None else known_set(nodes[first][0])
    by_node: dict[int, dict[str, Path]] = {}
    for number, (folders, _) in enumerate(nodes):
        is_known = number == first
        by_node[number] = known if is_known else {system.random_id().hex: f for f in folders}
    members = {member: folder for each in by_node.values() for member, folder in each.items()}
    states = tuple(
        NodeState(number, tuple(by_node[number]), is_witness)
        for number, (_, is_witness) in enumerate(nodes)
    )
    state = CommitState(0, system.random_id().hex, "", (), commit_id=system.random_id().hex)
    if before is not None and first is not None:
        state = _with_replicas(before.following(), states, first)
    state = replace(state, member_ids=tuple(members), nodes=states, controller_epoch=1)
    starting = Quorum(members, by_node, state.voters, declared=[state.stamp])
    failed = starting.publish(state, locks.verify)
    if failed is not None:
        raise failed
    return state


def _set_that_is_there(nodes: Sequence[tuple[Sequence[Path], bool]]) -> int | None:
    """Return which node is a set already; None if none is.

    Raises:
        LogDirectoryError: two nodes are, or a witness is; or a node has partitions and no commit
            state, or a commit that was cut off.
    """
    found = None
    for number, (folders, is_witness) in enumerate(nodes):
        states = [state for folder in folders if (state := load_state(folder)) is not None]
        if not states or (states[0].sequence == 0 and not LogDirs(folders).partitions()):
            if LogDirs(folders).partitions():
                raise LogDirectoryError(
                    f"{', '.join(map(str, folders))} holds partitions and no commit state: run "
                    "`kafkalog broker takeover` on it first"
                )
            continue
        if found is not None or is_witness:
            raise LogDirectoryError(
                f"{', '.join(map(str, folders))} is a set of its own already, and cannot become "
                "another node of one: only one node may hold anything, and no witness. Name an "
                "empty directory in its place"
            )
        if any(load_intent(folder) is not None for folder in folders):
            raise LogDirectoryError(
                f"{', '.join(map(str, folders))} has a commit that was cut off: run `kafkalog "
                "recover` on it first"
            )
        found = number
    return found


def _with_replicas(state: CommitState, nodes: Sequence[NodeState], first: int) -> CommitState:
    data = [node.node_id for node in nodes if not node.is_witness]
    others = [node for node in data if node != first]
    factor = min(len(data), MOST_BY_DEFAULT)
    topics = {}
    for key, topic in state.topics.items():
        replicas = {
            number: ReplicaState(first, (first, *_turned(others, number)[: factor - 1]), (first,))
            for number in topic.partitions
        }
        topics[key] = replace(topic, replicas=replicas)
    return replace(state, topics=topics)


def _turned(nodes: Sequence[int], steps: int) -> tuple[int, ...]:
    turn = steps % len(nodes) if nodes else 0
    return (*nodes[turn:], *nodes[:turn])
