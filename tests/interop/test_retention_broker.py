"""What `kafkalog retain` deletes, a broker's retention deletes of a copy of the same logs.

The logs are ours, and those that brokers of 4.1 and 2.8 wrote.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from tests.support.compaction_load import Load, alter_settings, random_rows
from tests.support.kafka import Broker, Topic, ZooKeeperBroker
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.broker import (
    LOG_START_OFFSET,
    LeaderEpoch,
    read_leader_epochs,
    read_offset_checkpoint,
)
from kafkalog.files.system import system
from kafkalog.model import TopicPartition, TopicSelection
from kafkalog.streaming.admin.broker.handover import hand_over, take_over
from kafkalog.streaming.admin.retention import delete_records, retain
from kafkalog.streaming.log.files import SNAPSHOT, file_name
from kafkalog.streaming.log.producer_state import list_snapshots, read_snapshot
from kafkalog.streaming.log.segments import list_base_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

pytestmark = pytest.mark.interop

DAY_MS: Final = 86_400_000
SECONDS: Final = 60
EAGER: Final = {"log.retention.check.interval.ms": "500", "log.initial.task.delay.ms": "500"}

AGES: Final = {
    "old-first": (9, 8, 2, 0, 0),
    "late-first": (0, 9, 9, 0, 0),
    "late-between": (9, 0, 9, 9, 0),
    "all-old": (9, 9, 9, 8, 8),
    "large": (0, 0, 0, 0, 0),
    "large-and-old": (9, 9, 9, 9, 0),
    "kept": (9, 9, 9, 9, 9),
}
"""By topic: how many days ago the records of its segments were written."""

LIMITS: Final = {
    "large": {"retention.bytes": "250"},
    "large-and-old": {"retention.bytes": "250", "retention.ms": str(5 * DAY_MS)},
    "kept": {"retention.ms": "-1"},
}


def limits_of(topic: str) -> dict[str, str]:
    return LIMITS.get(topic, {"retention.ms": str(5 * DAY_MS)})


def write(data: Path, topic: str) -> None:
    """Write one segment for each age."""
    now_ms = system.time_ns() // 1_000_000
    named = {name.replace(".", "__"): value for name, value in limits_of(topic).items()}
    writer = Writer(
        data, topic=topic, name=topic, segment__bytes="150", allowBrokerDirectory="true", **named
    )
    for number, age in enumerate(AGES[topic]):
        stamp = now_ms - age * DAY_MS
        writer.write(number, rows(["a" * 10] * 3, timestamps=[stamp] * 3))


def left(data: Path) -> dict[str, tuple[int, list[int]]]:
    """Give the log start of each topic, and the base offsets of its segments."""
    said = read_offset_checkpoint(data, LOG_START_OFFSET)
    found = {}
    for topic in AGES:
        bases = list_base_offsets(data / f"{topic}-0")
        found[topic] = (max(bases[0], said.get(TopicPartition(topic, 0), 0)), bases)
    return found


# Logs that a broker wrote


OLD: Final = {"retention.ms": str(5 * DAY_MS)}
HELD: Final = {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "1"}

WRITTEN: Final[dict[str, dict[str, str]]] = {
    "by-time": OLD,
    "by-size": {"retention.bytes": "40000"},
    "transactions": OLD,
    "transactions-by-size": {"retention.bytes": "20000"},
    "mixed": OLD | HELD,
    "nothing-left": OLD,
    "records-deleted": {},
}
"""By topic, what it is given once it was written."""

WRITTEN_2_8: Final[dict[str, dict[str, str]]] = {
    "v0-by-time": OLD,
    "v0-by-size": {"retention.bytes": "40000"},
    "v1-by-time": OLD,
    "v1-by-size": {"retention.bytes": "40000"},
    "v1-nothing-left": OLD,
}
RELEASES: Final = {"v0": "0.9.0", "v1": "0.10.0"}
SEGMENTS: Final = {"segment.index.bytes": "65536"}


class Left(NamedTuple):
    """What is left of a log; producers are those of its newest snapshot."""

    start: int
    bases: list[int]
    snapshots: list[int]
    producers: list[tuple[int, ...]]
    epochs: list[LeaderEpoch]


def left_of(folder: Path, start: int) -> Left:
    snapshots = list_snapshots(folder)
    producers = [
        tuple(int(field) for field in entry)
        for offset in snapshots[-1:]
        for entry in read_snapshot(folder / file_name(offset, SNAPSHOT))
    ]
    bases = list_base_offsets(folder)
    return Left(start, bases, snapshots, sorted(producers), read_leader_epochs(folder))


def write_as_client(broker: Broker, topic: str) -> None:
    """Write records of nine days ago, and then, unless nothing is to stay, of now."""
    load = Load(broker)
    is_old = topic.startswith("v")
    producer = load.producer(topic, enable_idempotence=not is_old)
    for age in (9, 0) if "nothing-left" not in topic else (9, 8):
        if "transactions" in topic:
            for name in ("commits", "aborts"):
                one = load.producer(f"{topic} {name}", transactional_id=f"{topic} {name}")
                one.begin_transaction()
                seed = (topic, age, name)
                load.send_batches(one, topic, random_rows(seed, 300, age_ms=age * DAY_MS), seed)
                end = one.commit_transaction if name == "commits" else one.abort_transaction
                end(SECONDS)
        written = random_rows((topic, age), 700, age_ms=age * DAY_MS, headers=not is_old)
        load.send_batches(producer, topic, written, (topic, age))


def age_files(folder: Path) -> None:
    """Let the first segments of a log without timestamps look old: their files' time counts."""
    then = time.time() - 9 * 86400
    for base in list_base_offsets(folder)[:2]:
        os.utime(folder / file_name(base, ".log"), (then, then))


