"""What a Python worker of Spark's does once, whichever tasks it runs."""

from __future__ import annotations

import functools
import gc

from pyspark import TaskContext

__all__ = ["settle_worker"]


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
