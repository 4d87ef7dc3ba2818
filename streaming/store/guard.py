"""The folder ``kafkalog.unfinished``, whose name keeps a broker from starting on half a change.

A commit that is cut off leaves it empty. The next writer takes the commit back and removes it.

A salvage that is cut off leaves a note in it. Then it stays until the salvage has ended, whoever
writes meanwhile: a broker would cut off everything after the damage that is left. So does a
handover of several nodes: a broker of one that started while others are not ready would lead.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.commit_state import UNFINISHED_FOLDER
from kafkalog.errors import LogDirectoryError
from kafkalog.files.atomic import TEMPORARY_SUFFIX, write_atomically
from kafkalog.files.regular import fsync_directory, make_directory, read_regular

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "HANDOVER_NOTE",
    "SALVAGE_NOTE",
    "handover_is_over",
    "is_being_handed_over",
    "keep_brokers_out",
    "let_brokers_in",
    "note_handover",
    "note_salvage",
    "salvage_is_over",
    "unfinished_salvage",
]

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
