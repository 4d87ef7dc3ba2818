"""Reading under a broker that writes, rolls, compacts and deletes: every committed record once.

Lasts ``KAFKALOG_LIVE_SECONDS``, 20 unless it is set; ``make live`` lets it run for two minutes.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.support.broker_load import SETTINGS, TOPICS, Load, Place
from tests.support.kafka import Broker
from tests.support.spark import small_session
from tests.support.stress_grounds import LiveGround

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.interop, pytest.mark.spark]

SECONDS: Final = int(os.environ.get("KAFKALOG_LIVE_SECONDS", "20"))
CATCH_UP_SECONDS: Final = 180
ROWS: Final = "topic STRING, partition INT, offset BIGINT, value STRING"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "broker", settings=SETTINGS) as broker:
        broker.create_topics(*TOPICS)
        yield broker


def options() -> dict[str, str]:
    return {
        "subscribe": ",".join(topic.name for topic in TOPICS),
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "false",  # of what retention takes before it is read
    }


def read(spark: SparkSession, path: str) -> list[Any]:
    frame = spark.read.format("kafkalog").options(**options()).load(path)
    return frame.select("topic", "partition", "offset", "key", "value").collect()


def place_of(row: Any) -> Place:
    return row["topic"], row["partition"], row["offset"]


def check_rows(rows: list[Any], load: Load) -> set[Place]:
    """Every row is there once, is what was written, and was not aborted; gives where they are."""
    places = Counter(map(place_of, rows))
    assert [place for place, count in places.items() if count > 1] == []
    assert places.keys().isdisjoint(load.aborted.copy())
    # what has just been written may be read before the producer hears of it
    known = [row for row in rows if place_of(row) in load.written]
    wrong = [r for r in known if load.written[place_of(r)] != (_bytes(r["key"]), bytes(r["value"]))]
    assert wrong == []
    return set(places)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def check_batch(rows: list[Any], load: Load) -> None:
    places = check_rows(rows, load)
    for topic, partition in (("growing", 0), ("growing", 1)):
        offsets = sorted(place[2] for place in places if place[:2] == (topic, partition))
        assert offsets == list(range(len(offsets)))


def test_a_live_directory_gives_every_committed_record_once(broker: Broker, tmp_path: Path) -> None:
    path = str(broker.log_dirs[0])
    streamed: list[Any] = []
    with small_session() as spark:
        stream = spark.readStream.format("kafkalog").options(**options()).load(path)
        columns = stream.select("topic", "partition", "offset", "key", "value")

        def take(frame: DataFrame, _: int) -> None:
            streamed.extend(frame.collect())

        query = (
            columns.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        try:
            with Load(broker) as load:
                end = time.monotonic() + SECONDS
                while time.monotonic() < end:
                    assert query.isActive, query.exception()
                    check_batch(read(spark, path), load)
            assert load.failures == []
            kept = {place for place in load.committed if place[0] in {"growing", "ended"}}
            newest = set(load.newest.values())
            deadline = time.monotonic() + CATCH_UP_SECONDS
            while not (kept | newest) <= set(map(place_of, streamed)):
                assert query.isActive, query.exception()
                assert time.monotonic() < deadline, "the stream does not catch up"
                time.sleep(0.2)
        finally:
            query.stop()
        check_rows(streamed, load)
        compacted = sorted(
            (row["offset"], _bytes(row["key"])) for row in streamed if row["topic"] == "compacted"
        )
        seen = {key: ("compacted", 0, offset) for offset, key in compacted}
        assert seen == load.newest
        check_final_read(broker, read(spark, path), load)


def test_new_partitions_and_moved_replicas_give_every_row_once_under_a_broker_as_it_comes(
    tmp_path: Path,
) -> None:
    """High watermarks are on disk every five seconds; loss fails the query, as by default."""
    log_dirs = [tmp_path / "one", tmp_path / "two"]
    streamed: list[tuple[str, int, int, str]] = []
    rng = random.Random(SECONDS)
    with Broker(tmp_path / "broker", log_dirs=log_dirs) as broker, small_session() as spark:
        ground = LiveGround(broker)
        ground.add_topic(rng)
        given = {"subscribePattern": "^s", "startingOffsets": "earliest"}
        reader = spark.readStream.format("kafkalog").options(**given)
        frame = reader.schema(ROWS).load(",".join(map(str, log_dirs)))

        def take(frame: DataFrame, _: int) -> None:
            streamed.extend(map(tuple, frame.collect()))

        query = frame.writeStream.foreachBatch(take).start()
        try:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                steps = ground.harmless_steps()
                (step,) = rng.choices(list(steps), list(steps.values()))
                step(rng)
                assert query.isActive, query.exception()
            sent = {
                (life.name, *place, value)
                for life in ground.lives
                for value, place in life.sent.items()
                if place is not None
            }
            deadline = time.monotonic() + CATCH_UP_SECONDS
            while not sent <= set(streamed):
                assert query.isActive, query.exception()
                assert time.monotonic() < deadline, sorted(sent - set(streamed))[:20]
                time.sleep(0.2)
        finally:
            query.stop()
    assert sorted(streamed) == sorted(sent)


def check_final_read(broker: Broker, rows: list[Any], load: Load) -> None:
    """What is read in the end is what a client reads; the broker has deleted and compacted."""
    check_batch(rows, load)
    offsets = {place for place in map(place_of, rows) if place[0] != "compacted"}
    for topic in ("growing", "ended", "deleted"):
        served = broker.consume_all(topic, isolation="read_committed")
        assert {(topic, r.partition, r.offset) for r in served} == {
            place for place in offsets if place[0] == topic
        }
    assert broker.offsets("deleted")[0][0] > 0
    compacted = [row for row in rows if row["topic"] == "compacted"]
    assert len(compacted) < sum(place[0] == "compacted" for place in load.written)
