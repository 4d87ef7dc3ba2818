"""Prometheus and its promtool: those of this machine, else of Debian's archive, kept in the cache.

The package is only unpacked: nothing is installed, and no service begins to run.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.support.object_servers import free_port, run_words

from kafkalog.jobs.process.jars import cached_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["prometheus", "prometheus_program"]

_PINNED: Final = "2.42.0+ds-5+deb12u1"
"""Of Debian 12; where the archive has another one only, that is taken."""


def prometheus_program(name: str) -> str:
    """Return ``prometheus`` or ``promtool``; fetched first where this machine has none.

    Raises:
        RuntimeError: there is none, and no apt-get that brings it.
    """
    found = shutil.which(name)
    return found or str(cached_folder(f"prometheus-{_PINNED}", _unpack) / "usr/bin" / name)


def _unpack(home: Path) -> None:
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".prometheus-") as scratch:
        Path(scratch).chmod(0o755)  # apt downloads as a user of its own
        try:
            run_words(["apt-get", "download", f"prometheus={_PINNED}"], folder=Path(scratch))
        except RuntimeError:
            run_words(["apt-get", "download", "prometheus"], folder=Path(scratch))
        (package,) = Path(scratch).glob("prometheus_*.deb")
        run_words(["dpkg-deb", "--extract", str(package), f"{scratch}/home"])
        Path(scratch, "home").rename(home)


class _Server:
    """A Prometheus that has scraped; asked by its API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an expression now.

        Raises:
            AssertionError: it is none.
        """
        given = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"{self._url}/query?{given}") as answer:
                told = json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it has not begun yet
                raise
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        found: list[dict[str, Any]] = told["data"]["result"]
        return found


@contextmanager
def prometheus(folder: Path, targets: list[str], rules: Path) -> Iterator[_Server]:
    """Run a Prometheus that scrapes each second; enter when every target has been."""
    port = free_port()
    scraped = [{"job_name": "kafkalog", "static_configs": [{"targets": targets}]}]
    settings: dict[str, Any] = {"global": {"scrape_interval": "1s"}, "rule_files": [str(rules)]}
    settings["scrape_configs"] = scraped
    config = folder / "prometheus.yml"
    config.write_text(json.dumps(settings))  # which YAML is a superset of
    words = [prometheus_program("prometheus"), f"--config.file={config}"]
    words += [f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "prometheus.log").open("wb") as log, subprocess.Popen(words, stderr=log) as one:
        try:
            server = _Server(port)
            _wait(one, server, len(targets), folder / "prometheus.log")
            yield server
        finally:
            one.terminate()


def _wait(process: subprocess.Popen[bytes], server: _Server, count: int, log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()
        try:
            if len(server.ask("up == 1")) == count:
                return
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.2)
    raise AssertionError(f"no scrape of {count} targets: {log.read_text()}")
