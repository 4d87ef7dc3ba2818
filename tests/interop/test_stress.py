"""A query over directories where anything may happen, for as long as one likes.

``make stress`` runs it for an hour; ``KAFKALOG_STRESS_SECONDS`` and ``KAFKALOG_STRESS_SEED`` say
for how long each of the three, and which steps. It draws a seed; here it is always the same.
"""

from __future__ import annotations

import contextlib
import os
import random
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest
from tests.support.kafka import Broker
from tests.support.peer_topics import BROKER_SETTINGS
from tests.support.spark import end_jvm, small_session, stderr_to
from tests.support.stress import StressQuery, missing_values, run_steps, wait_until_read
from tests.support.stress_grounds import BrokerGround, LiveGround, OwnGround
from tests.support.stress_history import KEEPS_EVERYTHING, problems

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.support.stress import StressGround

SECONDS: Final = float(os.environ.get("KAFKALOG_STRESS_SECONDS", "6"))
SEED: Final = int(os.environ.get("KAFKALOG_STRESS_SEED", "1"))

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(600 + 2 * SECONDS)]


_PATIENCE: Final = {"spark.python.authenticate.socketTimeout": "300s"}
"""How long Spark waits for a process that it starts; a loaded machine is no failure."""


class Engine(NamedTuple):
    """A session, and where its processes write what they have to say."""

    spark: SparkSession
    log: Path


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    log = tmp_path_factory.mktemp("stress") / "spark.log"
    end_jvm()  # an earlier one writes elsewhere
    with contextlib.ExitStack() as stack:
        with stderr_to(log):
            spark = stack.enter_context(small_session(**_PATIENCE, **KEEPS_EVERYTHING))
        yield Engine(spark, log)


def stress(engine: Engine, ground: StressGround, work: Path, *, fails: bool = False) -> None:
    print(f"KAFKALOG_STRESS_SEED={SEED} KAFKALOG_STRESS_SECONDS={SECONDS:g}")  # noqa: T201
    query = StressQuery(engine.spark, ground, work, fails=fails)
    begin = engine.log.stat().st_size
    try:
        done = run_steps(ground, query, random.Random(SEED), SECONDS)
        wait_until_read(ground, query)
    finally:
        query.stop()
    sent = sum(len(life.sent) for life in ground.lives)
    said = engine.log.read_bytes()[begin:].decode(errors="replace")
    found = problems(ground, query.micro_batches(), said, looks=isinstance(ground, OwnGround))
    missing = missing_values(ground, query.rows(), said)
    query_ran = f"{query.starts} runs, {query.losses} losses"
    print(f"{sent} rows, {len(missing)} gone unread, {query_ran}; {dict(done)}")  # noqa: T201
    assert not found
    assert fails or not missing or "[KAFKA_DATA_LOSS." in said


def test_every_row_of_a_brokers_directory_is_read_once_whatever_happens_there(
    engine: Engine, tmp_path: Path
) -> None:
    with Broker(tmp_path / "broker", settings=BROKER_SETTINGS) as broker:
        stress(engine, BrokerGround(broker), tmp_path)


def test_every_row_is_read_once_under_a_broker_as_it_comes_and_losses_fail_the_query(
    engine: Engine, tmp_path: Path
) -> None:
    """High watermarks are on disk every five seconds; topics come again, replicas move."""
    log_dirs = [tmp_path / "one", tmp_path / "two"]
    with Broker(tmp_path / "broker", log_dirs=log_dirs) as broker:
        stress(engine, LiveGround(broker), tmp_path, fails=True)


def test_every_row_of_our_own_directory_is_read_once_whatever_happens_there(
    engine: Engine, tmp_path: Path
) -> None:
    stress(engine, OwnGround(tmp_path / "log"), tmp_path)
