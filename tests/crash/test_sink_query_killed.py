"""Kill parts of a streaming query again and again, until it comes to its end.

CI kills a Python worker and the whole process tree; ``make kills`` some twenty times: workers, the
driver's Python, the JVM, and the tree.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil
import pytest
from tests.support.dump_log import dump_log_segments, partition_files
from tests.support.scenes import check_indexes
from tests.support.sinking import values_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.interop]

KILLS: Final = int(os.environ.get("KAFKALOG_SPARK_KILLS", "2"))
VICTIMS: Final = ("worker", "tree", "driver", "jvm")
FILES: Final = 4 + 3 * KILLS
ROWS: Final = 200
SECONDS: Final = 600

QUERY = f"""
import sys
from tests.support.spark import small_session

folder = sys.argv[1]
settings = {{"spark.driver.memory": "512m", "spark.master": "local[2,8]"}}
with small_session(**settings) as spark:
    rows = spark.readStream.schema("value STRING").option("maxFilesPerTrigger", "1")
    query = (
        rows.csv(folder + "/input").repartition(2).writeStream.format("kafkalog")
        .option("topic", "t").option("numPartitions", "3").option("partitioner", "round_robin")
        .option("segment.bytes", "6000").option("checkpointLocation", folder + "/checkpoint")
        .trigger(availableNow=True).start(folder + "/log")
    )
    query.awaitTermination({SECONDS})
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


def processes_of(session: int) -> list[psutil.Process]:
    """List what lives in a session; Spark's Python daemon leaves the process group, not that."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def planned(folder: Path) -> int:
    done = folder / "checkpoint" / "offsets"
    return len([path for path in done.iterdir() if path.name.isdigit()]) if done.is_dir() else 0


def wait_until(reached: Callable[[], bool], query: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait, and look meanwhile: whoever reads sees a file's rows all or not at all."""
    deadline = time.monotonic() + SECONDS
    while not reached() and query.poll() is None:
        assert time.monotonic() < deadline, (folder / "output").read_text()[-3000:]
        if (folder / "log").is_dir():
            check_whole(folder)
        time.sleep(0.02)


def check_whole(folder: Path) -> None:
    counts = Counter(value.split("/")[0] for value in all_values(folder))
    assert set(counts.values()) <= {ROWS}, counts


def all_values(folder: Path) -> list[str]:
    return [value for values in values_of([folder / "log"], "t").values() for value in values]


def kill(victim: str, query: subprocess.Popen[bytes], folder: Path) -> None:
    """Kill a part of the query; what cannot live without it ends too."""
    for process in processes_of(query.pid):
        if is_victim(victim, process, query.pid):
            send_kill(process.pid)
    if victim == "worker":
        return
    wait_until(lambda: query.poll() is not None, query, folder)
    deadline = time.monotonic() + SECONDS
    while left := processes_of(query.pid):
        if time.monotonic() > deadline or victim == "tree":
            for process in left:
                send_kill(process.pid)
        time.sleep(0.1)


def is_victim(victim: str, process: psutil.Process, driver: int) -> bool:
    match victim:
        case "worker":
            # Their parent, from which they are forked, is a daemon of the same name.
            with contextlib.suppress(psutil.NoSuchProcess):
                parent = process.parent()
                return "pyspark.daemon" in words_of(process) and (
                    parent is not None and "pyspark.daemon" in words_of(parent)
                )
            return False
        case "driver":
            return process.pid == driver
        case "jvm":
            return words_of(process)[:1] != [] and "java" in words_of(process)[0]
        case _:
            return True


def words_of(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def send_kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def test_a_query_that_is_killed_again_and_again_writes_each_row_once(tmp_path: Path) -> None:
    (tmp_path / "input").mkdir()
    for number in range(FILES):
        lines = "".join(f"{number}/{row}\n" for row in range(ROWS))
        (tmp_path / "input" / f"{number:03d}.csv").write_text(lines)
    query = start(tmp_path)
    try:
        for victim in itertools.islice(itertools.cycle(VICTIMS), KILLS):
            wanted = planned(tmp_path) + 2
            wait_until(lambda wanted=wanted: planned(tmp_path) >= wanted, query, tmp_path)
            time.sleep(random.uniform(0, 0.4))
            kill(victim, query, tmp_path)
            if query.poll() is not None:
                query = start(tmp_path)
        wait_until(lambda: False, query, tmp_path)
    finally:
        for process in processes_of(query.pid):
            send_kill(process.pid)
    assert query.wait() == 0, (tmp_path / "output").read_text()[-3000:]
    expected = Counter(f"{number}/{row}" for number in range(FILES) for row in range(ROWS))
    assert Counter(all_values(tmp_path)) == expected
    assert list((tmp_path / "log").glob(".kafkalog.staged.*")) == []
    check_indexes([tmp_path / "log"])
    files = [path for path in partition_files(tmp_path / "log") if path.stat().st_size]
    assert dump_log_segments(files).findings == []
