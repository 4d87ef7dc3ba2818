"""The file of a report: written whole or not at all, and over nothing but an earlier report."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from kafkalog.errors import OptionError
from kafkalog.files.atomic import prepare, publish
from kafkalog.jobs.report.page import MARK
from kafkalog.jobs.targets import check_file, check_replaced

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["check_target", "write_page"]


def check_target(path: Path, logs: Sequence[str]) -> None:
    """See whether a report may be written there.

    Raises:
        OptionError: it is a folder, another file, or lies in one of the log directories; or there
            is no folder for it.
    """
    check_file("--html", path, logs, example="report.html")
    check_replaced(path, MARK.encode(), "report of kafkalog")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OptionError(f"--html names {path}, but {path.parent} may not be written to")


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
