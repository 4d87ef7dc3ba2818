"""The main job under ``kill -9``: each flight is in the log once and in Delta once all the same."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import psutil
import pytest
from tests.support.delta_table import values_in
from tests.support.dump_log import dump_log_segments, partition_files
from tests.support.foreign import read_partition
from tests.support.killed_query import processes_of

from kafkalog.jobs.demo.queries import TOPIC, topic_logs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.nightly]

FLIGHTS: Final = 24_000
SECONDS: Final = 300


def start(work: Path) -> subprocess.Popen[bytes]:
    """Start the job in a session of its own, by which all its processes can be found."""
    words = [sys.executable, "-m", "kafkalog.jobs.demo", f"--work-dir={work}"]
    with (work / "demo.log").open("ab") as log:
        return subprocess.Popen(
            [*words, f"--flights={FLIGHTS}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def kill_when(job: subprocess.Popen[bytes], reached: Callable[[], bool]) -> None:
    """Kill driver, JVM and Python workers with SIGKILL as soon as the job has come that far."""
    deadline = time.monotonic() + SECONDS
    while not reached():
        assert job.poll() is None, "the job ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert job.poll() is None, "the job ended before it could be killed"
    while processes := processes_of(job.pid):
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        job.wait()
        psutil.wait_procs(processes, 10)


def log_end(work: Path) -> int:
    log = work / "log"
    return sum(topic_logs(str(log), TOPIC).look().offsets.values()) if log.is_dir() else 0


def delta_versions(work: Path) -> int:
    return len(list((work / "delta" / "_delta_log").glob("*.json")))


def flights_in_log(work: Path) -> Counter[int]:
    """Read the segments with somebody else's codec."""
    found: Counter[int] = Counter()
    for folder in (work / "log").glob(f"{TOPIC}-*"):
        records = read_partition(folder)
        assert [record.offset for record in records] == list(range(len(records)))
        found.update(json.loads(record.value or b"{}")["id"] for record in records)
    return found


def flights_in_delta(work: Path) -> Counter[int]:
    return Counter(json.loads(value)["id"] for value in values_in(work / "delta"))


def test_a_killed_demo_goes_on_and_loses_or_doubles_no_flight(tmp_path: Path) -> None:
    each_once = Counter(range(FLIGHTS))
    try:
        kill_when(start(tmp_path), lambda: log_end(tmp_path) >= FLIGHTS // 4)
        before = log_end(tmp_path)
        kill_when(
            start(tmp_path), lambda: log_end(tmp_path) > before and delta_versions(tmp_path) > 1
        )

        last = start(tmp_path)
        status = last.wait(SECONDS)
    finally:
        sys.stdout.write((tmp_path / "demo.log").read_text(encoding="utf-8")[-6000:])

    assert before < FLIGHTS
    assert status == 0
    assert dump_log_segments(partition_files(tmp_path / "log")).findings == []
    assert flights_in_log(tmp_path) == each_once
    assert flights_in_delta(tmp_path) == each_once
