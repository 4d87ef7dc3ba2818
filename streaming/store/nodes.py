"""Store intent and commit state on the nodes of a set, and keep brokers out meanwhile."""

from __future__ import annotations

import errno
import logging
import os
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import remove_clean_shutdown_marker
from kafkalog.checkpoints.commit_state import (
    SNAPSHOT,
    STATE_FILE,
    UNFINISHED_FOLDER,
    load_stamp,
)
from kafkalog.checkpoints.intent import INTENT_FILE, load_intent
from kafkalog.checkpoints.state_file import StateContent, note_published
from kafkalog.errors import CheckpointError, CommitError, LogDirectoryError
from kafkalog.files.atomic import TEMPORARY_SUFFIX, prepare, publish, write_atomically
from kafkalog.files.regular import close_quietly, fsync_directory, make_directory, read_regular
from kafkalog.files.watch import stamp_from, stamp_of
from kafkalog.streaming.store.file_systems import is_shared
from kafkalog.streaming.store.log_dirs import LogDirs, log_dirs_of_set

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from kafkalog.checkpoints.commit_state import CommitStamp, CommitState
    from kafkalog.checkpoints.intent import Intent
    from kafkalog.files.watch import Stamp
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory

__all__ = [
    "HANDOVER_NOTE",
    "SALVAGE_NOTE",
    "Node",
    "forget_prepared",
    "handover_is_over",
    "is_being_handed_over",
    "keep_brokers_out",
    "let_brokers_in",
    "lost_locks",
    "note_handover",
    "note_salvage",
    "salvage_is_over",
    "unfinished_salvage",
    "write_state",
]


# ----------------------------------------------------------------------------------------------
# The folder ``kafkalog.unfinished``, whose name keeps a broker from starting on half a change.
#
# A commit that is cut off leaves it empty. The next writer rolls the commit back and removes it.
#
# A salvage that is cut off leaves a note in it. Then it stays until the salvage has ended,
# whoever writes meanwhile: a broker would cut off everything after the damage that is left. So
# does a handover of several nodes: a broker of one that started while others are not ready would
# lead.


SALVAGE_NOTE: Final = f"{UNFINISHED_FOLDER}/salvage"
"""A file that holds the arguments of the salvage."""

HANDOVER_NOTE: Final = f"{UNFINISHED_FOLDER}/handover"
"""A file that is there from the begin of a handover of several nodes to its end."""

_LONGEST_NOTE: Final = 2000


def keep_brokers_out(log_dir: Path) -> None:
    """Make the folder, if it is not there.

    Raises:
        LogDirectoryError: something else has its name.
    """
    guard = log_dir / UNFINISHED_FOLDER
    try:
        make_directory(guard)
    except FileExistsError:
        if guard.is_symlink() or not guard.is_dir():
            raise _no_guard(guard) from None


def _no_guard(guard: Path) -> LogDirectoryError:
    return LogDirectoryError(
        f"{guard} is no folder, and would not keep a broker from starting on an unfinished "
        "commit: remove it"
    )


def let_brokers_in(log_dir: Path) -> None:
    """Remove the folder, unless a salvage or a handover has still to come to its end.

    Raises:
        LogDirectoryError: something else has its name, or lies in it.
    """
    guard = log_dir / UNFINISHED_FOLDER
    notes = [log_dir / name for name in (SALVAGE_NOTE, HANDOVER_NOTE)]
    try:
        guard.rmdir()
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise _no_guard(guard) from None
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        if any(note.exists() for note in notes):
            return
        for note in notes:
            note.with_name(note.name + TEMPORARY_SUFFIX).unlink(missing_ok=True)
        _remove_guard(guard)


def _remove_guard(guard: Path) -> None:
    try:
        guard.rmdir()
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        raise LogDirectoryError(
            f"{guard} holds {next(guard.iterdir()).name}, which is not of kafkalog: remove it"
        ) from error


def note_salvage(log_dir: Path, arguments: str) -> None:
    """Keep brokers out, durably, until :func:`salvage_is_over`."""
    keep_brokers_out(log_dir)
    fsync_directory(log_dir)
    text = arguments if len(arguments) <= _LONGEST_NOTE else f"{arguments[:_LONGEST_NOTE]} …"
    write_atomically(log_dir / SALVAGE_NOTE, text.encode("utf-8", "backslashreplace"))


