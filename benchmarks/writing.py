"""Writes of the same rows by Spark's Kafka sink, its Parquet sink, and kafkalog."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from benchmarks.engine import DROPPING_SINK, dropping_sink
from benchmarks.measure import WARM_UPS, Contender, Goal, Workload, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from benchmarks.environment import Environment

__all__ = ["WORKLOADS"]

_KAFKA_SINK: Final = "Kafka sink"
_PARQUET_SINK: Final = "Parquet sink"
_FLUSH_OS: Final = "kafkalog, flush=os"
_FLUSH_COMMIT: Final = "kafkalog, flush=commit"


def _sink(env: Environment) -> Workload:
    env.rows.count()
    env.spark.dataSource.register(dropping_sink())
    return Workload(
        title="batch write",
        contenders=(
            Contender(_KAFKA_SINK, lambda: _to_kafka(env)),
            Contender(_PARQUET_SINK, lambda: _to_parquet(env)),
            Contender(DROPPING_SINK, lambda: _dropped(env)),
            Contender(_FLUSH_OS, lambda: _to_kafkalog(env, "os")),
            Contender(_FLUSH_COMMIT, lambda: _to_kafkalog(env, "commit")),
        ),
        goals=(Goal(_FLUSH_OS, DROPPING_SINK, 0.75), Goal(_FLUSH_OS, _PARQUET_SINK, 1)),
        rows=env.shape.rows,
        warm_ups=1 if env.quick else WARM_UPS,
        notes=(
            "the same rows, cached in Spark's memory, into a new topic (Kafka's is created before"
            " the clock starts) or folder. Neither peer waits for the disk: flush=os compares with"
            " them, flush=commit is what a crash of the machine does not undo. The sink that drops"
            " its rows is what Spark takes to hand them to Python."
        ),
    )


WORKLOADS: Final[Mapping[str, Callable[[Environment], Workload]]] = {"sink": _sink}


def _to_kafka(env: Environment) -> float:
    topic = env.fresh("sink").name
    env.create_topic(topic)
    seconds = timed(env.to_kafka(topic).save)
    env.delete_topic(topic)
    return seconds


def _to_parquet(env: Environment) -> float:
    folder = env.fresh("parquet")
    write = env.rows.write.option("compression", env.shape.codec)
    seconds = timed(lambda: write.parquet(str(folder)))
    shutil.rmtree(folder)
    return seconds


def _dropped(env: Environment) -> float:
    return timed(env.rows.write.format("dropping").mode("append").save)


def _to_kafkalog(env: Environment, flush: str) -> float:
    folder = env.fresh("log")
    folder.mkdir()
    seconds = timed(lambda: env.to_kafkalog("sink", flush).save(str(folder)))
    shutil.rmtree(folder)
    return seconds