def wait_for(condition: Callable[[], object], wanted: object) -> None:
    deadline = time.monotonic() + SECONDS
    while (found := condition()) != wanted:
        assert time.monotonic() < deadline, (found, wanted)
        time.sleep(0.2)
    time.sleep(1)  # further rounds find nothing


def compared(
    broker: Broker, data: Path, copy: Path, topics: Mapping[str, Mapping[str, str]]
) -> dict[str, tuple[Left, Left]]:
    """Let us delete on a copy, and the broker in its directory: give what is left, ours first."""
    for topic in topics:
        write_as_client(broker, topic)
        if topic.startswith("v0"):
            age_files(data / f"{topic}-0")
    shutil.copytree(data, copy)
    (copy / ".lock").unlink()
    assert take_over([str(copy)]).problems == []
    for topic, given in topics.items():
        assert len(list_base_offsets(copy / f"{topic}-0")) > 3
        assert retain([str(copy)], topics=TopicSelection.of(topic), config=given).problems == []
    alter_settings(broker, {topic: given for topic, given in topics.items() if given})
    if "records-deleted" in topics:
        key = TopicPartition("records-deleted", 0)
        start = list_base_offsets(copy / str(key))[2] + 5
        delete_records([str(copy)], {key: start})
        asked = [confluent_kafka.TopicPartition(*key, start)]
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.delete_records(asked).values():
            future.result()
    said = read_offset_checkpoint(copy, LOG_START_OFFSET)
    starts = {
        topic: max(said.get(TopicPartition(topic, 0), 0), list_base_offsets(copy / f"{topic}-0")[0])
        for topic in topics
    }
    wait_for(lambda: {topic: broker.offsets(topic)[0][0] for topic in topics}, starts)
    ours = {topic: left_of(copy / f"{topic}-0", start) for topic, start in starts.items()}
    return {
        topic: (ours[topic], left_of(data / f"{topic}-0", start)) for topic, start in starts.items()
    }


class Home(NamedTuple):
    """A 4.1 broker that has stopped, its directory, and what was left of the logs that it wrote."""

    broker: Broker
    data: Path
    left: dict[str, tuple[Left, Left]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("retention")
    data = folder / "data"
    broker = Broker(folder / "broker", log_dirs=[data], settings=EAGER)
    with broker:
        broker.create_topics(
            *(Topic(topic, config=limits_of(topic)) for topic in AGES),
            *(
                Topic(topic, config=SEGMENTS | {"internal.segment.bytes": "16384"})
                for topic in WRITTEN
            ),
        )
        left_there = compared(broker, data, folder / "copy", WRITTEN)
    return Home(broker, data, left_there)


@pytest.mark.parametrize("topic", WRITTEN)
def test_of_a_log_that_a_broker_wrote_the_same_is_left(home: Home, topic: str) -> None:
    ours, theirs = home.left[topic]
    assert ours == theirs
    assert ours.start > 0


def test_there_was_something_to_keep_beside_the_logs(home: Home) -> None:
    assert len(home.left["transactions"][0].producers) == 3
    assert len(home.left["nothing-left"][0].producers) == 1
    assert home.left["records-deleted"][0].start not in home.left["records-deleted"][0].bases


@pytest.mark.nightly
def test_of_a_log_of_magic_0_or_1_the_same_is_left(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ZooKeeperBroker(tmp_path / "broker", log_dirs=[data], settings=EAGER) as broker:
        broker.create_topics(
            *(
                Topic(
                    topic,
                    config=SEGMENTS
                    | {"segment.bytes": "16384", "message.format.version": RELEASES[topic[:2]]},
                )
                for topic in WRITTEN_2_8
            )
        )
        found = compared(broker, data, tmp_path / "copy", WRITTEN_2_8)
    for topic, (ours, theirs) in found.items():
        assert (ours.start, ours.bases) == (theirs.start, theirs.bases), topic
        assert ours.start > 0, topic


# Logs that we wrote


def test_the_same_segments_and_log_starts_are_left(home: Home, tmp_path: Path) -> None:
    broker, data, ours = home.broker, home.data, tmp_path / "ours"
    take_over([str(data)])
    for topic in AGES:
        write(data, topic)
    shutil.copytree(data, ours)
    assert all(len(bases) == 5 for _, bases in left(ours).values())
    assert retain([str(ours)]).problems == []
    wanted = left(ours)
    assert hand_over([str(data)]).problems == []
    with broker:
        deadline = time.monotonic() + SECONDS
        while {t: broker.offsets(t)[0][0] for t in AGES} != {t: wanted[t][0] for t in AGES}:
            assert time.monotonic() < deadline, (left(data), wanted)
            time.sleep(0.5)
        time.sleep(3 * 0.5)  # further rounds find nothing
    assert left(data) == wanted
    assert {topic: start for topic, (start, _) in wanted.items()} == {
        "old-first": 6,
        "late-first": 0,
        "late-between": 3,
        "all-old": 15,
        "large": 6,
        "large-and-old": 12,
        "kept": 0,
    }