def salvage_is_over(log_dir: Path) -> None:
    """Let brokers in again, if nothing else keeps them out."""
    (log_dir / SALVAGE_NOTE).unlink(missing_ok=True)
    let_brokers_in(log_dir)


def note_handover(log_dir: Path) -> None:
    """Keep brokers out until :func:`handover_is_over`: durably once the directory is synced."""
    keep_brokers_out(log_dir)
    write_atomically(log_dir / HANDOVER_NOTE, b"")


def is_being_handed_over(log_dir: Path) -> bool:
    """Whether a handover has begun, and neither it nor a takeover has come to its end."""
    return (log_dir / HANDOVER_NOTE).exists()


def handover_is_over(log_dir: Path) -> None:
    """Let brokers in again, if nothing else keeps them out."""
    (log_dir / HANDOVER_NOTE).unlink(missing_ok=True)
    let_brokers_in(log_dir)


def unfinished_salvage(log_dir: Path) -> str | None:
    """Say that a salvage was cut off, and what to do; None if none was."""
    try:
        note = read_regular(log_dir / SALVAGE_NOTE, limit=4 * _LONGEST_NOTE + 8)
    except FileNotFoundError:
        return None
    return (
        f"{log_dir}: a salvage was cut off ({note.decode('utf-8', 'replace')}), and no broker "
        "starts here until it has come to its end. Run `kafkalog salvage` with these options again"
    )


# ----------------------------------------------------------------------------------------------
# Replace the commit state in every directory of a set: the first rename is the commit.
#
# A rename that succeeds may have put another writer's state in place, and one that fails may have
# happened: both where the locks were lost. So what is there afterwards is looked at, and it
# counts as published only if it is of this very commit.
#
# Where hosts share a file system, what is to be renamed has a name of its own for each commit.
# Whoever opens the set next removes it: see :func:`forget_prepared`. So a host that was taken for
# dead, and wakes up right before its rename, finds nothing to rename.


_LOST: Final = (
    "the locks were lost (a network file system whose server gave them away, or files of which "
    "somebody removed the locks)"
)
_LOGGER: Final = logging.getLogger("kafkalog.sink")


def write_state(
    state: CommitState,
    members: Mapping[str, Path],
    *,
    check: Callable[[], None],
    is_shared: Callable[[Path], bool],
) -> OSError | None:
    """Write a state beside the old one in every directory, then rename it in each.

    ``check`` is called between the two, and raises what forbids the rename. If another writer
    publishes after it, our temporary file is gone, and the rename fails: on one host all writers
    use one temporary name, and elsewhere each session begins with :func:`forget_prepared`.

    One directory that holds the new state is enough, since the newest one counts. Returns None if
    one of them is synced, else the error of a sync: a loss of power may then take the state.

    Raises:
        OSError: nothing was published.
        CommitError: another writer has published meanwhile; or it is not known whether this state
            was, since what is there cannot be read.
    """
    content = _with_snapshot(state, members.values())
    with ExitStack() as undo:
        written = [
            _prepared(content, member, folder, undo, shared=is_shared(folder))
            for member, folder in members.items()
        ]
        check()
        first, *others = written
        _publish(first)
        # From here on nothing may raise: it is the commit.
        renamed = [first, *filter(_follows, others)]
        for each in renamed:
            each.note_published()
    folders = [each.folder for each in renamed]
    failure = _sync(folders)
    if content.new_snapshot:
        used = (content.snapshot, state.snapshot)
        _remove_snapshots(folders, {each.file for each in used if each})
    return failure


class _Prepared(NamedTuple):
    """The state of a directory beside the present one, in a file that is open: no other is it."""

    state: CommitState
    folder: Path
    suffix: str
    is_shared: bool
    descriptor: int

    def note_published(self) -> None:
        """Note the file, renamed by now, which shows in its stamp; else it is read again."""
        if not self.is_shared:
            with suppress(OSError):
                note_published(self.folder, self.state, stamp_from(os.fstat(self.descriptor)))


