"""Session: exclusive access to a log set. Entering locks and recovers it; leaving releases it.

==========  ======================================================================================
check       :func:`existing_log_dirs`, :func:`require_commit_state`: the paths can be log
            directories at all
lock        :class:`Session`, from ``with`` on: both locks of every directory
open        :meth:`Session.open`: which set they are, and its newest state; a new one may start
roll back   the same: what a commit that was cut off has left goes, unless a check refuses that
act         the caller, for whom :meth:`~kafkalog.streaming.store.log_set.LogSet.check_current`
            tells whether the locks still hold; and ``publish``, which makes a state the truth
give back   the end of ``with``
==========  ======================================================================================

Whoever holds a session runs in a shielded thread: what is interrupted ends first.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.checkpoints.state_file import find_published, names_nodes
from kafkalog.checkpoints.voters import find_states, find_voters
from kafkalog.errors import LogDirectoryError
from kafkalog.files.deferred_signals import shielded_part
from kafkalog.files.paths import NodePlace, split_paths
from kafkalog.files.timeouts import run_with_timeout
from kafkalog.streaming.log.log_dir import refuse_a_level_above, refuse_file
from kafkalog.streaming.store.file_systems import (
    check_file_system,
    note_mounts,
    refuse_unmounted,
)
from kafkalog.streaming.store.locks import DirectoryLocks, check_no_broker, check_unused
from kafkalog.streaming.store.log_set import Condition, LogSet, remove_dead
from kafkalog.streaming.store.open_set import (
    check_given,
    check_no_broker_lived,
    ensure_nodes,
    has_nodes,
    inspect_set,
    known_set,
    make_log_directory,
    open_set,
    replicated_set_error,
)
from kafkalog.streaming.store.recovery.lost_partitions import refuse_mount_points
from kafkalog.streaming.store.recovery.rollback import roll_back
from kafkalog.streaming.store.replicas.open_nodes import QuorumSession, committed_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kafkalog.checkpoints.voters import Voters
    from kafkalog.streaming.store.policy import SetPolicy

__all__ = [
    "Condition",
    "Session",
    "ensure_set",
    "existing_log_dirs",
    "inspect_state",
    "opened_set",
    "parse_log_dirs",
    "parse_paths",
    "refuse_nodes",
    "require_commit_state",
    "session_of",
]


def parse_log_dirs(paths: Sequence[str]) -> list[Path]:
    """Return the log directories that paths and ``file:`` URIs name, there or not.

    Raises:
        OptionError: one is not local, or there twice.
        LogDirectoryError: none is named.
    """
    return [Path(place) for place in parse_paths(paths)]


def parse_paths(paths: Sequence[str]) -> tuple[str, ...]:
    """Return what :func:`parse_log_dirs` does as texts, which know the nodes that they are of.

    Raises:
        OptionError, LogDirectoryError: as there.
    """
    found = tuple(paths) if has_nodes(paths) else split_paths(",".join(paths))
    if not found:
        raise LogDirectoryError("no log directory is named")
    return found


def existing_log_dirs(paths: Sequence[str]) -> list[Path]:
    """Return the log directories that paths and ``file:`` URIs name.

    Nodes of a replicated set may be away.

    Raises:
        OptionError: one is not local, or there twice.
        LogDirectoryError: one is no folder, is there twice by way of a link, or is the folder of a
            partition; or none is named.
    """
    directories = parse_log_dirs(paths)
    for folder in directories:
        refuse_file(folder)
        if not folder.is_dir() and _voters_of(directories) is None:
            raise LogDirectoryError(f"{folder} is no log directory: there is no such folder")
    check_given(directories)
    return directories


def require_commit_state(directories: Sequence[Path]) -> None:
    """Refuse directories in which our sink has never written.

    Raises:
        LogDirectoryError: there is no commit state.
        CheckpointError: there is none that is whole.
    """
    found = find_states(directories)
    if found.states:
        return
    for error in found.failed.values():
        raise error
    raise LogDirectoryError(
        f"{', '.join(map(str, directories))}: there is no {STATE_FILE}, so the sink never "
        "wrote here. A broker looks after its own directories; after it has stopped, "
        "`kafkalog broker takeover` lets the sink continue in them"
    )


def refuse_nodes(directories: Sequence[Path], holder: str) -> None:
    """Refuse the directories of a replicated set for what cannot be done on all replicas yet.

    ``holder`` is what is asked for.

    Raises:
        LogDirectoryError: they are those of one.
    """
    if _voters_of(directories) is not None:
        raise LogDirectoryError(
            f"{holder} does not know replicated sets yet, and "
            f"{', '.join(map(str, directories))} are nodes of one. Nothing was changed"
        )


class Session(DirectoryLocks):
    """The locks of some log directories from ``with`` to its end, and the set that they are.

    ``holder`` is what others read about us while they wait.
    """

    def __init__(self, directories: Iterable[Path], policy: SetPolicy, *, holder: str) -> None:
        super().__init__(directories, holder=holder, timeout_ms=policy.wait_ms)
        self._policy = policy

    def __enter__(self) -> Self:
        """Take the locks.

        Raises:
            LockTimeoutError: another writer held one of the directories for too long.
            LogDirectoryError: a broker holds one, or the file system has no locks; or one has
                nothing in it, and a member of the set is missing.
        """
        refuse_mount_points(self.directories)
        return super().__enter__()

    def open(
        self,
        *conditions: Condition,
        rolls_back: bool = True,
        copies_all: bool = False,  # noqa: ARG002 - there is one copy of everything
        deletes: str | None = None,
    ) -> LogSet:
        """Open the set, and roll back what is unfinished once ``conditions`` have let that pass.

        Segments that were deleted a while ago are removed then, too. ``deletes`` is a topic that
        goes next. ``copies_all`` is of a replicated set: see
        :meth:`~kafkalog.streaming.store.replicas.open_nodes.QuorumSession.open`.

        REQUIRES: the locks are held. Directories in which there is nothing yet become a set.

        Raises:
            LogDirectoryError, CheckpointError: they are no set that may be changed; or what is
                unfinished cannot be rolled back.
        """
        log_set = open_set(self.directories, self._policy, self.verify)
        for check in conditions:
            check(log_set)
        if rolls_back:
            roll_back(log_set, durable=self._policy.is_durable, deletes=deletes)
            remove_dead(log_set)
        return log_set

    def inspect(self, *conditions: Condition) -> LogSet:
        """Return the set that :meth:`open` would, and change nothing; no lock is needed.

        Raises:
            LockTimeoutError: a writer is at work on a directory.
            LogDirectoryError, CheckpointError: a broker is; or as :meth:`open`.
        """
        for folder in self.given:
            check_unused(folder)
        log_set = inspect_set(self.directories, self._policy)
        for check in conditions:
            check(log_set)
        return log_set


def session_of(
    directories: Sequence[Path], policy: SetPolicy, *, holder: str
) -> Session | QuorumSession:
    """Return the session of whatever set directories are, of one node or of several.

    Raises:
        LogDirectoryError: they are of different sets.
    """
    kind = Session if _voters_of(directories) is None else QuorumSession
    return kind(directories, policy, holder=holder)


def _voters_of(directories: Sequence[Path]) -> Voters | None:
    """Find the nodes of a replicated set; of any other set the heads of its states are read."""
    return find_voters(directories) if any(map(names_nodes, directories)) else None


@contextmanager
def opened_set(
    directories: Sequence[Path],
    policy: SetPolicy,
    *conditions: Condition,
    holder: str,
    dry_run: bool = False,
    copies_all: bool = False,
    deletes: str | None = None,
) -> Iterator[LogSet]:
    """Lock and open a set, and roll back what is unfinished: see :meth:`Session.open`.

    With ``dry_run`` nothing is locked or changed, but what somebody else has locked is refused.
    With ``copies_all`` replicas that lag have got all that they lack by then. ``deletes`` is a
    topic that goes next.

    Raises:
        LockTimeoutError, LogDirectoryError, CheckpointError: as :class:`Session`, or as
            :class:`~kafkalog.streaming.store.replicas.open_nodes.QuorumSession`.
    """
    session = session_of(directories, policy, holder=holder)
    if dry_run:
        yield session.inspect(*conditions)
        return
    with session:
        yield session.open(*conditions, copies_all=copies_all, deletes=deletes)


def inspect_state(directories: Sequence[Path], policy: SetPolicy) -> LogSet:
    """Return the set that directories are, of one node or of several, as it is committed now.

    Nothing is locked, and nothing changed. A writer may be at work.

    Raises:
        LogDirectoryError, CheckpointError: they are no set that can be looked at.
    """
    voters = _voters_of(directories)
    return inspect_set(directories, policy) if voters is None else committed_nodes(voters)


@shielded_part
def ensure_set(paths: Sequence[str | Path], policy: SetPolicy, *, knows_nodes: bool = True) -> str:
    """Return the id of the set that the log directories are; an empty directory starts one.

    Folders that do not exist are made. Nothing is locked where all belong to a set already. Unless
    the caller ``knows_nodes``, they are not to be those of a replicated set.

    Raises:
        LogDirectoryError, CheckpointError: they are no set that may be written, see
            :meth:`Session.open`; or the system cannot read or write them.
    """
    try:
        if has_nodes(paths):
            nodes = [path for path in paths if isinstance(path, NodePlace)]
            folders = [Path(path) for path in nodes]
            return run_with_timeout(lambda: ensure_nodes(nodes, policy), folders, policy.lag_ms)
        directories = [Path(path) for path in paths]
        published = _published_set(directories)
        if published is not None:
            for folder in directories:
                _refuse_broker(folder, policy)
            return published
        if not all(folder.is_dir() for folder in directories):
            # a link may lead to what is to be made
            directories = [Path(os.path.realpath(path)) for path in paths]
            for folder in directories:
                refuse_file(folder)
        voters = _voters_of(directories)
        if voters is not None:
            voters.check_majority()
            if not knows_nodes:
                raise replicated_set_error(next(iter(voters.states)), voters.newest)
            return voters.newest.set_id
        return _ensure_set(directories, policy)
    except OSError as error:
        raise LogDirectoryError(
            f"log directories {', '.join(map(str, paths))} cannot be used: {error}"
        ) from error


def _published_set(directories: Sequence[Path]) -> str | None:
    """Return the set's id if all its directories still have the state that this process published.

    What else may be wrong with them was checked before that, and is checked under the locks. None
    if another process has published, or a directory is missing or of another set.
    """
    states = [find_published(folder) for folder in directories]
    known = [state for state in states if state is not None and not state.is_replicated]
    if not known or not len(known) == len(states) == len(known[0].member_ids):
        return None
    return known[0].set_id if len({state.set_id for state in known}) == 1 else None


def _ensure_set(directories: Sequence[Path], policy: SetPolicy) -> str:
    check_given(directories)
    refuse_mount_points(directories)
    for folder in directories:
        if not folder.exists():
            refuse_unmounted(folder)
        make_log_directory(folder)
        check_file_system(folder)
        _refuse_broker(folder, policy)
    found = known_set(directories)
    if found is not None:
        note_mounts(directories)
        return found.set_id
    for folder in directories:
        refuse_unmounted(folder)
        refuse_a_level_above(folder)
    with Session(directories, policy, holder="a new writer") as session:
        set_id = session.open(rolls_back=False).state.set_id
    note_mounts(directories)
    return set_id


def _refuse_broker(folder: Path, policy: SetPolicy) -> None:
    check_no_broker_lived(folder, policy)
    check_no_broker(folder, timeout_ms=policy.wait_ms)
