"""What a worker does beside its tasks, in processes of its own: it changes all of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

_COLLECTING = """
import gc
from pyspark import TaskContext
from kafkalog.streaming.spark.worker import freeze_planner, task_of_spark
{before}
kept = []
for module in ["sys", "sys", "colorsys"]:
    with task_of_spark():
        __import__(module)
        kept += [[] for _ in range(1000)]
    freeze_planner()
    print(gc.get_freeze_count())
"""

_ENDING_EARLY = """
import gc
from pyspark import TaskContext
from kafkalog.streaming.spark.worker import task_of_spark
{before}
def rows():
    with task_of_spark():
        yield 1
        yield 2
read = rows()
next(read)
read.close()
print(gc.get_freeze_count())
def failing():
    with task_of_spark():
        import colorsys
        yield 1
        raise KeyError
frozen = gc.get_freeze_count()
try:
    list(failing())
except KeyError:
    print(gc.get_freeze_count() - frozen)
"""

_ALLOCATING = """
import ctypes
from pyspark import TaskContext
from kafkalog.streaming.spark.worker import task_of_spark
{before}
library = ctypes.CDLL(None)
library.malloc.restype = library.sbrk.restype = ctypes.c_void_p
with task_of_spark():
    end = library.sbrk(0)
    library.free(ctypes.c_void_p(library.malloc(8 << 20)))
print(library.sbrk(0) - end)
"""

_LOADING = """
from pyspark import TaskContext
from kafkalog.streaming.records.jit.kernel import _Kernel
from kafkalog.streaming.spark.worker import task_of_spark
{before}
with task_of_spark():
    print(int(_Kernel.without_compiler))
"""

_TASK = "TaskContext._getOrCreate()"

_PLAN = """
import importlib.machinery
import sys
sys.modules["__main__"].__spec__ = importlib.machinery.ModuleSpec("pyspark.daemon", None)
"""


def _said(script: str, before: str, **environment: str) -> list[int]:
    words = [sys.executable, "-c", script.format(before=before)]
    outer = {name: text for name, text in os.environ.items() if not name.startswith("MALLOC_")}
    environ = {**outer, **environment}
    run = subprocess.run(words, capture_output=True, text=True, check=True, env=environ)
    return [int(line) for line in run.stdout.split()]


def _check_frozen(before: str) -> None:
    first, again, more = _said(_COLLECTING, before)
    assert first > 1000
    assert again <= first
    assert more > again + 1000


def test_the_process_of_a_task_has_its_modules_out_of_the_collectors_sight() -> None:
    """Those of a later task of another kind as well; what like tasks leave is still collected."""
    _check_frozen(_TASK)


def test_a_task_that_ends_before_its_rows_do_counts_and_one_that_fails_does_not() -> None:
    """Spark closes the reader of a task once it has rows enough, as for ``LIMIT``."""
    frozen, by_failure = _said(_ENDING_EARLY, _TASK)
    assert frozen > 1000
    assert by_failure == 0
    assert _said(_ENDING_EARLY, "") == [0, 0]


def test_so_has_the_process_of_a_plan() -> None:
    _check_frozen(_PLAN)


def test_any_other_process_collects_as_it_did() -> None:
    assert _said(_COLLECTING, "") == [0, 0, 0]


def test_the_process_of_a_task_keeps_memory_that_is_let_go_of() -> None:
    (grown,) = _said(_ALLOCATING, _TASK)
    assert grown >= 8 << 20


def test_unless_the_user_says_otherwise_or_it_is_another_process() -> None:
    assert _said(_ALLOCATING, _TASK, MALLOC_MMAP_THRESHOLD_="65536") < [1 << 20]
    tuned = "glibc.malloc.mmap_threshold=65536"
    assert _said(_ALLOCATING, _TASK, GLIBC_TUNABLES=tuned) < [1 << 20]
    assert _said(_ALLOCATING, "") < [1 << 20]


_WARNING = """
import logging
from pyspark import TaskContext
from kafkalog.streaming.spark.worker import show_log_lines, show_warnings, task_of_spark
{before}
show_warnings()
logger = logging.getLogger("kafkalog.sink")
logger.info("too much")
logger.warning("a warning")
"""
_LINE = r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d {level} kafkalog.sink: {text}\n"


def _shown(before: str) -> str:
    words = [sys.executable, "-c", _WARNING.format(before=before)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stderr


@pytest.mark.parametrize("before", [_TASK, _PLAN], ids=["task", "plan"])
def test_a_warning_in_a_process_of_spark_has_its_level_and_name(before: str) -> None:
    assert re.fullmatch(_LINE.format(level="WARNING", text="a warning"), _shown(before))


def test_who_plans_a_stream_shows_more() -> None:
    both = _LINE.format(level="INFO", text="too much") + _LINE.format(
        level="WARNING", text="a warning"
    )
    for before in ("show_warnings()\nshow_log_lines()", "show_log_lines()"):
        assert re.fullmatch(both, _shown(f"{_PLAN}\n{before}"))


def test_a_program_of_its_own_is_left_alone() -> None:
    assert _shown("") == "a warning\n"
    assert _shown(f"logging.basicConfig(format='%(message)s!')\n{_PLAN}") == "a warning!\n"


def test_a_task_loads_its_kernels_without_a_compiler_and_a_program_as_it_likes() -> None:
    assert _said(_LOADING, _TASK) == [1]
    assert _said(_LOADING, "") == [0]
