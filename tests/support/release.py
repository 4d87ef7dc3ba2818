"""``make release``: build what is published, and try each file in an empty environment.

``dist/`` gets the sdist, the wheel, the zip for ``spark-submit --py-files``, the archive for
``--archives``, and ``SHA256SUMS``.
The checksums come last: where they are, all files were tried.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

import typer
from tests.support import deployed_job
from tests.support.distributions import ROOT, build
from tools.bundle import build_bundle

__all__ = ["main"]

_CHECKSUMS: Final = "SHA256SUMS"
_LOCK: Final = ROOT / "requirements" / "lock.txt"
_SPARK: Final = (
    "--master",
    "local[2]",
    "--driver-memory",
    "512m",
    "--conf",
    "spark.ui.enabled=false",
)


class _Environment:
    """An empty virtual environment, and a folder in which programs run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bin = folder / "environment" / "bin"
        _run([sys.executable, "-m", "venv", str(folder / "environment")], folder)

    def install(self, path: Path) -> None:
        """Install a distribution, with the versions of others that the tests run with."""
        wanted = f"kafkalog[spark,sql] @ {path.as_uri()}"
        self.pip("install", "--quiet", "--constraint", str(_LOCK), wanted)

    def pip(self, *words: str) -> None:
        """Run pip."""
        _run([str(self._bin / "python"), "-m", "pip", *words], self._folder)

    def command(self, *words: str) -> str:
        """Run the command that was installed; return what it prints."""
        return _run([str(self._bin / "kafkalog"), *words], self._folder)

    def copies_a_topic(self, *options: str, **variables: str) -> Path:
        """Let Spark write, stream and read topics; return the log directory."""
        work = Path(tempfile.mkdtemp(dir=self._folder))
        words = [
            str(self._bin / "spark-submit"),
            *_SPARK,
            *options,
            deployed_job.__file__,
            str(work),
        ]
        variables = {"PYSPARK_PYTHON": str(self._bin / "python"), **variables}
        shown = json.loads(_run(words, work, **variables).strip().splitlines()[-1])
        wanted = dict.fromkeys(("rows", "distinct", "offsets"), deployed_job.ROWS)
        if {name: shown[name] for name in wanted} != wanted:
            sys.exit(f"{words}: {shown}, and {wanted} was expected")
        return work / "log"


def main() -> None:
    """Build into ``dist/``, and try all that is there."""
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    made = build(folder)
    version = made.wheel.name.split("-")[1]
    py_files = made.py_files.rename(folder / f"kafkalog-{version}.zip")
    for path in (made.sdist, made.wheel):
        with tempfile.TemporaryDirectory() as work:
            typer.echo(f"trying {path.name} in an empty environment")
            environment = _Environment(Path(work))
            environment.install(path)
            _try_commands(environment, environment.copies_a_topic(), version)
            if path is made.wheel:
                typer.echo(f"trying {py_files.name}, with nothing but what it needs installed")
                environment.pip("uninstall", "--quiet", "--yes", "kafkalog")
                options = ("--py-files", str(py_files))
                environment.copies_a_topic(*options, PYTHONPATH=str(py_files))
    bundle = build_bundle(made.wheel, folder)
    typer.echo(f"trying {bundle.name}, with nothing installed but Spark")
    with tempfile.TemporaryDirectory() as work:
        environment = _Environment(Path(work))
        environment.pip("install", "--quiet", "--constraint", str(_LOCK), "pyspark")
        packages = Path(work) / "packages"
        with tarfile.open(bundle) as archive:
            archive.extractall(packages, filter="data")
        environment.copies_a_topic("--archives", f"{bundle}#bundle", PYTHONPATH=str(packages))
    files = sorted([made.sdist, made.wheel, py_files, bundle])
    sums = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files
    )
    (folder / _CHECKSUMS).write_text(sums, encoding="ascii")
    typer.echo(f"{sums}{folder.name}/ is complete")


def _try_commands(environment: _Environment, log: Path, version: str) -> None:
    if version not in environment.command("--version"):
        sys.exit(f"kafkalog --version does not say {version}")
    found = environment.command("sql", str(log), "SELECT count(*) AS n FROM second", "--json")
    if json.loads(found) != {"n": deployed_job.ROWS}:
        sys.exit(f"kafkalog sql says {found}")


def _run(words: list[str], folder: Path, **variables: str) -> str:
    kept = {
        name: text for name, text in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}
    }
    ran = subprocess.run(
        words, cwd=folder, env={**kept, **variables}, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        sys.exit(f"{' '.join(words)} ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}")
    return ran.stdout


if __name__ == "__main__":
    main()
