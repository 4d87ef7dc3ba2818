"""Replace the commit state in every directory of a set: the first rename is the commit.

A rename that succeeds may have put another writer's state in place, and one that fails may have
happened: both where the locks were lost. So what is there afterwards is looked at, and it counts as
published only if it is of this very commit.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.commit_stamp import STATE_FILE, load_stamp
from kafkalog.checkpoints.state_file import state_bytes
from kafkalog.errors import CheckpointError, CommitError
from kafkalog.files.atomic import prepare, publish
from kafkalog.files.regular import fsync_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState

__all__ = ["lost_locks", "write_state"]

_LOGGER: Final = logging.getLogger("kafkalog.sink")


def write_state(
    state: CommitState,
    members: Mapping[str, Path],
    *,
    check: Callable[[], None] = lambda: None,
) -> OSError | None:
    """Write a state beside the old one in every directory, then rename it in each.

    ``check`` is called between the two, and raises what forbids the rename. All writers use one
    temporary name: who has published since that look has also taken away what would be renamed.

    One directory that holds the new state is enough, since the newest one counts. Gives why none
    is sure to hold it after a loss of power, None where one is.

    Raises:
        OSError: nothing was published.
        CommitError: another writer has published meanwhile; or it is not known whether this state
            was, since what is there cannot be read.
    """
    for member, folder in members.items():
        prepare(folder / STATE_FILE, state_bytes(state.of_member(member)))
    check()
    first, *others = members.values()
    failed: OSError | None = None
    try:
        publish(first / STATE_FILE, fsync=False)
    except OSError as error:
        failed = error
    _check_published(first, state, failed)
    renamed = [first]
    for folder in others:
        try:
            publish(folder / STATE_FILE, fsync=False)
            renamed.append(folder)
        except OSError as error:
            _LOGGER.warning("%s keeps its older copy of the commit state: %s", folder, error)
    return _sync(renamed)


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
    raise lost_locks(folder, state.sequence)


def lost_locks(folder: Path, sequence: int) -> CommitError:
    """Say that somebody else has published where the locks should have kept everybody out."""
    return CommitError(
        f"another writer has published commit {sequence} in {folder} while this one held its "
        "locks: they were lost (a network file system whose server gave them away, or files of "
        "which somebody removed the locks). Nothing of this batch is visible; try again, once the "
        "directory keeps writers apart"
    )
