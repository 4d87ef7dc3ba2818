"""The project built as it is released, and what should be in it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from packaging.requirements import Requirement

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("streaming", "checkpoints", "jobs")
"""The folders at the top that are linked into ``src/kafkalog``."""


class Distributions(NamedTuple):
    """The files that ``make build`` and ``make zip`` make."""

    sdist: Path
    wheel: Path
    py_files: Path
    """The wheel under another name, for ``spark-submit --py-files``."""


def build(folder: Path) -> Distributions:
    """Build the sdist, from it the wheel, and the zip, in ``folder``."""
    words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(words, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    py_files = folder / "kafkalog.zip"
    py_files.write_bytes(wheel.read_bytes())
    return Distributions(sdist, wheel, py_files)


def project_files() -> Iterator[Path]:
    """List what git knows of, or would, and what is not a link; relative to the root."""
    listing = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listing, text=True).splitlines():
        if (ROOT / name).is_file():
            yield Path(name)


def environment_without_kafkalog(folder: Path) -> dict[str, str]:
    """Return the variables of an environment that has everything but kafkalog.

    ``PYSPARK_PYTHON`` is the Python that the virtual environment was made from, ``PYTHONPATH`` the
    folder that is made here, of links to all that is installed save what makes kafkalog importable.
    """
    (packages,) = {Path(entry) for entry in sys.path if entry.endswith("site-packages")}
    folder.mkdir()
    for entry in packages.iterdir():
        if "kafkalog" not in entry.name:
            (folder / entry.name).symlink_to(entry)
    python = str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
    variables = {name: os.environ[name] for name in os.environ if name != "VIRTUAL_ENV"}
    return variables | {"PYTHONPATH": str(folder), "PYSPARK_PYTHON": python}


def environment_of_dependencies(folder: Path) -> dict[str, str]:
    """Return the variables of an environment with kafkalog and what it declares, and no more.

    ``folder`` is made, and gets links to the files of the packages that pip would install. Start a
    Python in it with ``-S``: without what else is installed.
    """
    folder.mkdir()
    wanted, seen = ["kafkalog"], set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        found = distribution(name)
        needed = map(Requirement, found.requires or ())
        wanted += [each.name for each in needed if not each.marker or each.marker.evaluate()]
        for top in {file.parts[0] for file in found.files or () if file.parts[0] != ".."}:
            if not (folder / top).exists():
                (folder / top).symlink_to(found.locate_file(top))
    variables = {name: os.environ[name] for name in os.environ if name != "VIRTUAL_ENV"}
    return variables | {"PYTHONPATH": f"{folder}:{ROOT / 'src'}"}
