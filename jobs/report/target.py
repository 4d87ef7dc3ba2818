"""The file of a report: written whole or not at all, and over nothing but an earlier report."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalog.errors import KafkaLogError, OptionError
from kafkalog.files.atomic import prepare, publish
from kafkalog.files.local_paths import local_path
from kafkalog.files.regular import open_regular
from kafkalog.jobs.report.page import MARK

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_target", "write_page"]


def check_target(path: Path, logs: Sequence[str]) -> None:
    """See whether a report may be written there.

    Raises:
        OptionError: it is a folder, another file, or lies in one of the log directories; or there
            is no folder for it.
    """
    if path.is_dir():
        raise OptionError(
            f"--html names {path}, which is a folder: name a file, such as {path / 'report.html'}"
        )
    if not path.parent.is_dir():
        raise OptionError(f"--html names {path}, but {path.parent} is no folder")
    folder = path.parent.resolve()
    for log in _local(logs):
        if log == folder or log in folder.parents:
            raise OptionError(
                f"--html names {path}, which lies in the log directory {log}: name a file elsewhere"
            )
    if (path.exists() or path.is_symlink()) and not _is_report(path):
        raise OptionError(
            f"{path} is there already, and is no report of kafkalog: name another "
            "file, or remove it"
        )
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OptionError(f"--html names {path}, but {path.parent} may not be written to")


def _local(logs: Sequence[str]) -> list[Path]:
    found = []
    for text in filter(None, map(str.strip, ",".join(logs).split(","))):
        with suppress(KafkaLogError, OSError):  # a store: no local file lies there
            found.append(Path(local_path(text)).resolve())
    return found


def _is_report(path: Path) -> bool:
    mark = MARK.encode()
    try:
        descriptor = open_regular(path)
    except (KafkaLogError, OSError):
        return False
    try:
        return os.read(descriptor, len(mark)) == mark
    finally:
        os.close(descriptor)


def write_page(path: Path, page: str, logs: Sequence[str]) -> None:
    """Write a page; over a report that is there already, but over nothing else.

    Raises:
        OptionError: as in :func:`check_target`, or it cannot be written.
    """
    check_target(path, logs)
    suffix = f".{os.getpid()}.tmp"
    try:
        prepare(path, page.encode(errors="backslashreplace"), suffix=suffix)
        publish(path, suffix=suffix)
    except OSError as error:
        raise OptionError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        with suppress(OSError):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
