"""Kill a whole streaming query, JVM and workers, again and again, until it comes to its end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.support.sinking import values_of

pytestmark = [pytest.mark.crash, pytest.mark.spark]

FILES = 8
ROWS = 200
KILLS = 2

QUERY = f"""
import sys
from tests.support.spark import small_session

folder = sys.argv[1]
with small_session(**{{"spark.driver.memory": "512m"}}) as spark:
    rows = spark.readStream.schema("value STRING").option("maxFilesPerTrigger", "1")
    query = (
        rows.csv(folder + "/input").repartition(2).writeStream.format("kafkalog")
        .option("topic", "t").option("numPartitions", "3").option("partitioner", "round_robin")
        .option("segment.bytes", "6000").option("checkpointLocation", folder + "/checkpoint")
        .trigger(availableNow=True).start(folder + "/log")
    )
    query.awaitTermination({600})
"""


def start(folder: Path) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-c", QUERY, str(folder)],
            cwd=root,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def committed(folder: Path) -> int:
    done = folder / "checkpoint" / "offsets"
    return len([path for path in done.iterdir() if path.name.isdigit()]) if done.is_dir() else 0


def kill_after_some_batches(query: subprocess.Popen[bytes], folder: Path, more: int) -> None:
    """Kill the query and all it has started, somewhere within a batch."""
    wanted = committed(folder) + more
    deadline = time.monotonic() + 300
    while committed(folder) < wanted and query.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(random.uniform(0, 0.4))
    os.killpg(query.pid, signal.SIGKILL)
    query.wait()


def test_a_query_that_is_killed_again_and_again_writes_each_row_once(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    for number in range(FILES):
        lines = "".join(f"{number}/{row}\n" for row in range(ROWS))
        (tmp_path / "input" / f"{number:03d}.csv").write_text(lines)
    for _ in range(KILLS):
        kill_after_some_batches(start(tmp_path), tmp_path, more=2)
    assert start(tmp_path).wait(600) == 0, (tmp_path / "output").read_text()[-3000:]
    found = Counter(
        value for values in values_of([tmp_path / "log"], "t").values() for value in values
    )
    assert found == Counter(f"{number}/{row}" for number in range(FILES) for row in range(ROWS))
    assert list((tmp_path / "log").glob(".kafkalog.staged.*")) == []
