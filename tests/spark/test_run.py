"""``kafkalog run``: a pipeline is asked to end, ends with its micro-batch, and continues."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from tests.support.delta_table import values_in
from tests.support.sinking import Writer, rows

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark

_COMMAND = [sys.executable, "-c", "from kafkalog.jobs.cli.app import main; main()", "run"]


def started(*words: object) -> subprocess.Popen[str]:
    command = [*_COMMAND, *(str(word) for word in words)]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_pipeline_that_is_asked_to_end_ends_between_two_micro_batches_and_continues(
    tmp_path: Path,
) -> None:
    log, table, checkpoint = (tmp_path / name for name in ("log", "table", "checkpoint"))
    words = ("archive", log, table, "--topic=t", f"--checkpoint={checkpoint}", "--follow")
    into = Writer(log, topic="t")
    number = 0
    into.write(number, rows(["0", "1"]))
    for asked in (signal.SIGTERM, signal.SIGINT):
        follower = started(*words)
        for _ in range(2):
            while len(values_in(table)) < 2 * number + 2:
                assert follower.poll() is None, follower.communicate()
                time.sleep(0.2)
            number += 1
            into.write(number, rows([str(2 * number), str(2 * number + 1)]))
        follower.send_signal(asked)
        out, err = follower.communicate()

        assert (follower.returncode, out) == (128 + asked, ""), err
        assert err.splitlines()[-1].startswith("archive t: "), err
        there = Counter(values_in(table))
        assert there == Counter(str(value).encode() for value in range(len(there)))
