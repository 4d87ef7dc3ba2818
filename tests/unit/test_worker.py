"""What a worker does once, in processes of its own: it changes the collector of all of them."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import gc
from pyspark import TaskContext
from kafkalog.streaming.worker import settle_worker
{before}
settle_worker()
print(gc.get_freeze_count() > 0)
"""


def _freezes(before: str) -> bool:
    words = [sys.executable, "-c", _SCRIPT.format(before=before)]
    run = subprocess.run(words, capture_output=True, text=True, check=True)
    return run.stdout == "True\n"


def test_the_process_of_a_task_has_its_modules_out_of_the_collectors_sight() -> None:
    assert _freezes("TaskContext._getOrCreate()")


def test_any_other_process_is_left_alone() -> None:
    assert not _freezes("")
