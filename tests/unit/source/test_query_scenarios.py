"""Queries that start anywhere, are stopped and started, and whose topics change meanwhile.

What Spark's own suites ask of a Kafka source, run without Spark: docs/connector-scenarios.md.
"""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.logs import write_checkpoint
from tests.support.micro_batches import Engine
from tests.support.sleeping import patch_sleep
from tests.support.streams import Log

from kafkalog.checkpoints.broker import LOG_START_OFFSET
from kafkalog.errors import DataLossError, OptionError
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.batch_plan import plan_batch

if TYPE_CHECKING:
    from pathlib import Path

Place = tuple[str, int, int]

TOPIC: Final = "t.1"
EARLY: Final = 1000
LATE: Final = 2000
"""Timestamps in ms."""


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")


def places(log: Log, partition: int, start: int, topic: str = TOPIC) -> list[Place]:
    """Give the records of a partition from an offset on."""
    end = len(log.values(f"{topic}-{partition}"))
    return [(topic, partition, offset) for offset in range(start, end)]


CHOICES: Final = {
    "assign": json.dumps({TOPIC: list(range(5))}),
    "subscribe": TOPIC,
    "subscribePattern": r"t\.\d",
}

# The first offset that is read of each of five partitions with ten early and ten late records.
STARTS: Final[dict[str, tuple[dict[str, str], list[int]]]] = {
    "earliest": ({"startingOffsets": "earliest"}, [0] * 5),
    "latest": ({"startingOffsets": "latest"}, [20] * 5),
    "offsets": (
        {"startingOffsets": json.dumps({TOPIC: {"0": -2, "1": -1, "2": 0, "3": 1, "4": 2}})},
        [0, 20, 0, 1, 2],
    ),
    "one timestamp": ({"startingTimestamp": str(LATE)}, [10] * 5),
    "a timestamp each": (
        {
            "startingOffsetsByTimestamp": json.dumps(
                {TOPIC: {str(n): EARLY if n == 4 else LATE for n in range(5)}}
            )
        },
        [10, 10, 10, 10, 0],
    ),
}


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
@pytest.mark.parametrize(("choice", "start"), list(product(CHOICES, STARTS)))
def test_a_query_reads_from_its_start_and_after_a_restart_what_came_and_partitions_that_are_new(
    log: Log, choice: str, start: str, fail_on_data_loss: str
) -> None:
    for partition in range(5):
        log.append(f"{TOPIC}-{partition}", 10, timestamp=EARLY)
        log.append(f"{TOPIC}-{partition}", 10, timestamp=LATE)
    given, first = STARTS[start]
    options = {choice: CHOICES[choice], "failOnDataLoss": fail_on_data_loss, **given}
    query = Engine(log.path, maxOffsetsPerTrigger="17", **options)
    query.run()
    assert query.places == sorted(
        place for n, offset in enumerate(first) for place in places(log, n, offset)
    )
    for partition in range(10):  # while it is stopped
        log.append(f"{TOPIC}-{partition}", 3, timestamp=LATE)
    query.run(failing=len(query.batches) + 1)
    log.append("t.1-0", 2, timestamp=LATE)
    query.run()
    known = 5 if choice == "assign" else 10
    begins = [*first, *[0] * 5][:known]
    assert query.places == sorted(
        place for n, offset in enumerate(begins) for place in places(log, n, offset)
    )


@pytest.mark.parametrize("choice", ["subscribe", "subscribePattern"])
@pytest.mark.parametrize("each", [True, False])
def test_a_partition_without_a_record_at_the_time_fails_the_start_or_starts_at_its_end(
    log: Log, choice: str, each: bool
) -> None:
    log.append("t.1-0", 4, timestamp=LATE)
    log.append("t.1-1", 4, timestamp=EARLY)
    times = {"startingOffsetsByTimestamp": json.dumps({TOPIC: {"0": LATE, "1": LATE}})}
    options = {choice: CHOICES[choice], **(times if each else {"startingTimestamp": str(LATE)})}
    with pytest.raises(OptionError, match=r"t\.1-1 has no record with timestamp 2000 ms"):
        Engine(log.path, **options).run()
    query = Engine(log.path, startingOffsetsByTimestampStrategy="latest", **options)
    query.run()
    log.append("t.1-1", 2, timestamp=EARLY)
    query.run()
    assert query.places == places(log, 0, 0) + places(log, 1, 4)


def test_a_batch_is_the_same_again_until_it_is_done_and_never_after(log: Log) -> None:
    log.append("t.1-0", 20, timestamp=EARLY)
    query = Engine(log.path, subscribe=TOPIC, startingOffsets="earliest", maxOffsetsPerTrigger="8")
    query.run(failing=1)
    log.append("t.1-0", 20, timestamp=EARLY)
    again = query.run()
    assert [len(rows) for rows in again] == [8, 8, 8, 8]
    assert query.places == places(log, 0, 0)
    assert query.run() == []


@pytest.mark.long
def test_a_topic_that_goes_and_another_that_comes_are_gone_on_with(log: Log) -> None:
    log.append("t.1-0", 5)
    query = Engine(
        log.path, subscribePattern=r"t\.\d", startingOffsets="earliest", failOnDataLoss="false"
    )
    query.run()
    log.delete("t.1-0")
    log.append("t.2-0", 7)
    query.run()
    assert len(query.places) == 12
    assert query.places[5:] == places(log, 0, 0, "t.2")


def test_a_topic_recreated_with_fewer_rows_fails_a_query_that_was_stopped(log: Log) -> None:
    options = {"subscribePattern": r"t\.\d", "fetchOffset.retryIntervalMs": "0"}
    log.append("t.1-0", 2, timestamp=EARLY)
    query = Engine(log.path, startingOffsets="earliest", **options)
    query.run()
    log.delete("t.1-0")
    log.append("t.1-0", 1, timestamp=EARLY)
    with pytest.raises(DataLossError, match=r"t\.1-0 from 2 to 1"):
        query.run()


def test_what_seems_gone_is_looked_at_again_before_it_counts(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append("t.1-0", 4, timestamp=EARLY)
    query = Engine(
        log.path, subscribe=TOPIC, startingOffsets="earliest", **{"fetchOffset.numRetries": "3"}
    )
    query.run()
    away, back = log.path / "away", log.path / f"{TOPIC}-0"
    back.rename(away)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.extend([seconds] if seconds >= 1 else [])  # who lists a folder rests for less
        if len(waits) == 2 and away.exists():
            away.rename(back)

    patch_sleep(monkeypatch, wait)
    assert query.run() == []
    assert waits == [1, 1]
    back.rename(away)
    patch_sleep(monkeypatch, waits.append)
    with pytest.raises(DataLossError, match="PARTITIONS_DELETED"):
        query.run()


def test_earliest_of_a_batch_is_where_the_log_starts_when_it_is_planned(log: Log) -> None:
    log.append("t.1-0", 5, timestamp=EARLY)
    log.append("t.1-0", 5, timestamp=EARLY)
    options = ReadOptions.parse({"path": str(log.path), "subscribe": TOPIC})
    (before,) = plan_batch(options)
    write_checkpoint(log.path, LOG_START_OFFSET, {f"{TOPIC}-0": 3})
    (after,) = plan_batch(options)
    assert [split.slices[0].start_offset for split in (before, after)] == [0, 3]