def _prepared(
    content: StateContent, member: str, folder: Path, undo: ExitStack, *, shared: bool
) -> _Prepared:
    state = content.state.of_member(member)
    suffix = _suffix(state, shared=shared)
    opened: list[int] = []
    data = content.of_member(member)
    prepare(folder / STATE_FILE, data, suffix=suffix, finish=opened.append)
    undo.callback(close_quietly, opened[0])
    return _Prepared(state, folder, suffix, shared, opened[0])


def _suffix(state: CommitState, *, shared: bool) -> str:
    return f".{state.commit_id}{TEMPORARY_SUFFIX}" if shared else TEMPORARY_SUFFIX


def _follows(written: _Prepared) -> bool:
    """Publish a state that another directory holds; returns whether that could be done."""
    folder = written.folder
    try:
        publish(folder / STATE_FILE, suffix=written.suffix, fsync=False)
    except OSError as error:
        _LOGGER.warning("%s keeps its older copy of the commit state: %s", folder, error)
        return False
    return True


def _with_snapshot(state: CommitState, folders: Collection[Path]) -> StateContent:
    """Return what a state is written as; a new snapshot that it names is written, durably.

    Raises:
        OSError: the snapshot cannot be written; nothing names it.
    """
    content = StateContent.of(state)
    snapshot = content.snapshot
    if snapshot is None:
        return content
    if content.new_snapshot:
        for folder in folders:
            write_atomically(folder / snapshot.file, content.new_snapshot)
    elif not all((folder / snapshot.file).exists() for folder in folders):
        # One of them was away, or has lost it.
        return _with_snapshot(replace(state, snapshot=None), folders)
    return content


def _remove_snapshots(folders: Iterable[Path], kept: Collection[str]) -> None:
    """Remove snapshots that no state names any more.

    The last one but one stays: a reader may just have read the state that names it.
    """
    for folder in folders:
        try:
            for name in os.listdir(folder):  # noqa: PTH208 - there may be 10,000 partitions
                if name.startswith(f"{SNAPSHOT}.") and name not in kept:
                    (folder / name).unlink(missing_ok=True)
        except OSError as error:
            _LOGGER.warning("%s keeps an older snapshot of the commit state: %s", folder, error)


def forget_prepared(node: Node) -> None:
    """Remove states that other hosts have written and not renamed yet, where hosts share folders.

    REQUIRES: the locks are held. Who has renamed one before that has published: to be looked at
    afterwards. Who still wants to cannot any more.

    Raises:
        OSError: one cannot be removed.
    """
    for folder in node.directories:
        for path in list(folder.iterdir()) if node.is_shared(folder) else ():
            if path.name.startswith(f"{STATE_FILE}.") and path.name.endswith(TEMPORARY_SUFFIX):
                path.unlink(missing_ok=True)


def _sync(folders: Sequence[Path]) -> OSError | None:
    failures: list[OSError] = []
    for folder in folders:
        try:
            fsync_directory(folder)
        except OSError as error:
            _LOGGER.warning("%s may lose its commit state with the power: %s", folder, error)
            failures.append(error)
    return failures[0] if len(failures) == len(folders) else None


def _published_stamp(written: _Prepared) -> CommitStamp | None:
    """Return of which commit the state is that has the name now.

    It is not read again where it is the very file that was written. Hosts that share it may be
    shown an older one, and read it.
    """
    if not written.is_shared:
        with suppress(OSError):
            now = os.lstat(written.folder / STATE_FILE)
            if os.path.samestat(os.fstat(written.descriptor), now):
                return written.state.stamp
    return load_stamp(written.folder)


def _publish(first: _Prepared) -> None:
    """Rename the first state, which decides.

    Raises:
        OSError, CommitError: as :func:`write_state`.
    """
    failed: OSError | None = None
    try:
        publish(first.folder / STATE_FILE, suffix=first.suffix, fsync=False)
    except OSError as error:
        failed = error
    _check_published(first, failed)


