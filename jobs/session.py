"""The Spark session of a pipeline."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import kafkalog
from kafkalog.jobs.process.jars import delta_jars, fetch, kafka_jars
from kafkalog.jobs.process.signals import cancel_jobs_on_interrupt, uninterrupted
from kafkalog.jobs.python_daemon import DAEMON_MODULE
from kafkalog.jobs.python_launcher import launcher
from pyspark_kafkalog import DefaultSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["DELTA_SETTINGS", "build_session", "register", "session"]

_RECOMMENDED: Final = {
    # A fifth faster than loopback TCP between the JVM and its Python workers.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}

DELTA_SETTINGS: Final = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""What lets Spark know Delta's tables and commands."""

_LOCAL: Final = {
    # Each look at a Delta table is so many tasks. Its 50 are meant for a cluster.
    "spark.databricks.delta.snapshotPartitions": "4",
    "spark.master": "local[*]",
    "spark.python.daemon.module": DAEMON_MODULE,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

_REPEATING: Final = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.datasources.v2",
    "org.apache.spark.sql.execution.streaming",
    "org.apache.spark.util.Utils",
)
"""The loggers that show an error, with the frames of Java, on its way to the driver."""

_OF_QUERIES: Final = "SQLQueryContextLogger"
"""PySpark's own, which shows what is wrong with a query as JSON, frames of Java included."""


@contextmanager
def session(
    name: str,
    *,
    delta: bool = False,
    kafka: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Have a session while a pipeline runs; see :func:`build_session`.

    Spark still writes to stderr while it ends. What the pipeline says afterwards, how much it did
    or what was wrong, is the last line. An interrupt does not wait for Spark.

    Raises:
        RuntimeError: an error of the JVM that PySpark has no class for; the text is the JVM's.
    """
    spark = build_session(name, delta=delta, kafka=kafka, settings=settings)
    try:
        yield spark
    except KeyboardInterrupt:
        raise
    except Py4JJavaError as error:
        text = str(error)  # which the JVM has
        _end(spark)
        raise RuntimeError(text) from None
    except BaseException as error:
        _keep_text(error)
        _end(spark)
        raise
    _end(spark)


def _keep_text(error: BaseException) -> None:
    """Let an error of Spark's, and what it comes from, have its text when the JVM has gone."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, CapturedException):
            text, kind = str(seen), type(seen)
            kept = {"__str__": lambda _, text=text: text, "__module__": kind.__module__}
            seen.__class__ = type(kind.__name__, (kind,), kept)
        seen = seen.__cause__ or seen.__context__


def _end(spark: SparkSession) -> None:
    """Stop a session, and wait until its JVM is gone if this process has started it."""
    gateway = SparkContext._gateway  # noqa: SLF001 - Spark offers no other way
    spark.stop()
    jvm = getattr(gateway, "proc", None)
    if gateway is None or jvm is None:
        return
    SparkContext._gateway = None  # noqa: SLF001 - the text of an error asks for _jvm still
    gateway.shutdown()
    jvm.stdin.close()  # what it waits for
    jvm.wait()


def build_session(
    name: str,
    *,
    delta: bool = False,
    kafka: bool = False,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the session to run a pipeline in.

    Under ``spark-submit`` master, memory and jars are what its command line says (jars come with
    ``--packages``); a script that plain Python runs gets a local session, and the jars that it
    needs are fetched for it.

    Ctrl-C and SIGTERM wait until Spark has started, and end it then; a second one ends the process.

    Args:
        name: the application's name.
        delta: whether Delta tables are read or written.
        kafka: whether Spark's Kafka connector is needed.
        settings: more of Spark's settings; they win.

    Raises:
        JarError: jars could not be fetched.
    """
    chosen: dict[str, Any] = {"spark.app.name": name}
    chosen |= _settings(delta=delta, kafka=kafka) | dict(settings or {})
    conf = SparkConf().setAll([*chosen.items()])
    builder = SparkSession.builder.config(map=chosen)
    # The session itself is made here: its thread is where the JVM looks for the active one.
    session = uninterrupted(
        lambda: SparkContext.getOrCreate(conf), builder.getOrCreate, roll_back=_end
    )
    cancel_jobs_on_interrupt(session.sparkContext)
    if not _submitted():
        _let_errors_be_told_once(session)
    register(session)
    return session


def _settings(*, delta: bool, kafka: bool) -> dict[str, str]:
    """Return what a session is given; the jars that it needs are fetched."""
    chosen = dict(_RECOMMENDED)
    if delta:
        chosen |= DELTA_SETTINGS
    if not _submitted():
        chosen |= _LOCAL
        os.environ.setdefault("PYSPARK_PYTHON", launcher())
        wanted = [*([delta_jars()] if delta else []), *([kafka_jars()] if kafka else [])]
        if wanted:
            chosen["spark.jars"] = ",".join(str(jar) for each in wanted for jar in fetch(each))
    return chosen


def _let_errors_be_told_once(session: SparkSession) -> None:
    """Let Spark not log the errors that it throws as well: the job says them in one line."""
    PySparkLogger.getLogger(_OF_QUERIES).setLevel(logging.CRITICAL + 1)
    jvm = session.sparkContext._jvm  # noqa: SLF001 - Spark offers no other way
    if jvm is None:
        return
    log4j = jvm.org.apache.logging.log4j
    for logger in _REPEATING:
        log4j.core.config.Configurator.setLevel(logger, log4j.Level.OFF)


def register(session: SparkSession) -> None:
    """Register the format in a session where kafkalog came as a zip, by ``--py-files``.

    Spark sends those files to the processes that run tasks, plan and commit. It does not send them
    to the one that looks for installed data sources, nor to the one that asks a streaming source
    for its offsets. These two find the zip by their environment. If kafkalog is installed, this
    does nothing.
    """
    package = Path(kafkalog.__file__).parent
    if package.is_dir():
        return
    environment = session.sparkContext.environment
    places = (str(package.parent), environment.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    session.dataSource.register(DefaultSource)


def _submitted() -> bool:
    """Whether spark-submit has started this process: its JVM is there already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
