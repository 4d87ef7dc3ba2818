"""What a Python worker of Spark does beside its tasks."""

from __future__ import annotations

import ctypes
import functools
import gc
import logging
import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TextIO

from pyspark import TaskContext

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "end_if_spark_has_gone",
    "freeze_planner",
    "show_log_lines",
    "show_warnings",
    "task_of_spark",
    "uncollected",
]


_MALLOC: Final = {
    "MALLOC_TRIM_THRESHOLD_": (-1, 32 << 20),
    "MALLOC_TOP_PAD_": (-2, 2 << 20),
    "MALLOC_MMAP_THRESHOLD_": (-3, 16 << 20),
}
"""By the variable that glibc reads: the parameter's number in ``malloc.h``, and the bytes."""

_imported = 0
"""How many modules this process had when it last took them out of the collector's sight."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Let the garbage collector rest while modules are imported, which leave it nothing to do.

    Each thousand of new objects lets it look at younger ones, and now and then at those of all
    modules that Spark has imported: 30 to 40 ms of a streaming query's start.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def task_of_spark() -> Iterator[None]:
    """Do a task's work in the process that Spark keeps for many tasks.

    Spark collects garbage after each, which visits every object of every imported module. With
    numba's among them that takes 40 ms, more than all else that a task of a small micro-batch does.
    So what lives at the end of a task is taken out of the collector's sight: all that tasks need is
    imported and compiled then, and stays. What later tasks leave is collected as before: only a
    task that imported more, as the first one of another kind does, has that taken out, too. One
    that ends early, since Spark has rows enough (LIMIT), counts likewise; one that fails does not.
    """
    if TaskContext.get() is None:
        yield
        return
    from kafkalog.streaming.records.jit.kernel import load_without_compiler  # noqa: PLC0415

    show_warnings()
    _keep_freed_memory()
    load_without_compiler()
    try:
        yield
    except GeneratorExit:
        _settle_task()
        raise
    _settle_task()


def _settle_task() -> None:
    if _has_imported_more():
        gc.collect()
        gc.freeze()


@functools.cache
def _keep_freed_memory() -> None:
    """Let glibc keep some memory that is let go of, unless the user has told it what to keep.

    Each Arrow batch of a source or sink takes a MiB: batch after batch it would be given back to
    the system and asked for again, a tenth of a worker's time. Other C libraries are left alone.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    tuned = os.environ.get("GLIBC_TUNABLES", "")
    for name, (parameter, size) in _MALLOC.items():
        if name not in os.environ and f"glibc.malloc.{name[7:-1].lower()}=" not in tuned:
            mallopt(parameter, size)


def freeze_planner() -> None:
    """Take what lives now out of the garbage collector's sight, if Spark plans or commits here.

    Spark keeps such a process for many queries, and collects garbage after each answer: 10 ms of a
    core that the query's tasks need by then. Nothing is collected here: Spark waits for the answer.
    """
    if _belongs_to_spark() and _has_imported_more():
        gc.freeze()


def _has_imported_more() -> bool:
    """Return whether modules came in since this was last asked."""
    global _imported
    before, _imported = _imported, len(sys.modules)
    return _imported > before


def _belongs_to_spark() -> bool:
    """Return whether this process runs a module of pyspark, such as its daemon."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def end_if_spark_has_gone() -> None:
    """End this process, if a streaming reader is stopped because Spark has closed its pipe.

    Spark ends a query by closing the pipe, without a word. pyspark's runner takes the end of its
    input for an error and reports it into the closed pipe. Each of its three attempts to write
    would show as a traceback with ``BrokenPipeError``, though the query has ended well.
    """
    error = sys.exc_info()[1]
    if not isinstance(error, EOFError | ConnectionError) or error.__traceback__ is None:
        return
    frame = error.__traceback__
    while frame.tb_next is not None:
        frame = frame.tb_next
    if frame.tb_frame.f_globals.get("__name__") != "pyspark.serializers":
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # as the daemon that forked it would, once the report has failed


class _Lines(logging.StreamHandler[TextIO]):
    """Shows log lines as Spark shows its own."""

    def __init__(self) -> None:
        super().__init__()
        line = "%(asctime)s %(levelname)s %(name)s: %(message)s"
        self.setFormatter(logging.Formatter(line, "%y/%m/%d %H:%M:%S"))


def show_log_lines(level: int = logging.INFO) -> None:
    """Let log lines from a level on come to stderr, unless somebody has set up logging.

    In the process that answers for a query's offsets nobody can set it up. Its stderr is the
    driver's, where Spark's own sources say at INFO where a query starts.
    """
    logger = logging.getLogger("kafkalog")
    if not any(isinstance(each, _Lines) for each in logger.handlers):
        if logger.hasHandlers():
            return
        logger.addHandler(_Lines())
        logger.setLevel(level)
    logger.setLevel(min(level, logger.level))


def show_warnings() -> None:
    """Let warnings come with time, level and name in a process that Spark has started.

    Nobody can set up logging there, and Python shows the bare text. A program's own process, which
    may set it up, is left alone.
    """
    if _belongs_to_spark() or TaskContext.get() is not None:
        show_log_lines(logging.WARNING)
