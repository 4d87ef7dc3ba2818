"""Queries over one topic in a bucket, of which parts are killed: at random, and at each request."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest
from tests.support.campaign import Follower, rows_of
from tests.support.killed_query import VICTIMS, KilledQuery, kill_in_time
from tests.support.object_store import Losses, ObjectStore, Request, object_store
from tests.support.scenes import TOPICS
from tests.support.spark import small_session

import kafkalog
from kafkalog.files.storage import RemoteRoot
from kafkalog.streaming.admin import topics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.nightly]

KILLS: Final = int(os.environ.get("KAFKALOG_SPARK_KILLS", "8"))
ROWS: Final = 20
TRIES: Final = {"storage.tries": "20"}
"""Four requests of ten may fail."""
BUSY: Final = ("CANNOT_OPEN_SOCKET", "to connect back")
"""Spark gives a process some seconds to start, and its query ends if the machine is too busy."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    with object_store("versitygw", tmp_path / "server") as store:
        yield store


APPENDER: Final = """
import json, sys, time
from pathlib import Path
import pyarrow as pa
import kafkalog
from kafkalog.errors import KafkaLogError
from tests.support.campaign import rows_of

place, options, rows, until = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
batch = 0
while not Path(until).exists():
    table = pa.table({"value": rows_of("e", [batch], rows)})
    table = table.append_column("partition", pa.array([batch % 2] * len(table), pa.int32()))
    try:
        kafkalog.append(place, sys.argv[5], table, transactional_id="e", version=batch,
                        options=options)
        batch += 1
        time.sleep(0.5)
    except KafkaLogError as error:
        print(repr(error), file=sys.stderr)
print(batch)
"""


@contextmanager
def appender(place: str, until: Path) -> Iterator[subprocess.Popen[str]]:
    words = [place, json.dumps(TRIES), str(ROWS), str(until), TOPICS[0]]
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", APPENDER, *words]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


class Tail:
    """A streaming query that follows the topics, and keeps the rows of each micro-batch."""

    def __init__(self, spark: SparkSession, place: str, checkpoint: Path) -> None:
        self._spark, self._place, self._checkpoint = spark, place, checkpoint
        self._batches: dict[int, list[tuple[str, int, int, str]]] = {}
        self._query: StreamingQuery | None = None

    def run(self) -> None:
        """Start it; again only if the machine was too busy: what happens to others ends none."""
        if self._query is not None and not self._query.isActive:
            told = str(self._query.exception())
            assert any(each in told for each in BUSY), told
        if self._query is None or not self._query.isActive:
            reader = self._spark.readStream.format("kafkalog").schema(
                "topic STRING, partition INT, offset BIGINT, value STRING"
            )
            reader = reader.options(subscribe=",".join(TOPICS), startingOffsets="earliest", **TRIES)
            writer = reader.load(self._place).writeStream.foreachBatch(self._take)
            writer = writer.option("checkpointLocation", str(self._checkpoint))
            self._query = writer.trigger(processingTime="1 second").start()

    def _take(self, rows: DataFrame, batch_id: int) -> None:
        self._batches[batch_id] = [tuple(row) for row in rows.collect()]

    @property
    def rows(self) -> list[tuple[str, int, int, str]]:
        """What it has seen, in its order."""
        return [row for _, rows in sorted(self._batches.items()) for row in rows]

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("loses", [False, True])
def test_four_queries_of_which_one_is_killed_again_and_again_an_appender_and_two_tails(
    store: ObjectStore, tmp_path: Path, *, loses: bool
) -> None:
    direct = store.past_the_proxy()
    place, ended = store.whole_uri("log"), tmp_path / "ended"
    kafkalog.append(direct.whole_uri("log"), "before", pa.table({"value": ["1"]}))
    for topic in TOPICS:
        topics.create([direct.whole_uri("log")], topic, partitions=2)
    store.fault = Losses() if loses else None
    follower = Follower([RemoteRoot.parse(direct.whole_uri("log"))], TOPICS, ROWS)
    with ExitStack() as running:
        spark = running.enter_context(small_session(**{"spark.driver.memory": "512m"}))
        tails = [Tail(spark, place, tmp_path / f"tail-{number}") for number in range(2)]
        queries = [
            running.enter_context(
                KilledQuery(tmp_path / name, place, batches=8 + 2 * KILLS, rows=ROWS)
            )
            for name in "abcd"
        ]
        appends = running.enter_context(appender(place, ended))
        for each in (*queries, *tails):
            each.start() if isinstance(each, KilledQuery) else each.run()
        chance = random.Random(KILLS)
        for number in range(KILLS):
            kill_in_time(queries[0], VICTIMS[-1 - number % 4], chance, follower)
        for query in queries:
            query.wait_until(lambda: False, follower.look)
            while not query.succeeded:
                assert query.starts <= 4 * KILLS + 8, query.told
                query.start()
                query.wait_until(lambda: False, follower.look)
        ended.touch()
        appended = int(appends.communicate(timeout=600)[0])
        assert appends.returncode == 0
        store.reset()
        follower.look()
        expected = [row for query in queries for row in query.expected]
        expected += rows_of("e", range(appended), ROWS)
        assert follower.seen == Counter(expected)
        assert appended
        check_tails(tails, len(expected))


def check_tails(tails: list[Tail], count: int) -> None:
    """See that each has all rows, in the order of their offsets, and stop them."""
    for _ in range(600):
        for tail in tails:
            tail.run()
        if all(len(tail.rows) >= count for tail in tails):
            break
        threading.Event().wait(1)
    for tail in tails:
        tail.stop()
        by_partition: dict[tuple[str, int], list[int]] = {}
        for topic, partition, offset, _ in tail.rows:
            by_partition.setdefault((topic, partition), []).append(offset)
        assert sum(map(len, by_partition.values())) == count
        for offsets in by_partition.values():
            assert offsets == [*range(len(offsets))]
    first, second = (sorted(tail.rows) for tail in tails)
    assert first == second


@pytest.mark.timeout(3600)
def test_a_query_that_is_killed_at_each_request_of_a_micro_batch_writes_each_row_once(
    store: ObjectStore, tmp_path: Path
) -> None:
    direct, place = store.past_the_proxy(), store.whole_uri("log")
    kafkalog.append(direct.whole_uri("log"), "before", pa.table({"value": ["1"]}))
    follower = Follower([RemoteRoot.parse(direct.whole_uri("log"))], TOPICS, ROWS)
    with KilledQuery(tmp_path / "q", place, batches=2, rows=ROWS) as query:
        after, faults = 0, iter(["lost", "reset"] * 1000)

        def kill(request: Request) -> str | None:
            """Kill it at its next request: before that arrives, or before its answer does."""
            del request
            asked[0] += 1
            if asked[0] != after:
                return None
            query.kill("tree")
            return next(faults)

        while not query.starts or not query.succeeded:
            asked, after = [0], after + 1
            store.fault = kill
            query.start()
            query.wait_until(lambda: False, follower.look)
            assert after < 60
        store.reset()
        follower.look()
        assert follower.seen == Counter(query.expected)
    assert query.starts > 4