def _check_published(written: _Prepared, failed: OSError | None) -> None:
    """See that the state is the one that was renamed; ``failed`` is what its rename said."""
    state, folder = written.state, written.folder
    try:
        found = _published_stamp(written)
    except (OSError, CheckpointError) as error:
        if failed is None:
            return
        raise CommitError(
            f"whether commit {state.sequence} is published is not known: {failed}, and "
            f"{folder / STATE_FILE} cannot be read either ({error}). Once it can be read, it is if "
            f'its second line has "commit":"{state.commit_id}". A query, and a write with an id of '
            "its own, finds that out itself when it runs again"
        ) from failed
    if found == state.stamp:
        return
    if failed is not None and (found is None or found.sequence < state.sequence):
        raise failed
    if failed is None and (found is None or found.sequence > state.sequence):
        what = (
            "and nothing is there now: its disk may not be mounted"
            if found is None
            else f"and another writer has published commit {found.sequence} there since, after "
            f"this one or in place of it: {_LOST}"
        )
        raise CommitError(
            f"whether commit {state.sequence} is published is not known: it was renamed to "
            f"{folder / STATE_FILE}, {what}. A query, and a write with an id of its own, finds "
            "that out itself when it runs again; of any other, look at its records before it is "
            "written again"
        )
    raise lost_locks(folder, state.sequence)


def lost_locks(folder: Path, sequence: int) -> CommitError:
    """Say that somebody else has published where the locks should have kept everybody out."""
    return CommitError(
        f"another writer has published commit {sequence} in {folder} while this one held its "
        f"locks: {_LOST}. Nothing of this batch is visible; try again, once the directory keeps "
        "writers apart"
    )


# ----------------------------------------------------------------------------------------------
# Where a commit says what it is about to do, and where it publishes: on one node, today.
#
# A node is a machine's log directories, which are locked and published together. What lies in
# their roots beside the logs is written here and nowhere else::
#
#     declare     kafkalog.unfinished (keeps brokers out), kafkalog.intent    before the first byte
#     publish     kafkalog.commit                                           the first rename counts
#     withdraw    takes the two of ``declare`` away                           after either end
#
# REQUIRES, for all that changes something: the locks of the directories are held.


