"""Output paths of commands: never among the files of a log."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafkalog.errors import KafkaLogError, OptionError
from kafkalog.files.paths import SCHEME, NodePlace, local_path
from kafkalog.files.regular import open_regular

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "check_file",
    "check_folders",
    "check_folders_of_spark",
    "check_outside",
    "check_outside_logs",
    "check_replaced",
]

_BETWEEN: Final = re.compile("[,;]")

_MAY_NAME_A_STORE: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_GATEWAY_PORT")
"""Hadoop's settings, and those of who has started Spark before: ``spark-submit``."""


def check_file(option: str, path: Path, logs: Sequence[str], *, example: str) -> None:
    """See whether a file may have this name.

    Args:
        option: what named it.
        path: its name.
        logs: log directories, as a command is given them.
        example: how such a file may be called.

    Raises:
        OptionError: it is a folder, or lies in one of the log directories; or there is no folder
            for it.
    """
    if str(path) == "-":
        raise OptionError(
            f"{option} is -, and writes a file, no standard output: name it, as {example}"
        )
    if path.is_dir():
        raise OptionError(
            f"{option} names {path}, which is a folder: name a file, such as {path / example}"
        )
    if not path.parent.is_dir():
        raise OptionError(f"{option} names {path}, but {path.parent} is no folder")
    check_outside(option, path, logs)


def check_folders_of_spark(folders: Mapping[str, str | None]) -> None:
    """Do :func:`check_folders` for folders that Spark writes to.

    One without a scheme lies where Hadoop's ``fs.defaultFS`` says. Where that may not be the local
    file system, nothing is said before Spark has looked.
    """
    is_local = not any(name in os.environ for name in _MAY_NAME_A_STORE)
    check_folders(
        {
            option: named
            for option, named in folders.items()
            if is_local or (named is not None and SCHEME.match(named))
        }
    )


def check_folders(folders: Mapping[str, str | Sequence[str] | None]) -> None:
    """See whether folders can be written to, or be made; what lies in a store is not looked at.

    Nor is a directory of one of several nodes: where one is away, the others are written.

    Args:
        folders: by the argument that names them: a folder, or the parsed log directories.

    Raises:
        OptionError: one is a file, lies below one, or may not be written to.
    """
    for option, named in folders.items():
        for text in (named,) if isinstance(named, str) else named or ():
            if not isinstance(text, NodePlace):
                _check_folder(option, text)


def _check_folder(option: str, named: str) -> None:
    try:
        folder = Path(local_path(named)).resolve()
    except OptionError:
        return
    there = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
    if not there.is_dir():
        raise OptionError(f"{option} names {named}, but {there} is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise OptionError(f"{option} names {named}, but {there} cannot be written to")


def check_outside(option: str, path: Path, logs: Sequence[str]) -> None:
    """Refuse a file or folder among the files of a log; arguments as for :func:`check_file`.

    Raises:
        OptionError: it lies in one of the log directories.
    """
    place = path.parent.resolve() / path.name
    for log in _local(logs):
        if log == place or log in place.parents:
            raise OptionError(
                f"{option} names {path}, which lies in the log directory {log}: name a file "
                "elsewhere"
            )


def check_outside_logs(option: str, folder: Path, logs: Sequence[str]) -> None:
    """Refuse a folder in which any file may be written if a log lies in it, or around it.

    Raises:
        OptionError: it is no folder, lies in a log directory, or one lies in it.
    """
    if not folder.is_dir():
        raise OptionError(f"{option} names {folder}, which is no folder")
    check_outside(option, folder.resolve() / "file", logs)
    for log in _local(logs):
        if folder.resolve() in log.parents:
            raise OptionError(
                f"{option} names {folder}, in which the log directory {log} lies: name a folder "
                "of its own"
            )


def check_replaced(path: Path, mark: bytes, what: str) -> None:
    """See that there is no file of this name, or an earlier one of the same kind.

    Args:
        path: its name.
        mark: what such a file begins with.
        what: what it is called.

    Raises:
        OptionError: there is something else.
    """
    if (path.exists() or path.is_symlink()) and not _begins_with(path, mark):
        raise OptionError(
            f"{path} is there already, and is no {what}: name another file, or remove it"
        )


def _begins_with(path: Path, mark: bytes) -> bool:
    try:
        descriptor = open_regular(path)  # which waits for nobody at a FIFO
    except (KafkaLogError, OSError):
        return False
    try:
        return os.read(descriptor, len(mark)) == mark
    finally:
        os.close(descriptor)


def _local(logs: Sequence[str]) -> list[Path]:
    found = []
    for text in filter(None, map(str.strip, _BETWEEN.split(",".join(logs)))):
        with suppress(KafkaLogError, OSError):  # a store: no local file lies there
            found.append(Path(local_path(text.removeprefix("witness:"))).resolve())
    return found
