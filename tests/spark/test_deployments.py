"""The same program on a standalone cluster and through Spark Connect."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from tests.support import deployed_job
from tests.support.jvm import Server
from tests.support.kafka import free_port

from kafkalog.jobs.jars import java

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.spark

SPARK_HOME = Path(pyspark.__file__).parent
SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}
ROWS = {"rows": deployed_job.ROWS, "distinct": deployed_job.ROWS, "offsets": deployed_job.ROWS}


def run(folder: Path, words: list[str], **variables: str) -> dict[str, Any]:
    """Run the program with these words before it; give what it printed last."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, **variables}
    ran = subprocess.run(
        [*words, deployed_job.__file__, str(folder)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-6000:]
    shown: dict[str, Any] = json.loads(ran.stdout.strip().splitlines()[-1])
    return shown


def submit(*options: str) -> list[str]:
    settings = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
    return [str(SPARK_HOME / "bin" / "spark-submit"), *options, *settings]


@contextlib.contextmanager
def cluster(home: Path) -> Iterator[str]:
    """Run a master and two workers of one core on loopback; give the master's address."""
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    where = ["--host", "127.0.0.1", "--webui-port", "0"]
    start = [java(), "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{SPARK_HOME}/jars/*"]
    with contextlib.ExitStack() as stack:

        def serve(name: str, main: str, *words: str, ready: str) -> None:
            server = Server(
                [*start, f"org.apache.spark.deploy.{main}", *words], home / f"{name}.log"
            )
            stack.callback(server.kill)
            server.start(ready)

        serve(
            *("master", "master.Master", *where, "--port", str(port)),
            ready="I have been elected leader",
        )
        for name in ("worker-1", "worker-2"):
            limits = ["--cores", "1", "--memory", "512m", "--work-dir", str(home / name)]
            serve(
                *(name, "worker.Worker", *where, *limits, address),
                ready="Successfully registered with master",
            )
        yield address


def test_a_standalone_cluster_copies_a_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a worker starts executors from there, with the Python that they are told
    monkeypatch.setenv("SPARK_HOME", str(SPARK_HOME))
    monkeypatch.setenv("SPARK_SCALA_VERSION", "2.13")
    with cluster(tmp_path) as address:
        shown = run(tmp_path, submit("--master", address, "--executor-memory", "512m"))
    assert shown == {"kind": "pyspark.sql.session", **ROWS}
    assert all(any((tmp_path / name).glob("app-*/*/stderr")) for name in ("worker-1", "worker-2"))


def test_spark_connect_copies_a_topic(tmp_path: Path) -> None:
    words = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
    arguments = " ".join([*words, "pyspark-shell"])
    shown = run(
        *(tmp_path, [sys.executable]), SPARK_REMOTE="local[2]", PYSPARK_SUBMIT_ARGS=arguments
    )
    assert shown == {"kind": "pyspark.sql.connect.session", **ROWS}
