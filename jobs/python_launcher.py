"""Python for Spark's processes, without the copy of pyspark that has no compiled form.

Spark puts its ``pyspark.zip`` first on the path of each Python process that it starts: five or more
before a query's first row. Each compiles the modules in the zip again, for half a second of a core.
If the zip is part of an installed pyspark that this Python can import, the same modules lie beside
it, compiled already.

Where kafkalog is installed, ``kafkalog.pth`` lies beside it, which Python runs when it starts: it
takes such a zip off the path. The command ``kafkalog-python``, for ``PYSPARK_PYTHON``, does that
before Python starts, for one that runs no such files.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["launcher", "leave_out_copies", "main", "without_copies"]

_COMMAND: Final = "kafkalog-python"
_NEEDED: Final = ("pyspark", "py4j")


def leave_out_copies() -> None:
    """Take the zips of an installed pyspark off this process's path, before it imports pyspark."""
    sys.path[:] = without_copies(sys.path, sys.path)


def main() -> None:
    """Become Python, with the arguments of this process."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(without_copies(entries, sys.path))
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # noqa: S606 - no shell is wanted


def launcher() -> str:
    """Return the command to start Python by; plain Python where kafkalog is not installed."""
    command = Path(sysconfig.get_path("scripts")) / _COMMAND
    return str(command) if command.exists() else sys.executable


def without_copies(entries: Sequence[str], path: Sequence[str]) -> list[str]:
    """Leave out the zips of a pyspark that lies in a folder of ``path`` with all that it needs."""
    return [entry for entry in entries if not _is_copy(Path(entry), path)]


def _is_copy(entry: Path, path: Sequence[str]) -> bool:
    if entry.suffix != ".zip" or entry.parts[-4:-1] != ("pyspark", "python", "lib"):
        return False
    folder = os.path.realpath(entry.parents[3])  # Spark finds itself behind links
    is_on_path = any(each and os.path.realpath(each) == folder for each in path)
    return is_on_path and all(Path(folder, name).is_dir() for name in _NEEDED)
