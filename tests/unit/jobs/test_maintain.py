"""The job that looks after log directories, without its Spark."""

from __future__ import annotations

import pickle
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from tests.support.compacting import read, updates, writer
from tests.support.sinking import Writer, rows
from tests.support.sleeping import patch_sleep

from kafkalog.errors import (
    LockTimeoutError,
    LogDirectoryError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.system import system
from kafkalog.jobs import maintain
from kafkalog.jobs.maintain import Maintenance, Scope
from kafkalog.jobs.pipelines.spark_cleaning import clean
from kafkalog.model import TopicPartition, TopicSelection
from kafkalog.streaming.admin.broker.handover import hand_over
from kafkalog.streaming.admin.compaction import plan_compaction
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.store.locks import CleanerLock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kafkalog.jobs.pipelines.spark_cleaning import Cleaned
    from kafkalog.streaming.admin.cleaning import CleaningTask

DAY_MS = 86_400_000
C0 = TopicPartition("c", 0)
BATCHES = [{"a": str(number), f"b{number}": "1"} for number in range(6)]


def fill(log: Path, topic: str = "t", **settings: str) -> Writer:
    """Write two segments of 2001."""
    into = Writer(log, topic=topic, name=topic, segment__bytes="80", **settings)
    for batch in range(2):
        into.write(batch, rows(["a"], timestamps=[1_000_000_000_000]))
    return into


def clean_here(tasks: Sequence[CleaningTask]) -> list[Cleaned]:
    """Clean as tasks do, which are sent to another process, and so are their results."""
    return [pickle.loads(pickle.dumps(clean(pickle.loads(pickle.dumps(task))))) for task in tasks]


def test_a_round_deletes_what_has_expired_and_says_so(tmp_path: Path) -> None:
    fill(tmp_path, retention__ms=str(DAY_MS))
    fill(tmp_path, "kept")
    said: list[str] = []
    scope = Scope(log=str(tmp_path))
    scope.check()
    maintenance = Maintenance(scope, clean_here, say=said.append)
    assert maintenance.round() == []
    assert list_base_offsets(tmp_path / "t-0") == [2]
    assert list_base_offsets(tmp_path / "kept-0") == [0, 1]
    assert said.pop(0).startswith("no retention: kept: no retention.ms or retention.bytes")
    reasons = [said.pop(2), said.pop(2)]
    assert [reason.partition(": cleanup")[0] for reason in reasons] == [
        "no compaction: kept",
        "no compaction: t",
    ]
    assert said == [
        "t-0 starts at offset 2: 2 segments with 138 bytes expired",
        "2 partitions looked at, 1 shortened, 0 files with 0 bytes removed",
        "0 partitions to compact, 0 compacted",
    ]
    assert maintenance.round() == []
    assert said[3:] == [
        "2 partitions looked at, 0 shortened, 0 files with 0 bytes removed",
        "0 partitions to compact, 0 compacted",
    ]


def test_a_round_compacts_what_is_due_and_says_so(tmp_path: Path) -> None:
    updates(writer(tmp_path, topic="c"), BATCHES)
    before = read(tmp_path, C0)
    said: list[str] = []
    maintenance = Maintenance(Scope(log=str(tmp_path)), clean_here, say=said.append)
    assert maintenance.round() == []
    assert dict(read(tmp_path, C0).values()) == dict(before.values())
    assert len(read(tmp_path, C0)) < len(before)
    assert said[-2].startswith("c-0 is clean up to offset 10: ")
    assert said[-1] == "1 partition to compact, 1 compacted"
    maintenance.round()
    assert said[-1] == "0 partitions to compact, 0 compacted"


def test_who_cleans_already_is_named_and_a_second_attempt_waits_for_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates(writer(tmp_path, topic="c"), BATCHES)
    (due,) = plan_compaction([str(tmp_path)]).due
    with ExitStack() as first:
        first.enter_context(CleanerLock.of(tmp_path, C0, holder="the first attempt"))
        assert "c-0: it is cleaned at this moment by the first attempt" in clean(due.task).busy
        patch_sleep(monkeypatch, lambda _: first.close())
        second = clean(due.task, attempt=1)
    assert second.done is not None
    assert second.done.rounds == 1


def test_what_cannot_be_cleaned_is_a_problem_and_no_failed_task(tmp_path: Path) -> None:
    updates(writer(tmp_path, topic="c"), BATCHES)
    (due,) = plan_compaction([str(tmp_path)]).due
    (tmp_path / "c-0").rename(tmp_path / "moved")
    assert "c-0 was deleted, moved or recreated" in clean(due.task).problem


def test_what_is_given_counts_for_topics_without_a_limit(tmp_path: Path) -> None:
    fill(tmp_path)
    fill(tmp_path, "other")
    scope = Scope(
        log=str(tmp_path), topics=TopicSelection.of("t"), config={"retention.ms": str(DAY_MS)}
    )
    Maintenance(scope, clean_here, say=lambda _: None).round()
    assert list_base_offsets(tmp_path / "t-0") == [2]
    assert list_base_offsets(tmp_path / "other-0") == [0, 1]


def test_what_cannot_be_looked_after_is_refused_before_any_round(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    with pytest.raises(LogDirectoryError, match="no such folder"):
        Scope(log=log).check()
    fill(tmp_path / "log")
    with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'u'"):
        Scope(log=log, topics=TopicSelection.of("u")).check()
    with pytest.raises(OptionError, match="expected an integer"):
        Scope(log=log, config={"retention.ms": "soon"}).check()
    hand_over([log], cluster_id="c", node_id=1)
    with pytest.raises(LogDirectoryError, match="kafkalog broker takeover"):
        Scope(log=log).check()
    Scope(log=log, allows_broker=True).check()


class EndedError(Exception):
    """Ends rounds that go on for ever."""


def test_rounds_begin_at_a_steady_pace_and_what_fails_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, begun = [1000.0], []
    lengths = iter([2.0, 15.0, 3.0])

    class Rounds(Maintenance):
        def round(self) -> list[str]:
            begun.append(now[0])
            try:
                now[0] += next(lengths)
            except StopIteration:
                raise EndedError from None
            if len(begun) == 1:
                raise LockTimeoutError("a writer is at work")
            return ["a log is damaged"]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(system, "monotonic", lambda: now[0])
    patch_sleep(monkeypatch, sleep)
    with pytest.raises(EndedError):
        maintain._again_and_again(Rounds(Scope(log="log"), clean_here), 10_000)
    assert begun == [1000.0, 1010.0, 1025.0, 1035.0]
    assert capsys.readouterr().err.splitlines() == [
        "problem: a writer is at work",
        "problem: a log is damaged",
        "problem: a log is damaged",
    ]
