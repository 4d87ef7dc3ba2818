"""Rows with numbers, Consumers that wait for no default, and what came out."""

from __future__ import annotations

import dataclasses
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kafkalog import Consumer
from kafkalog.checkpoints.broker import HIGH_WATERMARK, write_offset_checkpoint
from kafkalog.model import TopicPartition
from kafkalog.streaming.api import append, read
from kafkalog.streaming.groups.group_commits import OFFSETS_POLICY, GroupCommits
from kafkalog.streaming.groups.rebalance import GroupRecord
from kafkalog.streaming.store.policy import SetPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pytest


OPTIONS = {
    "startingOffsets": "earliest",
    "kafka.session.timeout.ms": 60_000,
    "kafka.heartbeat.interval.ms": 50,
}


def keep_groups_small(monkeypatch: pytest.MonkeyPatch, *, partitions: int = 1) -> None:
    """Let ``__consumer_offsets`` have few partitions in place of 50, each a folder with files."""
    small = dataclasses.replace(OFFSETS_POLICY, partitions=partitions)
    monkeypatch.setattr("kafkalog.streaming.groups.group_commits.OFFSETS_POLICY", small)


def make_shared_topic(folder: Path) -> None:
    """Give ``in`` four partitions with ten numbers each, and make the topic of groups."""
    append(folder, "in", table(range(40)), options={"numPartitions": 4})
    GroupCommits([folder], "another", SetPolicy()).decide(GroupRecord(), GroupRecord(1))


def recreate_topic(folder: Path, count: int) -> None:
    """Delete the topic by hand, and make another one of that name: 200, 201, ... in it."""
    shutil.rmtree(folder.parent / "other", ignore_errors=True)
    other = folder.parent / "other"
    append(other, "in", table(range(200, 200 + count)), options={"numPartitions": 4})
    keys = [TopicPartition("in", number) for number in range(4)]
    for key in keys:
        shutil.rmtree(folder / str(key))
        shutil.move(other / str(key), folder / str(key))
    write_offset_checkpoint(folder, HIGH_WATERMARK, dict.fromkeys(keys, count // 4))


def table(numbers: Iterable[int]) -> pa.Table:
    numbers = list(numbers)
    return pa.table(
        {
            "value": pa.array([str(each) for each in numbers]),
            "partition": pa.array([each % 4 for each in numbers], pa.int32()),
        }
    )


def consumer(folder: Path, **named: Any) -> Consumer:
    options = {**OPTIONS, **named.pop("options", {})}
    return Consumer(folder, "g", "in", options=options, **named)


def numbers(rows: pa.RecordBatch) -> list[int]:
    return [int(each) for each in rows.column("value").to_pylist()]


def output(rows: pa.RecordBatch) -> pa.Table:
    return pa.table({"value": rows.column("value")})


def written(folder: Path, topic: str = "out") -> list[int]:
    return sorted(int(v) for v in read(folder, topic).read_all().column("value").to_pylist())


def positions(folder: Path) -> dict[TopicPartition, int]:
    return dict(GroupCommits([folder], "g", SetPolicy()).look().positions)


def settle(*consumers: Consumer) -> list[tuple[Consumer, pa.RecordBatch]]:
    """Let all poll until each has a share of the four partitions; return what came meanwhile."""
    came = []
    for _ in range(300):
        for each in consumers:
            rows = each.poll(0.02)
            if rows is not None:
                came.append((each, rows))
            each.pause(each.assignment)
        found = [len(each.assignment) for each in consumers]
        if all(found) and sum(found) == 4:
            break
    else:
        raise AssertionError([each.assignment for each in consumers])
    for each in consumers:
        each.resume(each.assignment)
    return came
