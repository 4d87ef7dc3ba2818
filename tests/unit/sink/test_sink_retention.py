"""A sink that deletes what has expired, after commits, and fails no batch by it."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.interrupting import AlarmError, raising
from tests.support.sinking import Writer, rows

from kafkalog.files.deferred_signals import check_interrupt
from kafkalog.files.system import system
from kafkalog.streaming.admin import retention as periodic_retention
from kafkalog.streaming.admin.retention import retain_if_due
from kafkalog.streaming.api import append, read
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.sink.task_writer import TaskWriter
from kafkalog.streaming.spark.writers import LogStreamWriter, StagedMessage
from kafkalog.streaming.store.identity import BatchIdentity
from kafkalog.streaming.store.policy import SetPolicy
from kafkalog.streaming.store.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS


DAY_BATCHES = int(os.environ.get("KAFKALOG_DAY_BATCHES", "288"))
COMMITS = 1000 if "KAFKALOG_DAY_BATCHES" in os.environ else 100


class Clock:
    """A clock that stands still until it is moved on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_ns = system.time_ns()
        patch.setattr(system, "time_ns", lambda: self.now_ns)
        patch.setattr(system, "monotonic", lambda: self.now_ns / 1e9)
        patch.setattr(system, "memory", {})

    @property
    def now_ms(self) -> int:
        return self.now_ns // 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def write(log: Path, batch_id: int, stamp_ms: int, *, partitions: int = 1, **options: str) -> None:
    """Commit a micro-batch as Spark does: one segment in each partition."""
    given = {"segment__bytes": "80", "numPartitions": str(partitions), **options}
    writer = Writer(log, topic="t", **given)
    plan = replace(writer.plan(), digests_rows=True)
    identity = BatchIdentity("query:4711", batch_id, "run-1")
    numbers = list(range(partitions))
    batch = rows(["a"] * partitions, partitions=numbers, timestamps=[stamp_ms] * partitions)
    message = StagedMessage(TaskWriter(plan, identity, query_id="4711").write([batch]))
    LogStreamWriter(plan).commit([message], batch_id)


def bases(log: Path, number: int = 0) -> list[int]:
    return list_base_offsets(log / f"t-{number}")


def test_a_round_follows_a_commit_once_the_interval_is_over(tmp_path: Path, clock: Clock) -> None:
    write(tmp_path, 0, 1, retention__ms="60000")
    assert bases(tmp_path) == [1]
    write(tmp_path, 1, 1, retention__ms="60000")
    write(tmp_path, 2, clock.now_ms)
    clock.now_ns += 5 * MINUTE_NS - SECOND_NS
    write(tmp_path, 3, clock.now_ms)
    assert bases(tmp_path) == [1, 2, 3]
    clock.now_ns += SECOND_NS
    write(tmp_path, 4, clock.now_ms)
    assert bases(tmp_path) == [3, 4]


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """Give a folder in memory where there is one: an fsync takes no time there."""
    memory = Path("/dev/shm")
    where = memory if memory.is_dir() else tmp_path
    with TemporaryDirectory(dir=where, prefix="retention-") as name:
        yield Path(name)


@pytest.mark.long
def test_a_day_of_small_batches_stays_bounded_and_rows_of_2013_stay(
    in_memory: Path, clock: Clock
) -> None:
    old = rows(["of 2013"], timestamps=[1_356_998_400_000])
    Writer(in_memory, topic="kept", name="kept").write(0, old)
    writer = Writer(in_memory, topic="t", segment__bytes="800", retention__bytes="8000")
    sizes, files = [], []
    for batch in range(DAY_BATCHES):
        clock.now_ns += 24 * 60 * MINUTE_NS // DAY_BATCHES
        writer.write(batch, rows(["a"], timestamps=[clock.now_ms]))
        retain_if_due([in_memory], writer.options.policy, 5 * 60_000)
        found = [path for path in in_memory.rglob("*") if path.is_file()]
        sizes.append(sum(path.stat().st_size for path in found))
        files.append(len(found))
    # A segment, what five minutes bring, what the last round has renamed, and some small files.
    brought = max(1, DAY_BATCHES // 288) * 80
    assert max(sizes) <= 8000 + 800 + brought + 2 * 800 + 5000
    assert max(files) <= max(files[: len(files) // 2]) + 2
    assert bases(in_memory)[0] > DAY_BATCHES - 150
    kept = read(in_memory, "kept").read_all().column("value").to_pylist()
    assert kept == [b"of 2013"]


@pytest.mark.long
@pytest.mark.parametrize("settings", [{}, {"segment__bytes": "800"}], ids=["none", "segments"])
def test_rows_of_2013_without_a_limit_stay_however_many_commits_follow(
    in_memory: Path, clock: Clock, settings: dict[str, str]
) -> None:
    """Here a hundred; with ``make day`` a thousand."""
    writer = Writer(in_memory, topic="kept", **settings)
    expected = []
    for batch in range(COMMITS):
        clock.now_ns += 5 * MINUTE_NS
        writer.write(batch, rows([f"{batch}"], timestamps=[1_356_998_400_000 + batch]))
        retain_if_due([in_memory], writer.options.policy, 5 * 60_000)
        expected.append(f"{batch}".encode())
    assert read(in_memory, "kept").read_all().column("value").to_pylist() == expected
    assert len(list_base_offsets(in_memory / "kept-0")) > (5 if settings else 0)


def test_a_writer_from_python_does_so_too(tmp_path: Path, clock: Clock) -> None:
    options: dict[str, Any] = {"retention.ms": "60000", "segment.bytes": "80"}
    append(tmp_path, "t", rows(["a"], timestamps=[1]), options=options)
    assert bases(tmp_path) == [1]


def test_what_goes_wrong_fails_no_batch(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("a mistake of ours")

    with monkeypatch.context() as patch:
        patch.setattr(periodic_retention, "retain_set", fail)
        write(tmp_path, 0, 1, retention__ms="60000")
    assert "retention was not done" in caplog.text
    assert "a mistake of ours" in caplog.text
    clock.now_ns += 5 * MINUTE_NS
    write(tmp_path, 1, 1)
    assert bases(tmp_path) == [2]


def test_it_waits_for_no_other_writer(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, 0, clock.now_ms, retention__ms="60000")
    clock.now_ns += 5 * MINUTE_NS
    with (
        caplog.at_level(logging.DEBUG, "kafkalog.sink"),
        Session([tmp_path], SetPolicy(), holder="another"),
    ):
        retain_if_due([tmp_path], SetPolicy(), 1)
    assert "waits for its next round" in caplog.text
    assert bases(tmp_path) == [0]


def test_a_round_looks_at_some_partitions_and_the_next_one_at_the_others(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(periodic_retention, "_MOST_PARTITIONS", 2)
    shortened = []
    for batch in range(3):
        write(tmp_path, batch, 1, partitions=5, retention__ms="60000")
        done = [number for number in range(5) if bases(tmp_path, number) == [batch + 1]]
        shortened.append(done)
        clock.now_ns += 5 * MINUTE_NS
    assert [len(each) for each in shortened] == [2, 2, 2]
    assert {number for each in shortened for number in each} == set(range(5))


def test_an_interrupt_of_the_deleting_says_that_the_append_is_done(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    del clock
    with raising() as interrupt:

        def interrupted(*_: Any, **__: Any) -> None:
            interrupt()
            check_interrupt()

        monkeypatch.setattr(periodic_retention, "retain_set", interrupted)
        with pytest.raises(AlarmError) as raised:
            append(tmp_path, "t", rows(["a"]), options={"retention.ms": 1})
    assert "it is done" in "".join(raised.value.__notes__)
