"""Kill a writer and a retention beside it at random moments, while a reader follows.

CI kills ten times; ``make kills`` a thousand times.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.campaign import start, wait_for
from tests.support.following import follow
from tests.support.scenes import check_indexes
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.broker import LOG_START_OFFSET, read_offset_checkpoint
from kafkalog.checkpoints.state_file import load_state
from kafkalog.model import TopicPartition
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.admin.retention import retain
from kafkalog.streaming.log.segments import list_base_offsets

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.crash

KILLS: Final = int(os.environ.get("KAFKALOG_KILLS", "10"))
LONGEST_S: Final = 0.15
ROWS: Final = 3
LIMIT: Final = "300"
T0: Final = TopicPartition("t", 0)


def write(log: Path, run: str, batches: int) -> None:
    """Write rows whose values are their offsets, from the batch on that is not there yet."""
    writer = Writer(
        log,
        topic="t",
        run=run,
        segment__bytes="150",
        retention__bytes=LIMIT,
        file__delete__delay__ms="20",
    )
    state = load_state(log) if log.is_dir() else None
    last = state.writers.get("query:4711") if state else None
    first = 0 if last is None else last.batch_id + 1
    for batch in range(first, first + batches):
        writer.write(batch, rows([str(batch * ROWS + number) for number in range(ROWS)]))


def retain_again(log: Path) -> None:
    while True:
        assert retain([str(log)]).problems == []


def started(log: Path) -> int:
    """Return the log start that the commit state keeps."""
    state = load_state(log)
    assert state is not None
    (topic,) = state.topics.values()
    return topic.partitions[0].log_start


def follow_what_is_left(log: Path, until: Path) -> None:
    """Read as a query does that may lose what has expired, and nothing else."""

    def check(missing: set[int]) -> None:
        assert max(missing, default=-1) < started(log)

    follow(log, until, check, failOnDataLoss="false")


def test_a_writer_and_a_retention_that_are_killed_at_random_lose_nothing_else(
    folder: Path,
) -> None:
    chance = random.Random(KILLS)
    log, until = folder / "log", folder / "until"
    write(log, "the first", 1)
    reader = start(lambda: follow_what_is_left(log, until))
    for kill in itertools.count():
        writing = start(lambda kill=kill: write(log, f"restart-{kill}", 10_000))
        retaining = start(lambda: retain_again(log))
        assert not wait_for(writing, chance, LONGEST_S)
        assert not wait_for(retaining, chance, LONGEST_S)
        if kill >= KILLS // 2 and started(log) > 5 * ROWS:
            break
    write(log, "the last", 2)
    until.touch()
    _, status = os.waitpid(reader, 0)
    assert status == 0, "the reader failed, see its traceback above"
    assert recover([str(log)]).problems == []
    time.sleep(0.03)
    assert retain([str(log)]).problems == []
    assert started(log) == list_base_offsets(log / "t-0")[0]
    assert started(log) == read_offset_checkpoint(log, LOG_START_OFFSET)[T0]
    held = sum(path.stat().st_size for path in (log / "t-0").glob("*.log"))
    assert held < int(LIMIT) + 150
    check_indexes([log])
    follow_what_is_left(log, until)
