"""Logs of a copy that start and end where those of its original do, whatever records they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.support.sinking import Writer, rows, values_of

from kafkalog.checkpoints.broker import (
    HIGH_WATERMARK,
    LOG_START_OFFSET,
    read_offset_checkpoint,
)
from kafkalog.checkpoints.state_file import load_state
from kafkalog.errors import (
    CommitError,
    OffsetOutOfRangeError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.topics import Bounds, create, set_bounds
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.commit.preserved_offsets import CopiedEnd
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.store.ends.tracker import LogEndTracker
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from pathlib import Path

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def kept(values: list[str], offsets: list[int], partition: int = 0) -> pa.RecordBatch:
    batch = rows(values, partitions=[partition] * len(values))
    return batch.append_column("offset", pa.array(offsets, pa.int64()))


def bounds_of(log: Path) -> dict[str, tuple[int, int]]:
    """Give where readers see each partition start and end."""
    look = LogEndTracker([str(log)]).look()
    starts = {}
    for key, where in LogDirs([log]).partitions().items():
        with PartitionLog(where.path, key) as found:
            starts[key] = max(found.log_start_offset, _kept_start(log, key))
    return {str(key): (starts[key], end) for key, end in look.offsets.items()}


def _kept_start(log: Path, key: TopicPartition) -> int:
    state = load_state(log)
    assert state is not None
    (topic,) = [each for each in state.topics.values() if each.name == key.topic]
    return topic.partitions[key.partition].log_start


def sequence(log: Path) -> int:
    state = load_state(log)
    assert state is not None
    return state.sequence


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_a_topic_may_be_created_to_start_above_0(log: Path) -> None:
    create([str(log)], "t", partitions=2, starts={1: 500})
    assert bounds_of(log) == {"t-0": (0, 0), "t-1": (500, 500)}
    assert list_base_offsets(log / "t-1") == [500]
    Writer(log, topic="t").write(0, rows(["a"], partitions=[1]))
    assert bounds_of(log)["t-1"] == (500, 501)
    assert recover([str(log)]).problems == []


@pytest.mark.parametrize("starts", [{2: 0}, {-1: 0}, {0: -1}, {0: 2**63 - 1}])
def test_a_topic_is_not_created_to_start_where_none_can(log: Path, starts: dict[int, int]) -> None:
    with pytest.raises(OptionError, match="cannot start at"):
        create([str(log)], "t", partitions=2, starts=starts)
    assert not (log / "t-0").exists()


@pytest.mark.parametrize("message_format", ["v2", "v1", "v0"])
def test_a_log_ends_above_its_last_record_or_without_any(log: Path, message_format: str) -> None:
    settings = {"message__format": message_format, "compression__type": "gzip"}
    writer = Writer(log, topic="t", numPartitions="2", preserveOffsets="true", **settings)
    writer.write(0, kept(["a", "b"], [3, 7]))
    set_bounds([str(log)], {T0: Bounds(3, 10), T1: Bounds(0, 7)})
    assert bounds_of(log) == {"t-0": (3, 10), "t-1": (0, 7)}
    assert read_offset_checkpoint(log, HIGH_WATERMARK) == {T0: 10, T1: 7}
    assert not [path for path in log.iterdir() if path.name.startswith(".kafkalog.staged")]
    writer.write(1, kept(["c"], [12]))
    Writer(log, topic="t", name="another", **settings).write(0, rows(["d"], partitions=[1]))
    assert bounds_of(log) == {"t-0": (3, 13), "t-1": (0, 8)}
    report = recover([str(log)])
    assert report.problems == []
    assert bounds_of(log) == {"t-0": (3, 13), "t-1": (0, 8)}


def test_a_log_starts_where_its_original_does(log: Path) -> None:
    writer = Writer(log, topic="t", numPartitions="2", cleanup__policy="compact")
    writer.write(0, rows(["a", "b", "c"], keys=["k", "l", "m"], partitions=[0, 0, 0]))
    set_bounds([str(log)], {T0: Bounds(2, 3), T1: Bounds(500, 500)})
    assert bounds_of(log) == {"t-0": (2, 3), "t-1": (500, 500)}
    assert read_offset_checkpoint(log, LOG_START_OFFSET) == {T0: 2, T1: 500}
    set_bounds([str(log)], {T0: Bounds(0, 3)})
    assert bounds_of(log)["t-0"] == (2, 3), "what was deleted does not come back"


def test_bounds_that_are_there_change_nothing(log: Path) -> None:
    create([str(log)], "t", partitions=2, starts={1: 500})
    set_bounds([str(log)], {T0: Bounds(0, 7), T1: Bounds(500, 500)})
    before = sequence(log)
    set_bounds([str(log)], {T0: Bounds(0, 7), T1: Bounds(500, 500)})
    assert sequence(log) == before


def test_offsets_that_lie_far_apart_are_no_hindrance(log: Path) -> None:
    Writer(log, topic="t").write(0, rows(["a"]))
    set_bounds([str(log)], {T0: Bounds(0, 2**40)})
    assert bounds_of(log) == {"t-0": (0, 2**40)}
    assert list_base_offsets(log / "t-0") == [0, 2**40 - 1]
    assert recover([str(log)]).problems == []


def test_what_cannot_be_is_refused_and_nothing_is_changed(log: Path) -> None:
    Writer(log, topic="t").write(0, rows(["a", "b"]))
    before = sequence(log)
    with pytest.raises(CommitError, match="t-0: the copy reaches up to offset 2, beyond its"):
        set_bounds([str(log)], {T0: Bounds(0, 1)})
    with pytest.raises(UnknownTopicOrPartitionError, match=r"t-1: .* the topic has 1"):
        set_bounds([str(log)], {T0: Bounds(0, 5), T1: Bounds(0, 5)})
    with pytest.raises(UnknownTopicOrPartitionError, match=r"u-0: .* no such topic"):
        set_bounds([str(log)], {TopicPartition("u", 0): Bounds(0, 5)})
    with pytest.raises(OffsetOutOfRangeError, match="no log starts at offset 3 and ends at 2"):
        set_bounds([str(log)], {T0: Bounds(3, 2)})
    assert sequence(log) == before
    assert values_of([log], "t") == {0: ["a", "b"]}


def test_what_is_appended_to_a_copy_begins_where_that_ended(log: Path) -> None:
    """Between two micro-batches of a mirror somebody else has written to it."""
    writer = Writer(log, topic="t")
    writer.write(0, rows(["a", "b"]))
    ends = {T0: CopiedEnd(5, begin=1)}
    with pytest.raises(CommitError, match="the copy ends at offset 2, and what is to be appended"):
        Committer(writer.plan().commit_plan, writer.identity(1), ends=ends).commit_or_abort([])
    assert bounds_of(log) == {"t-0": (0, 2)}
