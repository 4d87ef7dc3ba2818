"""What a Python process of Spark's does once, whichever tasks it runs."""

from __future__ import annotations

import functools
import gc
import logging

from pyspark import TaskContext

__all__ = ["settle_worker", "show_log_lines"]


@functools.cache
def settle_worker() -> None:
    """Take what lives now out of the garbage collector's sight, once, if this is a task's process.

    Spark keeps a worker for many tasks and collects garbage after each, which visits every object
    of every imported module. With numba's among them that takes 40 ms, more than all else that a
    task of a small micro-batch does. So it is called at the end of a task, when all that tasks need
    is imported and compiled, and stays; what later tasks leave behind is collected as ever.
    """
    if TaskContext.get() is None:
        return
    gc.collect()
    gc.freeze()


def show_log_lines() -> None:
    """Let log lines from level INFO on come to stderr, unless somebody has set up logging.

    In the process that answers for a query's offsets nobody can; its stderr is the driver's, where
    Spark's own sources say at INFO where a query starts.
    """
    logger = logging.getLogger("kafkalog")
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    line = "%(asctime)s %(levelname)s %(name)s: %(message)s"  # as Spark's
    handler.setFormatter(logging.Formatter(line, "%y/%m/%d %H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
