"""The job that looks after log directories, without its Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.sinking import Writer, rows

from kafkalog.errors import (
    LockTimeoutError,
    LogDirectoryError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.system import system
from kafkalog.jobs import maintain
from kafkalog.jobs.maintain import Maintenance
from kafkalog.streaming.log.segment_files import list_base_offsets
from kafkalog.streaming.operate.handover import hand_over

if TYPE_CHECKING:
    from pathlib import Path

DAY_MS = 86_400_000


def fill(log: Path, topic: str = "t", **settings: str) -> Writer:
    """Write two segments of 2001."""
    writer = Writer(log, topic=topic, name=topic, segment__bytes="80", **settings)
    for batch in range(2):
        writer.write(batch, rows(["a"], timestamps=[1_000_000_000_000]))
    return writer


def test_a_round_deletes_what_has_expired_and_says_so(tmp_path: Path) -> None:
    fill(tmp_path, retention__ms=str(DAY_MS))
    fill(tmp_path, "kept")
    said: list[str] = []
    maintenance = Maintenance(str(tmp_path), say=said.append)
    maintenance.check()
    assert maintenance.round() == []
    assert list_base_offsets(tmp_path / "t-0") == [2]
    assert list_base_offsets(tmp_path / "kept-0") == [0, 1]
    assert said.pop(0).startswith("left alone: kept: neither retention.ms nor retention.bytes")
    assert said == [
        "t-0 starts at offset 2: 2 segments with 138 bytes have expired",
        "2 partitions looked at, 1 shortened, 0 files with 0 bytes removed",
    ]
    assert maintenance.round() == []
    assert said[2:] == ["2 partitions looked at, 0 shortened, 0 files with 0 bytes removed"]


def test_what_is_given_counts_for_topics_without_a_limit(tmp_path: Path) -> None:
    fill(tmp_path)
    fill(tmp_path, "other")
    given = {"retention.ms": str(DAY_MS)}
    Maintenance(str(tmp_path), topic="t", config=given, say=lambda _: None).round()
    assert list_base_offsets(tmp_path / "t-0") == [2]
    assert list_base_offsets(tmp_path / "other-0") == [0, 1]


def test_what_cannot_be_looked_after_is_refused_before_any_round(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    with pytest.raises(LogDirectoryError, match="no such folder"):
        Maintenance(log).check()
    fill(tmp_path / "log")
    with pytest.raises(UnknownTopicOrPartitionError, match="knows no topic 'u'"):
        Maintenance(log, topic="u").check()
    with pytest.raises(OptionError, match="expected an integer"):
        Maintenance(log, config={"retention.ms": "soon"}).check()
    hand_over([log], cluster_id="c", node_id=1)
    with pytest.raises(LogDirectoryError, match="kafkalog takeover"):
        Maintenance(log).check()
    Maintenance(log, allows_broker=True).check()


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
    monkeypatch.setattr(system, "sleep", sleep)
    with pytest.raises(EndedError):
        maintain._again_and_again(Rounds("log"), 10_000)
    assert begun == [1000.0, 1010.0, 1025.0, 1035.0]
    assert capsys.readouterr().err.splitlines() == [
        "problem: a writer is at work",
        "problem: a log is damaged",
        "problem: a log is damaged",
    ]
