"""Python for Spark's processes, without the copy of pyspark that has no compiled form.

Spark puts its ``pyspark.zip`` first on the path of each Python process that it starts. Each process
compiles the modules in the zip again: half a second of a core, once for every streaming query over
a Python source. If the zip is part of an installed pyspark that this Python can import, the same
modules lie beside it, compiled already.

Set ``PYSPARK_PYTHON`` to the command ``kafkalog-python``: there it is Python without the zip, and
elsewhere plain Python.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["launcher", "main", "without_copies"]

_COMMAND: Final = "kafkalog-python"
_NEEDED: Final = ("pyspark", "py4j")


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
    folder = entry.parents[3]
    return str(folder) in path and all((folder / name).is_dir() for name in _NEEDED)
