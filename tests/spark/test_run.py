"""``kafkalog run``: a pipeline is asked to end, ends with its micro-batch, and continues."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
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


def values(table: Path) -> Counter[bytes]:
    """Read what the table holds now, by Delta's log."""
    files: dict[str, Any] = {}
    for entry in sorted((table / "_delta_log").glob("*.json")):
        for line in entry.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                files[action["add"]["path"]] = action
            files.pop(action.get("remove", {}).get("path", ""), None)
    found = (pq.read_table(table / path)["value"].to_pylist() for path in files)
    return Counter(value for some in found for value in some)


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
            while len(values(table)) < 2 * number + 2:
                assert follower.poll() is None, follower.communicate()
                time.sleep(0.2)
            number += 1
            into.write(number, rows([str(2 * number), str(2 * number + 1)]))
        follower.send_signal(asked)
        out, err = follower.communicate()

        assert (follower.returncode, out) == (128 + asked, ""), err
        assert err.splitlines()[-1].startswith("archive t: "), err
        there = values(table)
        assert there == Counter(str(value).encode() for value in range(len(there)))
