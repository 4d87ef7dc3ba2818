"""Several versions of Spark in one log, and one checkpoint handed from version to version.

``make matrix`` builds the environments; without them there is nothing to compare.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pytest
from tests.support import versions_job

import kafkalog
from kafkalog.files.system import system

PYTHONS: Final = [Path(word) for word in os.environ.get("KAFKALOG_SPARKS", "").split(":") if word]
"""The interpreters of environments with different versions of Spark, oldest first."""

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(len(PYTHONS) < 2, reason="`make matrix` has other versions of Spark"),
]


class _Job:
    """One run of the program, in the environment of an interpreter."""

    def __init__(self, python: Path, *words: str) -> None:
        others = {"SPARK_HOME", "PYSPARK_DRIVER_PYTHON"}
        variables = {name: text for name, text in os.environ.items() if name not in others}
        variables["PYSPARK_PYTHON"] = str(python)
        self._process = subprocess.Popen(
            [str(python), versions_job.__file__, *words],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End it and what it started, whatever became of the others."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def result(self) -> Any:
        """Return what it prints; ``killed`` if it was."""
        said, wrong = self._process.communicate(timeout=1800)
        if self._process.returncode < 0:
            return "killed"
        assert self._process.returncode == 0, wrong[-20_000:]
        return json.loads(said.splitlines()[-1])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give ``t-0`` with 40 records and ``t-1`` with 24, in eight record batches each."""
    log = tmp_path / "log"
    for _ in range(8):
        partitions = pa.array([0] * 5 + [1] * 3, pa.int32())
        rows = {"value": [str(system.random_id()) for _ in range(8)], "partition": partitions}
        kafkalog.append(str(log), "t", pa.table(rows), options={"numPartitions": "2"})
    return log


def values(log: Path, topic: str, partition: int) -> list[str]:
    rows = kafkalog.read(str(log), topic).read_all().to_pylist()
    return [row["value"].decode() for row in rows if row["partition"] == partition]


def test_limits_cut_the_same_micro_batches_on_each(log: Path, tmp_path: Path) -> None:
    found = {}
    for number, python in enumerate(PYTHONS):
        folder = tmp_path / str(number)
        found[str(python)] = _Job(python, "limits", str(log), str(folder)).result()
    first = found[str(PYTHONS[0])]
    assert len(first["maxOffsetsPerTrigger"][0]) == 10
    for python, others in found.items():
        assert others == first, python


def test_a_checkpoint_goes_round_and_each_row_is_read_and_written_once(
    log: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "query"
    folder.mkdir()
    for number, python in enumerate([*PYTHONS, PYTHONS[0]]):
        job = _Job(python, "passes_on", str(log), str(folder), str(number))
        assert job.result() == "killed"
        (*_, last) = versions_job.batches_of(folder / "checkpoint")
        assert last[1] is False, "planned, and not committed"
    _Job(PYTHONS[0], "ends", str(log), str(folder)).result()

    batches = versions_job.batches_of(folder / "checkpoint")
    read = [tuple(row) for n in range(len(batches)) for row in json.loads(_text(folder, n))]
    assert Counter(read) == Counter([(0, n) for n in range(40)] + [(1, n) for n in range(24)])
    alone = _Job(Path(sys.executable), "limits", str(log), str(tmp_path / "alone")).result()
    assert [end for end, _ in batches] == alone["maxOffsetsPerTrigger"][0]
    for partition in (0, 1):
        assert values(log, "copy", partition) == values(log, "t", partition)


def _text(folder: Path, number: int) -> str:
    return (folder / f"{number}.json").read_text()


def test_all_append_to_one_topic_and_tail_it_at_once(log: Path, tmp_path: Path) -> None:
    (tmp_path / "tails").mkdir()
    pythons = (PYTHONS * versions_job.WRITERS)[: versions_job.WRITERS]
    with contextlib.ExitStack() as running:
        jobs = [
            running.enter_context(
                _Job(python, "together", str(log), str(tmp_path / "tails"), str(number))
            )
            for number, python in enumerate(pythons)
        ]
        seen = [job.result() for job in jobs]
    wanted = Counter(f"{w}:{n}" for w in range(len(jobs)) for n in range(versions_job.ROWS))
    for each in seen:
        assert Counter(each) == wanted
        for writer in range(len(jobs)):
            numbers = [int(row[2:]) for row in each if row.startswith(f"{writer}:")]
            assert numbers == sorted(numbers)
    assert seen[0] == values(log, "u", 0)
