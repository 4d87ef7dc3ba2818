"""Python for Spark's processes, without the copy of pyspark that has no compiled form.

Spark puts its ``pyspark.zip`` first on the path of each Python process that it starts: five or more
before a query's first row. Each compiles the modules in the zip again, for half a second of a core.
If the zip is part of an installed pyspark that this Python can import, the same modules lie beside
it, compiled already. Spark puts the jar of its core there, too, which has 5,800 classes and no
module of Python (``PythonUtils.sparkPythonPath``). Each task reads its list again
(``importlib.invalidate_caches``), as does each import that looks for a package's version.

Where kafkalog is installed, ``kafkalog.pth`` lies beside it, which Python runs when it starts: it
takes such a zip and the jar off the path. The command ``kafkalog-python``, for ``PYSPARK_PYTHON``,
does that before Python starts, for one that runs no such files.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["launcher", "leave_out_copies", "main", "without_copies"]

_COMMAND: Final = "kafkalog-python"
_NEEDED: Final = ("pyspark", "py4j")
_CORE: Final = re.compile(r"spark-core_[\d.]+-.+\.jar")


def leave_out_copies() -> None:
    """Take what :func:`without_copies` leaves out off this process's path, and forget it.

    To be called before anything imports pyspark.
    """
    kept = without_copies(sys.path, sys.path)
    gone = tuple(set(sys.path).difference(kept))
    sys.path[:] = kept
    for entry in [each for each in sys.path_importer_cache if each.startswith(gone)]:
        del sys.path_importer_cache[entry]


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
    """Leave out the jar of Spark's core, and zips of a pyspark that a folder of ``path`` has.

    The folder must have all that pyspark needs.
    """
    left = (entry for entry in entries if not _CORE.fullmatch(Path(entry).name))
    return [entry for entry in left if not _is_copy(Path(entry), path)]


def _is_copy(entry: Path, path: Sequence[str]) -> bool:
    if entry.suffix != ".zip" or entry.parts[-4:-1] != ("pyspark", "python", "lib"):
        return False
    folder = os.path.realpath(entry.parents[3])  # Spark finds itself behind links
    is_on_path = any(each and os.path.realpath(each) == folder for each in path)
    return is_on_path and all(Path(folder, name).is_dir() for name in _NEEDED)
