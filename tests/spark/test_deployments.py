"""The same program on a standalone cluster and through Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.support import deployed_job
from tests.support.spark_cluster import SPARK_HOME, Cluster

if TYPE_CHECKING:
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


def test_a_standalone_cluster_copies_a_topic(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        shown = run(tmp_path, submit("--master", cluster.address, "--executor-memory", "512m"))
    assert shown == {"kind": "pyspark.sql.session", **ROWS}
    assert all(any((tmp_path / name).glob("app-*/*/stderr")) for name in ("worker-1", "worker-2"))


def test_spark_connect_copies_a_topic(tmp_path: Path) -> None:
    words = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
    arguments = " ".join([*words, "pyspark-shell"])
    shown = run(
        *(tmp_path, [sys.executable]), SPARK_REMOTE="local[2]", PYSPARK_SUBMIT_ARGS=arguments
    )
    assert shown == {"kind": "pyspark.sql.connect.session", **ROWS}
