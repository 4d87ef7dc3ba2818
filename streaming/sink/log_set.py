"""The log directories that are written as one set: who belongs to it, and what it has committed.

A set has an id, and each of its directories a member id; every copy of the commit state names them
all. So a directory that is missing (not mounted), was copied, or belongs elsewhere is noticed,
where an empty folder in its place would start all of its partitions again at offset 0.
"""

from __future__ import annotations

import logging
import os
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from kafkalog.checkpoints.broker import META_PROPERTIES
from kafkalog.checkpoints.commit_stamp import load_stamp
from kafkalog.checkpoints.commit_state import (
    INTENT_FILE,
    STATE_FILE,
    UNFINISHED_FOLDER,
    CommitState,
    load_intent,
    load_state,
)
from kafkalog.errors import CheckpointError, DurabilityError, LogDirectoryError
from kafkalog.files.regular import fsync_directory
from kafkalog.files.shield import shielded
from kafkalog.streaming.log.files import parse_partition_directory
from kafkalog.streaming.log.log_dir import LogDirs
from kafkalog.streaming.sink.file_systems import check_file_system
from kafkalog.streaming.sink.guard import unfinished_salvage
from kafkalog.streaming.sink.locks import DirectoryLocks, check_no_broker
from kafkalog.streaming.sink.publishing import lost_locks, write_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kafkalog.checkpoints.commit_state import Intent
    from kafkalog.streaming.sink.write_options import WriteOptions

__all__ = ["LogSet", "check_given", "ensure_set"]

_LOG: Final = logging.getLogger("kafkalog.sink")


@shielded
def ensure_set(options: WriteOptions) -> str:
    """Give the id of the set that the log directories are; an empty directory starts one.

    Folders that do not exist are made.

    Raises:
        LogDirectoryError, CheckpointError: they are no set that may be written, see
            :meth:`LogSet.open`; or the system cannot read or write them.
    """
    try:
        return _ensure_set(options)
    except OSError as error:
        raise LogDirectoryError(
            f"log directories {', '.join(options.paths)} cannot be used: {error}"
        ) from error


def _ensure_set(options: WriteOptions) -> str:
    directories = [Path(os.path.realpath(path)) for path in options.paths]
    check_given(directories)
    for folder in directories:
        _make_with_parents(folder)
        check_file_system(folder)
        _check_no_broker_lived(folder, options)
        check_no_broker(folder, timeout_ms=options.max_block_ms)
    known, strangers = _told_apart(directories)
    if not strangers:
        newest = _newest(known)
        _members(known, newest)
        return newest.set_id
    with DirectoryLocks(directories, holder="a new writer", timeout_ms=options.max_block_ms):
        return LogSet.open(directories, options).state.set_id


def check_given(folders: Sequence[Path]) -> None:
    """Refuse what can be no set of log directories, whatever lies in it.

    Raises:
        LogDirectoryError: a folder is given twice, or is the folder of a partition.
    """
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


