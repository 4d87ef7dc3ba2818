"""One small Spark for tests, and what they ask of streaming queries again and again."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from kafkalog.jobs.process.jars import delta_jars, fetch
from kafkalog.jobs.session import DELTA_SETTINGS
from kafkalog.streaming.spark.versions import HAS_ADMISSION_CONTROL, HAS_FILTER_PUSHDOWN

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "NEEDS_ADMISSION_CONTROL",
    "NEEDS_FILTER_PUSHDOWN",
    "delta_session",
    "end_jvm",
    "limited",
    "small_session",
    "stderr_to",
]


def limited(maximum: int) -> dict[str, str]:
    """Return what limits a micro-batch to so many offsets, where availableNow then goes on."""
    return {"maxOffsetsPerTrigger": str(maximum)} if HAS_ADMISSION_CONTROL else {}


NEEDS_ADMISSION_CONTROL: Final = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL, reason="this Spark ends availableNow after one micro-batch"
)
NEEDS_FILTER_PUSHDOWN: Final = pytest.mark.skipif(
    not HAS_FILTER_PUSHDOWN, reason="this Spark tells a source no filters"
)

_with_delta: dict[str, Any] = {}


@contextmanager
def small_session(**conf: str) -> Iterator[SparkSession]:
    """Start a local session of two threads and 1 GiB, and stop it; one at a time in a process."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("kafkalog tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.streaming.stopTimeout", "60s")
    )
    for name, value in conf.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def delta_session() -> Iterator[SparkSession]:
    """Start a session that knows Delta, in a JVM that has its jars."""
    if SparkContext._gateway is None or SparkContext._gateway is not _with_delta.get("gateway"):
        end_jvm()  # jars reach the driver's class path when a JVM starts
    jars = ",".join(map(str, fetch(delta_jars())))
    few = {"spark.databricks.delta.snapshotPartitions": "1"}
    with small_session(**{"spark.jars": jars}, **DELTA_SETTINGS, **few) as session:
        _with_delta["gateway"] = SparkContext._gateway
        yield session


def end_jvm() -> None:
    """End the JVM of sessions that were stopped: the next one starts a new one.

    What is given to a JVM when it starts, such as its class path, comes too late for another.
    """
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        started = getattr(gateway, "proc", None)
        if started is not None:
            started.stdin.close()  # what it waits for
        SparkContext._gateway = SparkContext._jvm = None


@contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Let processes that are started within, and theirs, write their stderr to a file."""
    kept = os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
