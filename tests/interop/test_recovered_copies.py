"""A broker's directory, copied while it ran or left by a kill, reads as a broker recovers it."""

from __future__ import annotations

import random
import shutil
import time
from typing import TYPE_CHECKING

import pytest
from tests.support.broker_load import SETTINGS, TOPICS, Load
from tests.support.kafka import Broker

from kafkalog.streaming.log.read.slice_reader import read_slice
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.end_offsets import EndOffsets

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.interop

LEVELS = ("read_uncommitted", "read_committed")

Rows = dict[tuple[str, int, int], bytes | None]
Spans = dict[tuple[str, int], tuple[int, int]]
"""Of each partition, where its log starts and ends."""


def copy_file_by_file(source: Path, target: Path) -> None:
    """Copy in any order and with pauses, so that no two files are of the same moment."""
    paths = [path for path in source.rglob("*") if path.is_file()]
    random.Random(5).shuffle(paths)
    for path in paths:
        to = target / path.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(path, to)
        except FileNotFoundError:
            continue  # the broker was faster
        if to.suffix.endswith("index"):  # 10 MB of zeros each
            to.write_bytes(to.read_bytes()[:100_000])
        time.sleep(0.02)


def recovered(home: Path, copy: Path) -> tuple[dict[str, Rows], Spans]:
    """Give what a broker serves that recovers a copy: per isolation level all rows, and spans."""
    data = shutil.copytree(copy, home / "data")
    # nobody else removes or compacts anything before it is read
    settled = {"log.retention.check.interval.ms": "10000000", "log.cleaner.backoff.ms": "10000000"}
    with Broker(home, log_dirs=[data], settings=settled) as broker:
        broker.wait_for_leaders(*TOPICS)
        spans = {
            (topic.name, partition): span
            for topic in TOPICS
            for partition, span in broker.offsets(topic.name).items()
            if topic.name != "ended"  # its coordinator goes on with its transactions
        }
        rows = {
            level: {
                (topic.name, record.partition, record.offset): record.value
                for topic in TOPICS
                for record in broker.consume_all(topic.name, isolation=level)
            }
            for level in LEVELS
        }
        return rows, spans


def spans(copy: Path) -> Spans:
    plain = {topic.name for topic in TOPICS} - {"ended"}
    tail = EndOffsets([str(copy)], lambda key: key.topic in plain, to_log_end=True)
    return {
        (key.topic, key.partition): (tail.log_start(key), end)
        for key, end in tail.look().offsets.items()
    }


def read(copy: Path, level: str) -> Rows:
    names = ",".join(topic.name for topic in TOPICS)
    given = {"path": str(copy), "subscribe": names, "readUpTo": "logEnd"}
    options = ReadOptions.parse(given | {"kafka.isolation.level": level})
    rows: Rows = {}
    for split in plan_batch(options):
        topic, partition = split.topic_partition
        decoder = RecordDecoder(Columns.OFFSET | Columns.VALUE)
        for planned in split.slices:
            for batch in read_slice(
                split.topic_partition, planned, decoder, committed_only=options.committed_only
            ):
                for row in batch.to_pylist():
                    assert (topic, partition, row["offset"]) not in rows
                    rows[topic, partition, row["offset"]] = row["value"]
    return rows


def check_rows(given: dict[str, Rows], served: dict[str, Rows]) -> None:
    """What is read is what is served, but for a transaction that the recovering broker ended.

    The coordinator commits what its producer had prepared to commit before the kill; its marker
    is not in the copy. Only the last transaction can be in that state.
    """
    assert less(served["read_uncommitted"], given["read_uncommitted"]) == {}
    assert [less(given[level], served[level]) for level in LEVELS] == [{}, {}]
    ended_since = less(served["read_committed"], given["read_committed"])
    ended = {p: value for p, value in served["read_uncommitted"].items() if p[0] == "ended"}
    last = number_of(ended[max(ended)])
    assert ended_since in ({}, {p: v for p, v in ended.items() if number_of(v) == last})


def less(rows: Rows, others: Rows) -> Rows:
    """Give the rows that the others lack or have with another value."""
    return dict(rows.items() - others.items())


def number_of(value: bytes | None) -> bytes:
    """Give the number of the transaction that wrote a value of the topic ``ended``."""
    assert value is not None
    return value.split()[0]


@pytest.mark.nightly
def test_copies_and_leftovers_of_a_busy_broker_read_as_a_broker_recovers_them(
    tmp_path: Path,
) -> None:
    copied, killed = tmp_path / "copied", tmp_path / "killed"
    with Broker(tmp_path / "busy", settings=SETTINGS) as broker:
        broker.create_topics(*TOPICS)
        (data,) = broker.log_dirs
        with Load(broker, patience_s=5):
            broker.wait_for_records("compacted", 3000)
            copy_file_by_file(data, copied)
            broker.kill()
        shutil.move(data, killed)
    for copy in (copied, killed):
        (copy / ".lock").unlink(missing_ok=True)
        expected, ends = recovered(tmp_path / f"recovering-{copy.name}", copy)
        assert spans(copy) == ends
        check_rows({level: read(copy, level) for level in LEVELS}, expected)
        assert len(expected["read_committed"]) < len(expected["read_uncommitted"])
