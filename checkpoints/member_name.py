"""The name of a query in its consumer group, where it was given none.

A sealed file (:mod:`kafkalog.checkpoints.sealed_file`) in a folder that belongs to one query. Its
one line is

    {"instance":"query-0f8fad5b-d9cb-469f-a165-70867728950e"}
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.sealed_file import read_sealed, seal
from kafkalog.errors import CheckpointError
from kafkalog.files.atomic import create_atomically
from kafkalog.files.folders import make_with_parents
from kafkalog.files.regular import fsync_directory
from kafkalog.files.system import system

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MEMBER_NAME_FILE", "kept_name"]

MEMBER_NAME_FILE: Final = "kafkalog.member"
_FORMAT: Final = "kafkalog.member"
_VERSION: Final = 1
_GO_WITHOUT: Final = "Move it away while the query is stopped: it joins under a new name then"


def kept_name(folder: Path) -> str:
    """Return the name that is kept in a folder; a new one is kept there first.

    Raises:
        CheckpointError: the file is damaged, from a newer release, or cannot be written.
    """
    found = _read(folder)
    if found is not None:
        return found
    path = folder / MEMBER_NAME_FILE
    line = {"instance": f"query-{system.random_id()}"}
    try:
        make_with_parents(folder)
        create_atomically(path, seal(_FORMAT, _VERSION, [line]))
        fsync_directory(folder)
    except FileExistsError:
        return _read(folder) or line["instance"]
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error}") from error
    return line["instance"]


def _read(folder: Path) -> str | None:
    path = folder / MEMBER_NAME_FILE
    try:
        sealed = read_sealed(path, _FORMAT, _VERSION, remedy=_GO_WITHOUT)
        return None if sealed is None else str(sealed.lines[0]["instance"])
    except (KeyError, IndexError, TypeError) as error:
        raise CheckpointError(f"{path} holds no name: {error!r}. {_GO_WITHOUT}") from error
