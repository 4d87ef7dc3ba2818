"""A query changes its format between Spark's Kafka source and ours, and keeps its checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from pyspark.errors import StreamingQueryException
from tests.support.kafka import Broker, Topic
from tests.support.peer_topics import BROKER_SETTINGS, wait_until_on_disk
from tests.support.spark_peers import Peers, session_with_both

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame

pytestmark = [pytest.mark.interop, pytest.mark.spark]

Place = tuple[int, int]
"""Partition and offset of a row."""

PARTITIONS: Final = 3
LIMIT: Final = 9
ROWS: Final = 90


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    home = tmp_path_factory.mktemp("takeover")
    with Broker(home / "broker", settings=BROKER_SETTINGS) as broker, session_with_both() as spark:
        yield Peers(spark, broker, home)


@dataclass
class Moving:
    """A query over one topic that is run by now the one, now the other source.

    ``batches`` are the rows of each micro-batch by its number, and with the format it had.
    """

    peers: Peers
    topic: str
    checkpoint: Path
    batches: list[tuple[int, str, list[Place]]] = field(default_factory=list)
    failing: int | None = None
    """The micro-batch that is to fail when its rows have been read."""
    _sent: int = 0

    def send(self, count: int, *, over: int = PARTITIONS, wait: bool = True) -> None:
        values = [(None, str(self._sent + n).encode()) for n in range(count)]
        self._sent += count
        settings = {"batch.num.messages": 5, "linger.ms": 5}
        self.peers.broker.produce(self.topic, values, over=over, **settings)
        if wait:
            wait_until_on_disk(self.peers.broker, self.topic)

    def run(self, format_: str) -> int:
        """Read what there is; give how many micro-batches that took."""
        before = len(self.batches)

        def take(frame: DataFrame, batch_id: int) -> None:
            rows = [(row[0], row[1]) for row in frame.select("partition", "offset").collect()]
            self.batches.append((batch_id, format_, rows))
            if batch_id == self.failing:
                raise RuntimeError("the batch is to fail")

        options = {"subscribe": self.topic, "maxOffsetsPerTrigger": str(LIMIT)}
        options |= {"startingOffsets": "earliest"}
        writer = self.peers.frame(format_, options).writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(240)
        finally:
            query.stop()
        return len(self.batches) - before

    @property
    def places(self) -> list[Place]:
        return sorted(place for _, _, rows in self.batches for place in rows)

    @property
    def expected(self) -> list[Place]:
        found = self.peers.broker.consume_all(self.topic)
        return [(record.partition, record.offset) for record in found]

    def ends(self) -> dict[str, dict[str, int]]:
        """Give the end of the last micro-batch that the checkpoint knows."""
        files = (self.checkpoint / "offsets").glob("[0-9]*")
        last = max(files, key=lambda path: int(path.name))
        ends: dict[str, dict[str, int]] = json.loads(last.read_text().splitlines()[-1])
        return ends


def moving(peers: Peers, topic: str, tmp_path: Path) -> Moving:
    peers.broker.create_topics(Topic(topic, PARTITIONS))
    return Moving(peers, topic, tmp_path / "checkpoint")


def test_a_query_goes_over_after_ten_batches_and_back_with_every_row_once(
    peers: Peers, tmp_path: Path
) -> None:
    query = moving(peers, "there-and-back", tmp_path)
    query.send(ROWS)
    assert query.run("kafka") >= 10
    assert query.places == query.expected
    query.send(30)
    assert query.run("kafkalog") >= 3
    assert query.places == query.expected
    query.send(30)
    assert query.run("kafka") >= 3
    assert query.places == query.expected
    assert [batch_id for batch_id, _, _ in query.batches] == list(range(len(query.batches)))
    ends = {str(n): end for n, (_, end) in peers.broker.offsets("there-and-back").items()}
    assert query.ends() == {"there-and-back": ends}


def test_a_query_that_began_over_files_goes_on_over_a_broker(peers: Peers, tmp_path: Path) -> None:
    query = moving(peers, "files-first", tmp_path)
    query.send(30)
    assert query.run("kafkalog") >= 3
    query.send(20)
    assert query.run("kafka") >= 2
    query.send(10)
    assert query.run("kafkalog") >= 1
    assert query.places == query.expected


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param("kafka", "kafkalog", marks=pytest.mark.nightly),
        ("kafkalog", "kafka"),
    ],
)
def test_a_batch_that_failed_in_one_is_run_again_by_the_other_with_the_same_rows(
    peers: Peers, tmp_path: Path, first: str, second: str
) -> None:
    query = moving(peers, f"failed-in-{first}", tmp_path)
    query.send(30)
    query.failing = 2
    with pytest.raises(StreamingQueryException, match="the batch is to fail"):
        query.run(first)
    query.failing = None
    failed = query.batches.pop()
    query.send(30)
    admin = AdminClient({"bootstrap.servers": peers.broker.bootstrap})
    admin.create_partitions([NewPartitions(query.topic, 4)])[query.topic].result()
    peers.broker.wait_for_leaders(Topic(query.topic, 4))
    query.send(40, over=4)
    query.run(second)
    again = next(batch for batch in query.batches if batch[1] == second)
    assert (again[0], sorted(again[2])) == (failed[0], sorted(failed[2]))
    assert query.places == query.expected
    assert any(partition == 3 for partition, _ in query.places)


def test_a_query_goes_over_before_the_broker_has_written_down_what_is_committed(
    peers: Peers, tmp_path: Path
) -> None:
    """As within the seconds that a broker takes; this one does it when it stops."""
    settings = {"replica.high.watermark.checkpoint.interval.ms": "3600000"}
    with Broker(tmp_path / "broker", settings=settings) as broker:
        query = moving(Peers(peers.spark, broker, tmp_path), "at-once", tmp_path)
        query.send(30, wait=False)
        query.failing = 2
        with pytest.raises(StreamingQueryException, match="the batch is to fail"):
            query.run("kafka")
        query.failing = None
        failed = query.batches.pop()
        query.run("kafkalog")  # the batch that was planned, and no further
        again = [(number, sorted(rows)) for number, name, rows in query.batches if name != "kafka"]
        assert again[0] == (failed[0], sorted(failed[2]))
        assert all(rows == [] for _, rows in again[1:])
        expected = query.expected
        broker.stop()
        assert query.run("kafkalog") >= 1
    assert query.places == expected


def test_nothing_new_is_no_batch_but_one_where_the_text_of_the_offsets_differs(
    peers: Peers, tmp_path: Path
) -> None:
    query = moving(peers, "resting", tmp_path)
    query.send(20)
    query.run("kafka")
    rows = query.places
    for format_ in ("kafkalog", "kafka"):
        assert query.run(format_) <= 1
    assert query.places == rows
