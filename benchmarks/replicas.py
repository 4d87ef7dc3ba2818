"""What replicas cost: a sink with three of them beside one with one, and how soon another goes on.

All nodes lie on one disk, so that three replicas write three times as many bytes to it. Rows are
appended without Spark: encoding, compressing, staging and the commit, in one process. A fail-over
begins when a writer is killed amid its commit, and ends when another one's commit has returned.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from benchmarks.report import REPLICAS, write_section
from benchmarks.session import scratch
from rich.console import Console
from rich.table import Table

import kafkalog
from kafkalog.streaming.commit.committer import Committer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.synchronize import Event

__all__ = ["main"]

_TOPIC: Final = "t"
_BATCH_ROWS: Final = 250_000
_ROUNDS: Final = 5
_OPTIONS: Final = {"numPartitions": "4", "compression.type": "lz4"}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print a table; with ``--docs`` put it on the page."""
    parser = argparse.ArgumentParser(prog="benchmarks.replicas", description=__doc__)
    parser.add_argument("--docs", type=Path, help="a folder whose benchmarks.md gets the figures")
    parser.add_argument("--quick", action="store_true", help="whether it works, not how fast")
    asked = parser.parse_args(argv)
    rows, rounds = (1000, 1) if asked.quick else (_BATCH_ROWS, _ROUNDS)
    with scratch() as directory:
        found = [
            *(_appends(directory / flush, flush, rows, rounds) for flush in ("os", "commit")),
            _fail_over(directory / "killed", rounds),
        ]
    shown = Table("what", "found", "goal", title="Three replicas on one disk")
    for row in found:
        shown.add_row(*row)
    Console().print(shown)
    if asked.docs:
        write_section(asked.docs, REPLICAS, _section(found))
    return 0


def _nodes(root: Path, count: int) -> str:
    return ";".join(str(root / f"{count}-{node}") for node in range(count))


def _appends(root: Path, flush: str, rows: int, rounds: int) -> tuple[str, str, str]:
    """Append batches to one node and to three in turn, and compare the times."""
    table = _rows(rows)
    times: dict[int, list[float]] = {1: [], 3: []}
    for _ in range(rounds + 1):  # the first one makes the topic, and does not count
        for count, taken in times.items():
            began = time.perf_counter()
            kafkalog.append(
                _nodes(root, count), _TOPIC, table, options={**_OPTIONS, "flush": flush}
            )
            taken.append(time.perf_counter() - began)
    one, three = (statistics.median(taken[1:]) for taken in times.values())
    what = f"append {rows:,} rows, `flush={flush}`: one replica, three, and the share of the rate"
    goal = "at least 0.50" if flush == "os" else ""
    return what, f"{one:.2f} s, {three:.2f} s, {one / three:.2f}", goal


def _rows(count: int) -> pa.Table:
    chance = np.random.default_rng(1)
    letters = chance.integers(97, 123, (count, 100), np.uint8)
    letters[:, 50:] = 97  # half of a value repeats
    values = pa.array(letters.view("S100").ravel().tolist(), pa.binary())
    keys = pa.array([b"%010d" % number for number in range(count)], pa.binary())
    return pa.table({"key": keys, "value": values})


def _fail_over(root: Path, rounds: int) -> tuple[str, str, str]:
    path = _nodes(root, 3)
    table = pa.table({"value": ["x"] * 100})
    kafkalog.append(path, _TOPIC, table, options=_OPTIONS)
    context = multiprocessing.get_context("spawn")
    taken = []
    for _ in range(rounds):
        amid = context.Event()
        writer = context.Process(target=_stop_amid, args=(path, amid))
        writer.start()
        amid.wait()
        began = time.perf_counter()
        os.kill(int(writer.pid or 0), signal.SIGKILL)
        kafkalog.append(path, _TOPIC, table)
        taken.append(time.perf_counter() - began)
        writer.join()
    found = f"{statistics.median(taken):.2f} s ({min(taken):.2f} to {max(taken):.2f})"
    return "a writer is killed amid its commit; another one has committed", found, "below 1 s"


def _stop_amid(path: str, amid: Event) -> None:
    """Append, and stop once the records are in the logs and nothing is published."""

    def stop(*_: object, **__: object) -> None:
        amid.set()
        time.sleep(60)

    Committer._publish = stop  # type: ignore[method-assign]  # noqa: SLF001
    kafkalog.append(path, _TOPIC, pa.table({"value": ["y"] * 100}))


def _section(found: Sequence[tuple[str, str, str]]) -> str:
    rows = "".join(f"| {what} | {value} | {goal} |\n" for what, value, goal in found)
    return (
        "All nodes lie on one disk. `python -m benchmarks.replicas` measures it.\n\n"
        f"| what | found | goal |\n| --- | --- | --- |\n{rows}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
