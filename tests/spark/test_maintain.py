"""The job `maintain` on Spark, beside a writer and a reader."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.sinking import Writer, rows

import kafkalog
from kafkalog.streaming.log.segment_files import list_base_offsets

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark


def test_it_deletes_every_so_often_beside_a_writer_until_it_is_ended(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t", segment__bytes="80", retention__bytes="100")
    writer.write(0, rows(["0"]))
    command = [sys.executable, "-m", "kafkalog.jobs.maintain", str(tmp_path), "--every=1s"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    ) as job:
        assert job.stdout is not None
        said = [job.stdout.readline()]
        for batch in range(1, 6):
            writer.write(batch, rows([str(batch)]))
        while "have expired" not in "".join(said[1:]):
            said.append(job.stdout.readline())
            assert said[-1], said
        writer.write(6, rows(["6"]))
        job.send_signal(signal.SIGTERM)
        assert job.wait() == 128 + signal.SIGTERM
    assert "1 partitions looked at, 0 shortened" in said[0]
    assert list_base_offsets(tmp_path / "t-0")[0] > 0
    values = kafkalog.read(tmp_path, "t").read_all().column("value").to_pylist()
    assert values[-2:] == [b"5", b"6"]
