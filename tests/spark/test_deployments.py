"""The same program on a standalone cluster and through Spark Connect."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import deployed_job
from tests.support.jvm import Server
from tests.support.kafka import free_port
from tests.support.spark_cluster import SPARK_HOME, Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.spark

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


@pytest.mark.nightly
def test_a_standalone_cluster_copies_a_topic(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        shown = run(tmp_path, submit("--master", cluster.address, "--executor-memory", "512m"))
    assert shown == {"kind": "pyspark.sql.session", **ROWS}
    assert all(any((tmp_path / name).glob("app-*/*/stderr")) for name in ("worker-1", "worker-2"))


CLIENT = os.environ.get("KAFKALOG_CLIENT_PYTHON", "")
"""A Python with pyspark-client instead of pyspark; ``make matrix`` builds one."""


LISTENING = """
import sys
from pathlib import Path
import pyspark
from pyspark.sql import SparkSession
import pyspark_kafkalog
from kafkalog.streaming.spark.listeners import LagListener

assert not (Path(pyspark.__file__).parent / "jars").exists()
spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(pyspark_kafkalog.DefaultSource)
listener = LagListener()
spark.streams.addListener(listener)
rows = spark.read.format("kafkalog").option("subscribe", "second")
print(rows.load(str(Path(sys.argv[1]).absolute())).count())
spark.streams.removeListener(listener)
spark.stop()
"""


@contextlib.contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Give the address of a Spark Connect server."""
    port = free_port()
    words = ["--conf", f"spark.connect.grpc.binding.port={port}"]
    words += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    settings = {name: text for name, text in SETTINGS.items() if name != "spark.log.level"}
    words += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    variables = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", *words]
    server = Server(submit, folder / "server.log", variables)
    try:
        server.start("Spark Connect server started")
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.kill()


@pytest.mark.nightly
def test_spark_connect_copies_a_topic(tmp_path: Path) -> None:
    # A session with `local[2]` would start its server at port 15002, which another one may have.
    with connect_server(tmp_path) as address:
        shown = run(tmp_path, [sys.executable], SPARK_REMOTE=address)
    assert shown == {"kind": "pyspark.sql.connect.session", **ROWS}


@pytest.mark.skipif(not CLIENT, reason="KAFKALOG_CLIENT_PYTHON names no Python")
def test_a_driver_with_nothing_but_the_client_copies_a_topic(tmp_path: Path) -> None:
    with connect_server(tmp_path) as address:
        shown = run(tmp_path, [CLIENT], SPARK_REMOTE=address, PYSPARK_PYTHON=CLIENT)
        assert shown == {"kind": "pyspark.sql.connect.session", **ROWS}
        # From `python -c` pyspark-client would not run: it takes that for its own doctests.
        (tmp_path / "listening.py").write_text(LISTENING)
        said = subprocess.check_output(
            [CLIENT, "-W", "ignore", "listening.py", "log"],
            cwd=tmp_path,
            env={**os.environ, "SPARK_REMOTE": address},
            text=True,
        )
    assert said == f"{deployed_job.ROWS}\n"