@dataclass(frozen=True, slots=True)
class Node:
    """The log directories of a node; ``members`` gives them by member id.

    What was found out about them under the locks is not asked again.
    """

    members: Mapping[str, Path]
    _are_shared: dict[Path, bool] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _states: dict[Path, tuple[Stamp, CommitStamp]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The files of the states that were read last, and their commits."""
    _intents: dict[Path, os.stat_result] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The files of the intents that were declared."""

    @property
    def directories(self) -> list[Path]:
        """The log directories."""
        return list(self.members.values())

    def nodes(self) -> Mapping[int, Mapping[str, Path]]:
        """Return the log directories by node and member id; a set that is not replicated has 0."""
        return {0: self.members}

    def partitions(
        self, state: CommitState, *, has_locks: bool
    ) -> Mapping[TopicPartition, PartitionDirectory]:
        """Find the folders of partitions that count by ``state``: all, of one node."""
        del state, has_locks
        return log_dirs_of_set(*self.directories).local_partitions()

    def replicas(self) -> Iterable[Mapping[TopicPartition, PartitionDirectory]]:
        """List the partitions of each node, one after the other, in sync or not."""
        return [LogDirs(self.directories).partitions()]

    def is_whole(self, state: CommitState) -> bool:
        """Whether all directories are there that ``state`` names."""
        return {*state.member_ids} <= self.members.keys()

    @property
    def decides_alone(self) -> bool:
        """Whether what was not published cannot be published by others any more."""
        return True

    def member_of(self, folder: Path) -> str:
        """Return the member id of a log directory."""
        known = {path: member for member, path in self.members.items()}
        return known.get(folder) or known[Path(os.path.realpath(folder))]

    def member_at(self, folder: Path) -> str | None:
        """Return the member id of a log directory, None of one that is not there."""
        return self.member_of(folder)

    def node_of(self, member: str) -> int | None:
        """Return the node of a member id; None of one that is not there."""
        return 0 if member in self.members else None

    def has(self, folder: Path) -> bool:
        """Whether a log directory is of a node that is not out: there is no other one."""
        del folder
        return True

    def intents(self) -> Iterator[Intent]:
        """Read the intents that lie there, one for each directory that has one.

        Raises:
            OSError, CheckpointError: one cannot be read.
        """
        found = (load_intent(folder) for folder in self.directories)
        return (intent for intent in found if intent is not None)

    def is_shared(self, folder: Path) -> bool:
        """Whether other machines may write to the files of a log directory."""
        if folder not in self._are_shared:
            self._are_shared[folder] = is_shared(folder)
        return self._are_shared[folder]

    def note_read(self, folder: Path, file: Stamp | None, stamp: CommitStamp) -> None:
        """Note of which commit the state in a file is, which was looked at before it was read."""
        if file is not None and not self.is_shared(folder):
            self._states[folder] = file, stamp

    def stamps(self) -> Iterator[CommitStamp]:
        """Read which commits the directories hold, one after the other.

        A state is never changed in place: what is the very file that was read last is not read
        again. Hosts that share it may be shown an older one, and read it.

        Raises:
            OSError, CheckpointError: that cannot be read.
        """
        found = map(self._stamp_in, self.directories)
        return (stamp for stamp in found if stamp is not None)

    def _stamp_in(self, folder: Path) -> CommitStamp | None:
        known = self._states.get(folder)
        if known is not None and stamp_of(str(folder / STATE_FILE)) == known[0]:
            return known[1]
        return load_stamp(folder)

    def declare(self, intent: Intent) -> None:
        """Say in every directory what is about to happen, durably, and keep brokers out.

        The folder's fsync covers guard and mark, too.
        """
        content = intent.to_bytes()
        for folder in self.directories:
            keep_brokers_out(folder)
            remove_clean_shutdown_marker(folder, fsync=False)
            with ExitStack() as undo:
                note = partial(self._note_declared, folder, undo)
                write_atomically(folder / INTENT_FILE, content, finish=note)

    def _note_declared(self, folder: Path, undo: ExitStack, descriptor: int) -> None:
        undo.callback(os.close, descriptor)
        self._intents[folder] = os.fstat(descriptor)

    def check_declared(self, stamp: CommitStamp) -> None:
        """See that every directory says what is about to happen: one may have been away meanwhile.

        What was written then lies below its mount, and nobody would roll back what is appended.

        Raises:
            LogDirectoryError: one does not.
            OSError, CheckpointError: that cannot be known.
        """
        for folder in self.directories:
            if self._has_own_intent(folder):
                continue
            intent = load_intent(folder)
            if intent is None or intent.stamp != stamp:
                raise LogDirectoryError(
                    f"{folder / INTENT_FILE}, written a moment ago, is not there: was {folder} "
                    "away? Nothing was appended there"
                )

    def _has_own_intent(self, folder: Path) -> bool:
        """Whether the intent there is the file that was declared, which need not be read again."""
        own = self._intents.get(folder)
        if own is None or self.is_shared(folder):
            return False
        try:
            return os.path.samestat(own, os.lstat(folder / INTENT_FILE))
        except OSError:
            return False

    def publish(self, state: CommitState, check: Callable[[], None]) -> OSError | None:
        """Make a state the truth, unless ``check``, called right before the rename, raises.

        Return why it may not survive a loss of power; None where it does.

        Raises:
            OSError: nothing was published.
            CommitError: another writer has published meanwhile; or it is not known whether this
                state was.
        """
        return write_state(state, self.members, check=check, is_shared=self.is_shared)

    def repeated(self, state: CommitState) -> CommitState:
        """Return what a state that is in place is published as once more."""
        return state

    def settled(self, state: CommitState) -> CommitState:
        """Return a state as it can be published: nodes that are out are not in sync."""
        return state

    def taking_back(self, intent: Intent) -> AbstractContextManager[None]:
        """Return what an unfinished commit is rolled back in: one node has nobody to stand in."""
        del intent
        return nullcontext()

    def isolated_per_node(self) -> Iterator[tuple[Node, AbstractContextManager[None]]]:
        """Return each node by itself, and what something is done to it in: it may fail alone."""
        yield self, nullcontext()

    def isolated_at(self, folder: Path) -> AbstractContextManager[None]:
        """Return what a log directory is changed in: one node has nobody to stand in for it."""
        del folder
        return nullcontext()

    def withdraw(self, *, durable: bool) -> None:
        """Remove the intent, which is over, and let a broker in again.

        ``durable``: the intent must not come back with a loss of power, since what it names was
        rolled back, and another commit gets its sequence number.
        """
        for folder in self.directories:
            (folder / INTENT_FILE).unlink(missing_ok=True)
            if durable:
                fsync_directory(folder)
        for folder in self.directories:
            let_brokers_in(folder)
