"""Records that are played again: into another topic, and onto the terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.distributions import ROOT
from tests.support.reading import read_batch
from tests.support.sinking import Writer, rows

from kafkalog.errors import OptionError
from kafkalog.jobs.pipelines.replay_checkpoint import ReplayCheckpoint
from kafkalog.jobs.pipelines.replaying import Replay, target_of
from kafkalog.jobs.pipelines.restore_plan import Until
from kafkalog.jobs.pipelines.supervised import attend_pieces
from kafkalog.jobs.replay import begin, work_of
from kafkalog.streaming.admin.topics import create

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

KEPT = ("partition", "timestamp", "key", "value", "headers")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    log = tmp_path / "log"
    batch = rows(
        ["a", "b", "c", None],
        keys=["k", "l", None, "k"],
        partitions=[1, 0, 1, 1],
        timestamps=[1000, 2000, 3000, 4000],
    )
    Writer(log, topic="t", numPartitions="2").write(0, batch)
    return log


def contents(log: Path, topic: str) -> list[dict[str, Any]]:
    found = sorted(
        read_batch(path=str(log), subscribe=topic),
        key=lambda row: (row["partition"], row["offset"]),
    )
    return [{name: row[name] for name in KEPT} for row in found]


def test_records_are_played_into_another_topic_of_the_log_once_whatever_is_killed(
    spark: SparkSession, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = Replay(log=str(log), topics=("t",), until=Until({}, 4000), most=2)
    into = target_of(str(log), replay, "again")

    def work() -> Iterator[Callable[[], int] | None]:
        reached = ReplayCheckpoint.open(str(tmp_path / "c"), {"TARGET": str(log)})
        return work_of(spark, replay, reached, into, begin(replay, reached, into))

    def play() -> str:
        return attend_pieces(spark, "x", work(), grace_ms=0).rows

    first = next(work())
    assert first is not None
    monkeypatch.setattr(ReplayCheckpoint, "note_end", lambda _: None)
    assert first() == 2
    monkeypatch.undo()
    assert play().startswith("x: 1 row in 2 pieces"), "the first came again, and was there"
    assert play().startswith("x: 0 rows in 0 pieces")
    assert contents(log, "again") == [row for row in contents(log, "t") if row["value"]]
    with pytest.raises(OptionError, match="a topic is not played into itself"):
        target_of(str(log), replay, None)
    create([str(log)], "small")
    with pytest.raises(OptionError, match="'small' has 1 partitions in TARGET, and what is played"):
        target_of(str(log), replay, "small").prepare()


def test_a_plain_script_shows_records_on_the_terminal_and_says_how_many(log: Path) -> None:
    command = [sys.executable, str(ROOT / "jobs" / "replay.py"), str(log), "-", "--topic=t"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    shown = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [(each["partition"], each["offset"], each["value"]) for each in shown] == [
        (0, 0, "b"),
        (1, 0, "a"),
        (1, 1, "c"),
        (1, 2, None),
    ]
    assert shown[0]["timestamp"] == "1970-01-01T00:00:02.000Z"
    assert ran.stderr.splitlines()[-1].startswith("replay t: 4 rows in 1 piece, ")
