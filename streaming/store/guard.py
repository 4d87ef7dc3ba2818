"""The folder ``kafkalog.unfinished``, whose name keeps a broker from starting on half a change.

A commit that is cut off leaves it empty. The next writer takes the commit back and removes it.

A salvage that is cut off leaves a note in it. Then it stays until the salvage has ended, whoever
writes meanwhile: a broker would cut off everything after the damage that is left.
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
    "SALVAGE_NOTE",
    "keep_brokers_out",
    "let_brokers_in",
    "note_salvage",
    "salvage_is_over",
    "unfinished_salvage",
]

SALVAGE_NOTE: Final = f"{UNFINISHED_FOLDER}/salvage"
"""A file that holds the arguments of the salvage."""

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
            raise LogDirectoryError(
                f"{guard} is no folder, and would not keep a broker from starting on an unfinished "
                "commit: remove it"
            ) from None


def let_brokers_in(log_dir: Path) -> None:
    """Remove the folder, unless a salvage has still to come to its end."""
    guard, note = log_dir / UNFINISHED_FOLDER, log_dir / SALVAGE_NOTE
    try:
        guard.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        if note.exists():
            return
        note.with_name(note.name + TEMPORARY_SUFFIX).unlink(missing_ok=True)
        guard.rmdir()


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