def _make_with_parents(folder: Path) -> None:
    """Make a log directory whose name is on the disk: what is committed in it is lost without."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        for each in reversed(missing):
            # By the umask: what is around it may be open to everybody, as /tmp is.
            each.mkdir(exist_ok=True)
            fsync_directory(each.parent)
    except OSError as error:
        raise LogDirectoryError(f"log directory {folder} cannot be made: {error}") from error


@dataclass
class LogSet:
    """An opened set; whoever has it holds the locks of all its directories.

    ``state`` is the newest state of any directory, ``members`` the directories by member id.
    ``verify_locks`` raises if the locks are lost.
    """

    state: CommitState
    members: Mapping[str, Path]
    verify_locks: Callable[[], None] = lambda: None

    @classmethod
    def open(cls, directories: Sequence[Path], options: WriteOptions) -> Self:
        """Find out which set the directories are; start one where there is nothing yet.

        Raises:
            LogDirectoryError: a directory of the set is missing, one belongs to another set or was
                copied, or a broker lived here and ``allowBrokerDirectory`` is not set.
            CheckpointError: a state is damaged or newer; or there is none where there should be.
        """
        folders = [Path(os.path.realpath(folder)) for folder in directories]
        for folder in folders:
            _check_no_broker_lived(folder, options)
        known, strangers = _told_apart(folders)
        begun = any((folder / INTENT_FILE).exists() for folder in known)
        starts = not known or (_newest(known).sequence == 0 and bool(strangers) and not begun)
        for folder in strangers:
            _check_may_join(folder, options, joins=not starts)
        if starts:
            return cls(*_start(folders))
        newest = _newest(known)
        log_set = cls(newest, _members(known, newest))
        if not strangers:
            return log_set
        log_set.take_back()
        return cls(*_join(newest, log_set.members, strangers))

    @classmethod
    def look(cls, directories: Sequence[Path], options: WriteOptions) -> Self:
        """Give the set that :meth:`open` would give, and change nothing; nothing is locked either.

        Raises:
            LogDirectoryError, CheckpointError: as :meth:`open`.
        """
        folders = [Path(os.path.realpath(folder)) for folder in directories]
        for folder in folders:
            _check_no_broker_lived(folder, options)
        known, strangers = _told_apart(folders)
        for folder in strangers:
            _check_may_join(folder, options, joins=bool(known))
        members = {} if not known else _members(known, _newest(known))
        members |= {f"new {folder}": folder for folder in strangers}
        state = _newest(known) if known else CommitState(0, "", "", ())
        return cls(replace(state, member_ids=tuple(members)), members)

    @property
    def directories(self) -> list[Path]:
        """The log directories."""
        return list(self.members.values())

    def member_of(self, folder: Path) -> str:
        """Give the member id of a log directory."""
        known = {path: member for member, path in self.members.items()}
        return known.get(folder) or known[Path(os.path.realpath(folder))]

    def unfinished(self) -> list[Intent]:
        """List the intents that no state has published; more than one only after a crash in one."""
        found = (load_intent(folder) for folder in self.directories)
        pending = [i for i in found if i is not None and i.sequence > self.state.sequence]
        return [intent for slot, intent in enumerate(pending) if intent not in pending[:slot]]

    def take_back(self) -> None:
        """Take an unfinished commit back before the set grows.

        To name new members is a state of its own, and has the next sequence number: the one of the
        unfinished commit, which would count as published from then on.
        """
        from kafkalog.streaming.sink.recovery import take_back  # noqa: PLC0415 - seldom needed

        take_back(self, durable=True)

    def is_outdated(self) -> bool:
        """Tell whether a directory holds a newer state than this one, or another one as new.

        Raises:
            OSError, CheckpointError: that cannot be read.
        """
        known = self.state.stamp
        stamps = (load_stamp(folder) for folder in self.directories)
        return any(s is not None and s != known and s.sequence >= known.sequence for s in stamps)

    def check_current(self) -> None:
        """See that the locks are held, and that nobody has published since this was opened.

        Raises:
            CommitError: somebody has, though the locks seemed to be held.
            LogDirectoryError: they are lost.
            OSError, CheckpointError: that cannot be read.
        """
        self.verify_locks()
        if self.is_outdated():
            raise lost_locks(self.directories[0], self.state.sequence + 1)

    def publish(self, state: CommitState) -> None:
        """Make ``state`` the truth. The first rename is the commit: after it nothing is undone.

        Raises:
            OSError: nothing was published.
            LogDirectoryError: likewise, since the locks are lost.
            CommitError: likewise, since another writer has published meanwhile; or it is not known
                whether this was, since what is there cannot be read.
            DurabilityError: it was published, and may not survive a loss of power.
        """
        failed = write_state(state, self.members, check=self.check_current)
        self.state = state
        if failed is not None:
            raise DurabilityError(
                f"commit {state.sequence} is published and its rows are visible, but a loss of "
                f"power may take it away: {failed}. Do not write the rows again as new ones: a "
                "query that runs its batch again, or a write under the same id and version, makes "
                "them durable"
            ) from failed

    def make_durable(self) -> None:
        """Let the state survive a loss of power: who published it may have ended before that.

        It is written again. To sync what is there would not tell whether that has failed before.

        Raises:
            OSError: it may not survive.
            CommitError: another writer has published meanwhile.
        """
        failed = write_state(self.state, self.members, check=self.check_current)
        if failed is not None:
            raise failed


def _start(folders: Sequence[Path]) -> tuple[CommitState, dict[str, Path]]:
    """Start a set; what a start that was cut off has left is written over."""
    members = {_new_id(): folder for folder in folders}
    state = CommitState(0, _new_id(), "", tuple(members), commit_id=_new_id())
    _write(state, members)
    return state, members


def _join(
    newest: CommitState, members: Mapping[str, Path], folders: Sequence[Path]
) -> tuple[CommitState, dict[str, Path]]:
    """Take empty directories into the set, as a broker's ``log.dirs`` may grow.

    They are invited first, by a copy of the present state that names them. They belong once a
    member names them: its rename is what counts, or the members could go on without them, and
    have two states of one sequence number. See :func:`_told_apart`.
    """
    new = {_new_id(): folder for folder in folders}
    joined = {**members, **new}
    invitation = replace(newest, member_ids=tuple(joined))
    for member, folder in new.items():
        _write(invitation, {member: folder})
    state = invitation.following()
    _write(state, joined)
    return state, joined


def _told_apart(folders: Sequence[Path]) -> tuple[dict[Path, CommitState], list[Path]]:
    """Read the states of those that belong to a set; the rest belongs to none.

    An empty directory that was only invited belongs to none: whoever took it in was cut off.

    Raises:
        CheckpointError: a state is damaged or newer.
    """
    states = {folder: load_state(folder) for folder in folders}
    known = {folder: state for folder, state in states.items() if state is not None}
    named = {
        folder: state for folder, state in known.items() if not _is_only_invited(folder, known)
    }
    return named, [folder for folder in folders if folder not in named]


def _is_only_invited(folder: Path, states: Mapping[Path, CommitState]) -> bool:
    state, newest = states[folder], _newest(states)
    is_unnamed = state.set_id == newest.set_id and state.member_id not in newest.member_ids
    return is_unnamed and not LogDirs([folder]).partitions()


def _write(state: CommitState, members: Mapping[str, Path]) -> None:
    failed = write_state(state, members)
    if failed is not None:
        raise failed


def _newest(states: Mapping[Path, CommitState]) -> CommitState:
    """Give the state that counts: of an invitation and what it was copied from, not the former."""
    return max(states.values(), key=lambda state: (state.sequence, -len(state.member_ids)))


def _members(states: Mapping[Path, CommitState], newest: CommitState) -> dict[str, Path]:
    """Match directories with the members that the newest state names."""
    found: dict[str, Path] = {}
    for folder, state in states.items():
        if state.set_id != newest.set_id or state.member_id not in newest.member_ids:
            raise LogDirectoryError(
                f"log directory {folder} belongs to another set ({state.set_id}) than the others "
                f"({newest.set_id}): directories are written together with those that they were "
                "first written with"
            )
        other = found.setdefault(state.member_id, folder)
        if other != folder:
            raise LogDirectoryError(
                f"log directories {other} and {folder} are the same member of their set: one is a "
                "copy of the other; leave it out"
            )
    if len(found) < len(newest.member_ids):
        raise LogDirectoryError(
            f"{len(newest.member_ids) - len(found)} of the {len(newest.member_ids)} log "
            f"directories of set {newest.set_id} are missing: only {_listed(found.values())} were "
            "given or are mounted. Partitions that live in the missing ones would start again at "
            "offset 0"
        )
    return found


def _check_no_broker_lived(folder: Path, options: WriteOptions) -> None:
    if (folder / META_PROPERTIES).exists() and not options.allow_broker_directory:
        raise LogDirectoryError(
            f"log directory {folder} has a {META_PROPERTIES}: a broker lived here, and does not "
            "know of what others append. The option allowBrokerDirectory=true permits it"
        )


def _check_may_join(folder: Path, options: WriteOptions, *, joins: bool) -> None:
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
    if partitions and (joins or not options.allow_broker_directory):
        raise CheckpointError(
            f"log directory {folder} holds {len(partitions)} partitions ({next(iter(partitions))}, "
            f"…) and no {STATE_FILE}: its commit state was lost, or others made them. Restore it; "
            "or, to continue from what the logs hold, run `kafkalog takeover`"
        )


def _listed(folders: Iterable[Path]) -> str:
    return ", ".join(str(folder) for folder in folders)


def _new_id() -> str:
    return uuid.uuid4().hex
