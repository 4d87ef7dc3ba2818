"""The declarative pipeline of docs/declarative.md, run as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.delta_table import rows_in
from tests.support.distributions import ROOT
from tests.support.sinking import values_of

import kafkalog
from kafkalog.jobs.process.jars import delta_jars, fetch

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark


def write_project(folder: Path, log: Path) -> None:
    page = (ROOT / "docs" / "declarative.md").read_text(encoding="utf-8")
    (spec,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    spec = spec.replace("/checkpoints", f"{folder}/checkpoints").replace("/logs/a", str(log))
    (folder / "spark-pipeline.yml").write_text(spec)
    (folder / "transformations").mkdir()
    (folder / "transformations" / "customers.py").write_text(code)


def settings(folder: Path) -> str:
    chosen = {
        "spark.driver.memory": "768m",
        "spark.jars": ",".join(map(str, fetch(delta_jars()))),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
    }
    words = [word for name, value in chosen.items() for word in ("--conf", f"{name}={value}")]
    return " ".join([*words, "pyspark-shell"])


def test_a_pipeline_reads_a_topic_into_tables_and_writes_another_topic(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for keys, values in ((["1", "2", "1", "3"], ["ann", "bob", "anna", None]), (["2"], [None])):
        rows = pa.table({"key": pa.array(keys), "value": pa.array(values, pa.string())})
        kafkalog.append(log, "customers", rows)
    write_project(tmp_path, log)
    variables = {
        "SPARK_REMOTE": "local[2]",
        "SPARK_TESTING": "1",  # the server takes a port of its own
        "PYSPARK_SUBMIT_ARGS": settings(tmp_path),
        "PYSPARK_PYTHON": sys.executable,
    }
    ran = subprocess.run(
        [sys.executable, "-m", "pyspark.pipelines.cli", "run"],
        env={**os.environ, **variables},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-6000:]
    assert rows_in(tmp_path / "warehouse" / "customers") == [{"id": "1", "name": "anna"}]
    changes = rows_in(tmp_path / "warehouse" / "changes")
    assert sorted(row["offset"] for row in changes) == list(range(5))
    assert values_of([log], "greetings") == {0: ["hello ann", "hello bob", "hello anna"]}
