"""Build the archive for ``spark-submit --archives``: kafkalog with all that it needs but Spark.

``python -m tools.bundle`` takes the wheel in ``dist``, and versions of ``requirements/lock.txt``.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

__all__ = ["build_bundle"]

_ROOT: Final = Path(__file__).parents[1]


def build_bundle(wheel: Path, folder: Path) -> Path:
    """Install a wheel and its packages into an archive in ``folder``; return the archive.

    It is for machines of this kind, and for this version of Python: compiled packages are in it.
    """
    version = wheel.name.split("-")[1]
    kind = f"{platform.system().lower()}-{platform.machine()}"
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    target = folder / f"kafkalog-{version}-{kind}-{python}.tar.gz"
    with tempfile.TemporaryDirectory() as work:
        packages = Path(work) / "packages"
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--target", str(packages)),
                *("--constraint", str(_ROOT / "requirements" / "lock.txt"), str(wheel)),
            ],
            check=True,
        )
        for cache in [*packages.rglob("__pycache__"), *packages.glob("bin")]:
            shutil.rmtree(cache)
        with tarfile.open(target, "w:gz", compresslevel=6) as archive:
            for entry in sorted(packages.iterdir()):
                archive.add(entry, entry.name)
    return target


if __name__ == "__main__":
    (_WHEEL,) = (_ROOT / "dist").glob("kafkalog-*.whl")
    print(build_bundle(_WHEEL, _ROOT / "dist"))
