"""Files of deleted segments go with any later session, once their delay is over."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest
from tests.support.sinking import Writer, rows

from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.backup import back_up
from kafkalog.streaming.admin.broker.handover import take_over
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.retention import delete_records
from kafkalog.streaming.api import append
from kafkalog.streaming.store import log_set as dead_segments

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MINUTE_NS = 60_000_000_000


class Process:
    """This process, whose clock stands still until it is moved on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_ns = system.time_ns()
        patch.setattr(system, "time_ns", lambda: self.now_ns)
        patch.setattr(system, "monotonic", lambda: self.now_ns / 1e9)
        patch.setattr(system, "memory", {})

    def starts_again(self, minutes: int = 2) -> None:
        """Let some time go by, and another process begin."""
        self.now_ns += minutes * MINUTE_NS
        system.memory.clear()


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(monkeypatch)


def fill(log: Path, *, partitions: int = 1) -> None:
    """Write two segments to each partition of a topic without limits, and delete the first."""
    writer = Writer(log, topic="t", segment__bytes="80", numPartitions=str(partitions))
    numbers = list(range(partitions))
    for batch in range(2):
        writer.write(batch, rows(["a"] * partitions, partitions=numbers))
    delete_records([str(log)], {TopicPartition("t", number): 1 for number in numbers})


def dead(log: Path) -> list[str]:
    return sorted({path.parent.name for path in log.rglob("*.deleted")})


ACTS: dict[str, Callable[[Path], object]] = {
    "append": lambda log: append(log, "t", rows(["b"])),
    "commit": lambda log: Writer(log, topic="t").write(2, rows(["b"])),
    "recover": lambda log: recover([str(log)]),
    "takeover": lambda log: take_over([str(log)]),
    "backup": lambda log: back_up([str(log)], str(log) + "-backup"),
}


@pytest.mark.parametrize("name", ACTS)
def test_they_go_with_any_session(tmp_path: Path, process: Process, name: str) -> None:
    fill(tmp_path / "log")
    assert dead(tmp_path / "log") == ["t-0"]
    process.starts_again()
    ACTS[name](tmp_path / "log")
    assert dead(tmp_path) == []


def test_they_stay_for_readers_until_the_delay_is_over(tmp_path: Path, process: Process) -> None:
    fill(tmp_path)
    process.starts_again(minutes=0)
    recover([str(tmp_path)])
    assert dead(tmp_path) == ["t-0"]


def test_a_writer_looks_every_five_minutes(tmp_path: Path, process: Process) -> None:
    fill(tmp_path)
    writer = Writer(tmp_path, topic="t")
    seen = []
    for batch in range(2, 9):
        process.now_ns += MINUTE_NS
        writer.write(batch, rows(["b"]))
        seen.append(dead(tmp_path))
    assert seen == [["t-0"]] * 4 + [[]] * 3


def test_a_session_looks_into_some_folders_and_the_next_one_into_the_others(
    tmp_path: Path, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, partitions=5)
    process.starts_again()
    monkeypatch.setattr(dead_segments, "_MOST_FOLDERS", 2)
    seen = []
    for _ in range(3):
        recover([str(tmp_path)])
        seen.append(len(dead(tmp_path)))
        process.now_ns += 5 * MINUTE_NS
    assert seen == [3, 1, 0]


def test_processes_that_live_for_one_session_come_to_all_folders(
    tmp_path: Path, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, partitions=5)
    monkeypatch.setattr(dead_segments, "_MOST_FOLDERS", 2)
    for _ in range(100):
        process.starts_again()
        recover([str(tmp_path)])
        if not dead(tmp_path):
            break
    assert dead(tmp_path) == []


def test_what_cannot_be_removed_fails_nobody(
    tmp_path: Path,
    process: Process,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fill(tmp_path)
    process.starts_again()
    unlink = os.unlink

    def refuse(path: str, **named: int) -> None:
        if str(path).endswith(".deleted"):
            raise OSError(30, "Read-only file system")
        unlink(path, **named)

    monkeypatch.setattr(os, "unlink", refuse)
    with caplog.at_level(logging.WARNING):
        assert recover([str(tmp_path)]).problems == []
    assert "deleted segments were not removed" in caplog.text
