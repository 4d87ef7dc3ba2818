"""The Spark session and the scratch folders that all contenders share."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession
from tests.support.spark import stderr_to

from kafkalog.jobs.process.jars import fetch, kafka_jars
from kafkalog.jobs.python_launcher import launcher

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["RECOMMENDED", "scratch", "spark_session"]

_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


RECOMMENDED: Final = {"spark.python.unix.domain.socket.enabled": "true"}


@contextlib.contextmanager
def spark_session(cores: int, work: Path, *, as_recommended: bool = True) -> Iterator[SparkSession]:
    """Run a local session with Spark's Kafka connector on its class path.

    ``spark.python.unix.domain.socket.enabled`` is what our docs recommend: only Python sources
    and sinks have a pipe that it makes faster. So is the command that starts Python. Without
    ``as_recommended`` both are as Spark has them.
    """
    os.environ["PYSPARK_PYTHON"] = launcher() if as_recommended else sys.executable
    builder = SparkSession.builder.master(f"local[{cores}]").appName("kafkalog benchmarks")
    settings: dict[str, bool | float | int | str | None] = {
        **_SETTINGS,
        **(RECOMMENDED if as_recommended else {}),
        "spark.jars": ",".join(map(str, fetch(kafka_jars()))),
        "spark.local.dir": str(work / "spark"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
    }
    # Workers of a streaming query end with a traceback when Spark closes their pipe to end them.
    with stderr_to(work / "spark.log"):
        spark = builder.config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder that is removed at the end; ``$TMPDIR`` chooses its file system."""
    folder = Path(tempfile.mkdtemp(prefix="kafkalog-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
