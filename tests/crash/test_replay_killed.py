"""Kill a replay that is at work, ask the next one to end, and look at what is in the log."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.distributions import ROOT
from tests.support.reading import read_batch
from tests.support.sinking import STAMP_MS, Writer, rows, values_of

from kafkalog.checkpoints.state_file import load_state
from kafkalog.jobs.pipelines.replay_checkpoint import FILE, ReplayCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.nightly]

ROWS: Final = 4_000
PARTITIONS: Final = 2


class Job:
    """A replay of ``t`` into ``again`` of the same log, by a plain script."""

    def __init__(self, folder: Path) -> None:
        self.log, self.checkpoint = folder / "log", folder / "checkpoint"

    def start(self, speed: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(ROOT / "jobs" / "replay.py"), str(self.log), str(self.log)]
        words = ["--topic=t", "--as=again", f"--speed={speed}", f"--checkpoint={self.checkpoint}"]
        return subprocess.Popen([*command, *words], stderr=subprocess.PIPE, text=True)

    def played(self) -> int:
        """Count what is committed, by what the commit state says alone."""
        state = load_state(self.log)
        topics = [] if state is None else state.topics.values()
        return sum(
            each.log_end
            for topic in topics
            if topic.name == "again"
            for each in topic.partitions.values()
        )

    def piece(self) -> tuple[int, bool]:
        """Give the number of the last piece, -1 for none, and whether its end is noted."""
        if not (self.checkpoint / FILE).exists():
            return -1, True
        found = ReplayCheckpoint.open(str(self.checkpoint), {})
        return -1 if found.piece is None else found.piece.number, found.ended


def wait(job: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    while not reached():
        assert job.poll() is None, job.communicate()
        time.sleep(0.02)


def test_a_replay_that_is_killed_or_asked_to_end_plays_each_record_once(tmp_path: Path) -> None:
    job = Job(tmp_path)
    values = [f"{number}" for number in range(ROWS)]
    placed = rows(
        values,
        partitions=[number % PARTITIONS for number in range(ROWS)],
        timestamps=[STAMP_MS + number * 1000 for number in range(ROWS)],
    )
    Writer(job.log, topic="t", numPartitions=str(PARTITIONS)).write(0, placed)

    running = job.start("20")
    wait(running, lambda: job.piece()[0] >= 1 and not job.piece()[1])
    running.kill()
    running.communicate()
    number, _ = job.piece()

    running = job.start("20")
    wait(running, lambda: job.piece()[0] > number)
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate()
    assert running.returncode == 128 + signal.SIGTERM, err
    assert " pieces, " in err.splitlines()[-1]
    assert job.piece()[1], "the piece that ran has come to its end"
    assert 0 < job.played() < ROWS

    running = job.start("max")
    _, err = running.communicate()
    assert running.returncode == 0, err
    assert values_of([job.log], "again") == {
        number: values[number::PARTITIONS] for number in range(PARTITIONS)
    }
    times = [row["timestamp"] for row in read_batch(path=str(job.log), subscribe="again")]
    assert len(set(times)) == ROWS, "each has its own"
