"""A query over directories where anything may happen, for as long as one likes.

``make stress`` runs it for an hour; ``KAFKALOG_STRESS_SECONDS`` and ``KAFKALOG_STRESS_SEED`` say
for how long each of the two, and which steps.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.kafka import Broker
from tests.support.peer_topics import BROKER_SETTINGS
from tests.support.spark import small_session
from tests.support.stress import StressQuery, run_steps, wait_until_read
from tests.support.stress_grounds import BrokerGround, OwnGround

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.support.stress import StressGround

SECONDS: Final = float(os.environ.get("KAFKALOG_STRESS_SECONDS", "12"))
SEED: Final = int(os.environ.get("KAFKALOG_STRESS_SEED", random.SystemRandom().randrange(10**6)))

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(600 + 2 * SECONDS)]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with small_session() as session:
        yield session


def stress(spark: SparkSession, ground: StressGround, work: Path) -> None:
    print(f"KAFKALOG_STRESS_SEED={SEED} KAFKALOG_STRESS_SECONDS={SECONDS:g}")  # noqa: T201
    query = StressQuery(spark, ground, work)
    try:
        done = run_steps(ground, query, random.Random(SEED), SECONDS)
        wait_until_read(ground, query)
    finally:
        query.stop()
    sent = sum(len(life.sent) for life in ground.lives)
    print(f"{sent} rows, {len(query.rows())} read in {query.starts} runs; {dict(done)}")  # noqa: T201


def test_every_row_of_a_brokers_directory_is_read_once_whatever_happens_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Broker(tmp_path / "broker", settings=BROKER_SETTINGS) as broker:
        stress(spark, BrokerGround(broker), tmp_path)


def test_every_row_of_our_own_directory_is_read_once_whatever_happens_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    stress(spark, OwnGround(tmp_path / "log"), tmp_path)
