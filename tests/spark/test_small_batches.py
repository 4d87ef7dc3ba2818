"""Many small micro-batches of a query: files and commit state do not grow with their number.

``KAFKALOG_MICRO_BATCHES=500`` makes it many.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.sinking import values_of

from kafkalog.checkpoints.commit_state import STATE_FILE
from kafkalog.checkpoints.state_file import load_state

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

BATCHES: Final = int(os.environ.get("KAFKALOG_MICRO_BATCHES", "12"))
FEW: Final = 4


def arrive(folder: Path, numbers: range) -> None:
    """Let a file for each micro-batch arrive, the oldest first."""
    for number in numbers:
        path = folder / f"{number}.csv"
        path.write_text("".join(f"{number}/{row}\n" for row in range(3)))
        os.utime(path, (1_700_000_000 + number,) * 2)


def test_files_and_state_stay_as_many_micro_batches_are_appended(
    spark: SparkSession, tmp_path: Path
) -> None:
    incoming, log = tmp_path / "incoming", tmp_path / "log"
    incoming.mkdir()
    stream = spark.readStream.schema("value STRING").option("maxFilesPerTrigger", "1")
    seen = []
    for numbers in (range(FEW), range(FEW, BATCHES)):
        arrive(incoming, numbers)
        writer = stream.csv(str(incoming)).writeStream.format("kafkalog").option("topic", "t")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start(str(log))
        assert query.awaitTermination(600 + BATCHES)
        files = sorted(str(path.relative_to(log)) for path in log.rglob("*") if path.is_file())
        seen.append((files, (log / STATE_FILE).stat().st_size))
    (few, small), (many, large) = seen
    assert many == few
    # A number grows by a digit, and one more run is remembered.
    assert large <= small + 100
    state = load_state(log)
    assert state is not None
    assert state.sequence == BATCHES
    expected = [f"{number}/{row}" for number in range(BATCHES) for row in range(3)]
    assert values_of([log], "t") == {0: expected}
