"""What a worker does once, in processes of its own: it changes the collector of all of them."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import gc
from pyspark import TaskContext
from kafkalog.streaming.worker import {settle}
{before}
{settle}()
print(gc.get_freeze_count() > 0)
"""


_SPARKS_MODULE = """
import importlib.machinery
import sys
sys.modules["__main__"].__spec__ = importlib.machinery.ModuleSpec("pyspark.daemon", None)
"""


def _freezes(settle: str, before: str) -> bool:
    words = [sys.executable, "-c", _SCRIPT.format(settle=settle, before=before)]
    run = subprocess.run(words, capture_output=True, text=True, check=True)
    return run.stdout == "True\n"


def test_the_process_of_a_task_has_its_modules_out_of_the_collectors_sight() -> None:
    assert _freezes("settle_worker", "TaskContext._getOrCreate()")


def test_so_has_the_process_of_a_plan() -> None:
    assert _freezes("settle_planner", _SPARKS_MODULE)


def test_any_other_process_is_left_alone() -> None:
    assert not _freezes("settle_worker", "")
    assert not _freezes("settle_planner", "")
