"""Kill a writer and a retention beside it at random moments, while a reader follows.

CI kills two dozen times; ``make kills`` a thousand times.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.support.campaign import start, wait_for
from tests.support.scenes import check_indexes
from tests.support.sinking import Writer, rows

from kafkalog.checkpoints.broker import LOG_START_OFFSET, read_offset_checkpoint
from kafkalog.checkpoints.state_file import load_state
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.segment_files import list_base_offsets
from kafkalog.streaming.operate.recover import recover
from kafkalog.streaming.operate.retain import retain
from kafkalog.streaming.schema import RowSchema, source_schema
from kafkalog.streaming.source.read_options import ReadOptions
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.stream_control import StreamControl

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.crash

KILLS: Final = int(os.environ.get("KAFKALOG_KILLS", "24"))
LONGEST_S: Final = 0.15
ROWS: Final = 3
LIMIT: Final = "300"
T0: Final = TopicPartition("t", 0)
SCHEMA: Final = RowSchema.of(source_schema(include_headers=False))


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder in memory where there is one: a killed process loses nothing there either."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="kills-") as name:
        yield Path(name)


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


def follow(log: Path, until: Path) -> None:
    """Read as a query does that may lose what has expired; each value is told by its offset."""
    given = {"path": str(log), "subscribe": "t", "startingOffsets": "earliest"}
    options = ReadOptions.parse(given | {"failOnDataLoss": "false"})
    control = StreamControl(options)
    at = control.initial()
    while True:
        ended = until.exists()
        end = control.next_end(at, take_all=True)
        read = [
            batch for split in control.plan(at, end) for batch in read_split(split, options, SCHEMA)
        ]
        check(log, at.get(T0, 0), end.get(T0, 0), read)
        at = end
        control.batch_ran()
        if ended:
            return


def started(log: Path) -> int:
    """Give the log start that the commit state keeps."""
    state = load_state(log)
    assert state is not None
    (topic,) = state.topics.values()
    return topic.partitions[0].log_start


def check(log: Path, start: int, end: int, read: list[Any]) -> None:
    """See that each row was read once, in order, but for those below a log start."""
    offsets = [offset for batch in read for offset in batch.column("offset").to_pylist()]
    values = [value for batch in read for value in batch.column("value").to_pylist()]
    assert [int(value) for value in values] == offsets
    assert offsets == sorted(set(offsets))
    missing = set(range(start, end)) - set(offsets)
    assert max(missing, default=-1) < started(log)


def test_a_writer_and_a_retention_that_are_killed_at_random_lose_nothing_else(
    folder: Path,
) -> None:
    chance = random.Random(KILLS)
    log, until = folder / "log", folder / "until"
    write(log, "the first", 1)
    reader = start(lambda: follow(log, until))
    for kill in itertools.count():
        writing = start(lambda kill=kill: write(log, f"run-{kill}", 10_000))
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
    follow(log, until)
