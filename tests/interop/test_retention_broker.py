"""What `kafkalog retain` deletes, a broker's retention deletes of a copy of the same logs."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.kafka import Broker, Topic
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.broker import LOG_START_OFFSET, read_offset_checkpoint
from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.segment_files import list_base_offsets
from kafkalog.streaming.operate.handover import hand_over, take_over
from kafkalog.streaming.operate.retain import retain

if TYPE_CHECKING:
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


def test_the_same_segments_and_log_starts_are_left(tmp_path: Path) -> None:
    data, ours = tmp_path / "data", tmp_path / "ours"
    broker = Broker(tmp_path / "broker", log_dirs=[data], settings=EAGER)
    with broker:
        broker.create_topics(*(Topic(topic, config=limits_of(topic)) for topic in AGES))
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
