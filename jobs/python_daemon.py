"""PySpark's daemon, which starts the processes that run Python, without its traces of broken pipes.

Spark closes the connections of idle processes, of those whose task needs no more rows, and of all
when it ends. What such a process still has for Spark cannot be written then: that is no error, and
PySpark prints a trace of ``BrokenPipeError`` for each, also under a pipeline that has done all.
Everything else that it prints stays.

It is Spark's ``spark.python.daemon.module`` in local sessions of pipelines.

Source: PySpark 4.2 ``daemon.py`` (``worker``, ``manager``).
"""

from __future__ import annotations

import sys
import traceback
from types import SimpleNamespace
from typing import Any, Final

__all__ = ["DAEMON_MODULE", "main"]

DAEMON_MODULE: Final = "kafkalog.jobs.python_daemon"


def main() -> None:
    """Run the daemon until Spark ends it."""
    from pyspark import daemon  # noqa: PLC0415 - pyspark is slow to import

    names: Any = vars(daemon)
    names["print"] = _print
    names["traceback"] = SimpleNamespace(format_exc=traceback.format_exc, print_exc=_print_exc)
    daemon.manager()


def _print(*words: object, **options: Any) -> None:  # noqa: ANN401 - those of print
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        print(*words, **options)


def _print_exc() -> None:
    if not isinstance(sys.exc_info()[1], BrokenPipeError):
        traceback.print_exc()


if __name__ == "__main__":
    main()
