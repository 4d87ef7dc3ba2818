"""Replace the commit state in every directory of a set: the first rename is the commit.

A rename that succeeds may have put another writer's state in place, and one that fails may have
happened: both where the locks were lost. So what is there afterwards is looked at, and it counts as
published only if it is of this very commit.

Where hosts share a file system, what is to be renamed has a name of its own for each commit.
Whoever opens the set next removes it: see :func:`forget_prepared`. So a host that was taken for
dead, and wakes up right before its rename, finds nothing to rename.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.commit_stamp import STATE_FILE, load_stamp
from kafkalog.checkpoints.state_file import state_bytes
from kafkalog.errors import CheckpointError, CommitError
from kafkalog.files.atomic import TEMPORARY_SUFFIX, prepare, publish
from kafkalog.files.regular import fsync_directory
from kafkalog.streaming.store.file_systems import is_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState

__all__ = ["forget_prepared", "lost_locks", "write_state"]

_LOST: Final = (
    "the locks were lost (a network file system whose server gave them away, or files of which "
    "somebody removed the locks)"
)
_LOGGER: Final = logging.getLogger("kafkalog.sink")


def write_state(
    state: CommitState,
    members: Mapping[str, Path],
    *,
    check: Callable[[], None] = lambda: None,
) -> OSError | None:
    """Write a state beside the old one in every directory, then rename it in each.

    ``check`` is called between the two, and raises what forbids the rename. Who has published since
    that look has also taken away what would be renamed: on one host all writers use one temporary
    name, and elsewhere each session begins with :func:`forget_prepared`.

    One directory that holds the new state is enough, since the newest one counts. Gives why none
    is sure to hold it after a loss of power, None where one is.

    Raises:
        OSError: nothing was published.
        CommitError: another writer has published meanwhile; or it is not known whether this state
            was, since what is there cannot be read.
    """
    for member, folder in members.items():
        content = state_bytes(state.of_member(member))
        prepare(folder / STATE_FILE, content, suffix=_suffix(folder, state))
    check()
    first, *others = members.values()
    failed: OSError | None = None
    try:
        publish(first / STATE_FILE, suffix=_suffix(first, state), fsync=False)
    except OSError as error:
        failed = error
    _check_published(first, state, failed)
    renamed = [first]
    for folder in others:
        try:
            publish(folder / STATE_FILE, suffix=_suffix(folder, state), fsync=False)
            renamed.append(folder)
        except OSError as error:
            _LOGGER.warning("%s keeps its older copy of the commit state: %s", folder, error)
    return _sync(renamed)


def _suffix(folder: Path, state: CommitState) -> str:
    return f".{state.commit_id}{TEMPORARY_SUFFIX}" if is_shared(folder) else TEMPORARY_SUFFIX


def forget_prepared(folders: Iterable[Path]) -> None:
    """Remove states that other hosts have written and not renamed yet, where hosts share folders.

    REQUIRES: the locks are held. Who has renamed one before that has published: to be looked at
    afterwards. Who still wants to cannot any more.

    Raises:
        OSError: one cannot be removed.
    """
    for folder in folders:
        for path in list(folder.iterdir()) if is_shared(folder) else ():
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


def _check_published(folder: Path, state: CommitState, failed: OSError | None) -> None:
    """See that the state is the one that was renamed; ``failed`` is what its rename said."""
    try:
        found = load_stamp(folder)
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
