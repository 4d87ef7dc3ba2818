"""Open a log set: identify its directories, create a new one, or add a directory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kafkalog.checkpoints.broker import META_PROPERTIES
from kafkalog.checkpoints.commit_state import STATE_FILE, UNFINISHED_FOLDER, CommitState
from kafkalog.checkpoints.committed import check_one_history
from kafkalog.checkpoints.intent import INTENT_FILE, load_intent
from kafkalog.checkpoints.state_file import find_state, load_state
from kafkalog.checkpoints.voters import members_of
from kafkalog.errors import CheckpointError, LogDirectoryError
from kafkalog.files.atomic import make_with_parents
from kafkalog.files.system import system
from kafkalog.files.watch import stamp_of
from kafkalog.streaming.log.files import parse_partition_directory
from kafkalog.streaming.store.broker_files import drop_entries_of_missing
from kafkalog.streaming.store.log_dirs import LogDirs
from kafkalog.streaming.store.log_set import LogSet
from kafkalog.streaming.store.nodes import Node, unfinished_salvage
from kafkalog.streaming.store.recovery.lost_partitions import MissingMembers
from kafkalog.streaming.store.recovery.rollback import roll_back

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kafkalog.streaming.store.policy import SetPolicy

__all__ = [
    "check_given",
    "check_no_broker_lived",
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
