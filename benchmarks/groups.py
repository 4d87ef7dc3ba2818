"""Members of a consumer group: how long a rebalance takes, and what one costs that has no work.

Three processes share 100 partitions. The third one joins two that poll, and leaves them again. A
rebalance ends when the last of them has its share. Then one is left and polls a topic that does not
grow, and after that does something else than poll: both in CPU time of its process.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import time
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from benchmarks.report import GROUPS, write_section
from benchmarks.session import scratch
from rich.console import Console
from rich.table import Table

import kafkalog
from kafkalog.model import many

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_TOPIC: Final = "in"
_MEMBERS: Final = 3
_LONGEST_S: Final = 60
_ROUNDS: Final = 5
_IDLE_S: Final = 20.0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print a table; with ``--docs`` put it on the page."""
    parser = argparse.ArgumentParser(prog="benchmarks.groups", description=__doc__)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--docs", type=Path, help="a folder whose benchmarks.md gets the figures")
    parser.add_argument("--quick", action="store_true", help="whether it works, not how fast")
    asked = parser.parse_args(argv)
    rounds, idle_s = (1, 0.5) if asked.quick else (_ROUNDS, _IDLE_S)
    with scratch() as directory:
        rows = _measured(directory / "log", asked.partitions, rounds, idle_s)
    table = Table(
        "what", "found", "goal", title=f"{_MEMBERS} members, {many(asked.partitions, 'partition')}"
    )
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    if asked.docs:
        write_section(asked.docs, GROUPS, _section(asked.partitions, rows))
    return 0


def _measured(log: Path, partitions: int, rounds: int, idle_s: float) -> list[tuple[str, ...]]:
    numbers = pa.array(range(partitions), pa.int32())
    table = pa.table({"value": ["x"] * partitions, "partition": numbers})
    kafkalog.append(log, _TOPIC, table, options={"numPartitions": partitions})
    context = multiprocessing.get_context("spawn")
    group = _Group(context, log, partitions)
    for _ in range(_MEMBERS - 1):
        group.start()
    group.settled()
    joins, leaves = [], []
    for _ in range(rounds):
        began = group.start()
        joins.append(group.settled() - began)
        began = group.stop()
        leaves.append(group.settled() - began)
    group.stop()
    group.settled()
    polling = group.share_of_a_core("poll", idle_s)
    elsewhere = group.share_of_a_core("rest", idle_s)
    group.stop()
    return [
        ("a third member joins", _seconds(joins), "below 1 s"),
        ("it leaves", _seconds(leaves), "below 1 s"),
        ("a member that waits in poll", f"{polling:.2%} of a core", "below 1 %"),
        ("a member whose program does something else", f"{elsewhere:.2%} of a core", "below 1 %"),
    ]


def _seconds(found: list[float]) -> str:
    return f"{statistics.median(found):.2f} s ({min(found):.2f} to {max(found):.2f})"


class _Group:
    """The members' processes, and what they say: ``(name, what, moment, number)``."""

    def __init__(self, context: Any, log: Path, partitions: int) -> None:  # noqa: ANN401
        self._context = context
        self._log = str(log)
        self._partitions = partitions
        self._said = context.Queue()
        self._members: dict[int, tuple[Any, Any]] = {}
        self._shares: dict[int, int] = {}
        self._names = itertools.count()

    def start(self) -> float:
        """Start a member; return when it first asked for its share."""
        name, orders = next(self._names), self._context.Queue()
        process = self._context.Process(target=_member, args=(self._log, name, orders, self._said))
        process.start()
        self._members[name] = process, orders
        return self._wait_for("begins")[0]

    def stop(self) -> float:
        """Let the last member leave; return when it began to."""
        name = max(self._members)
        process, orders = self._members.pop(name)
        self._shares.pop(name, None)
        orders.put("leave")
        moment, _ = self._wait_for("leaves")
        process.join(_LONGEST_S)
        return moment

    def settled(self) -> float:
        """Wait until all members have an equal share of all; return when the last one had it."""
        last = 0.0
        least, most = (
            self._partitions // len(self._members),
            -(-self._partitions // len(self._members)),
        )
        while True:
            shares = [self._shares.get(name, 0) for name in self._members]
            if sum(shares) == self._partitions and least <= min(shares) <= max(shares) <= most:
                return last
            name, what, moment, number = self._said.get(timeout=_LONGEST_S)
            if what == "has" and name in self._members:
                self._shares[name], last = number, moment

    def share_of_a_core(self, what: str, seconds: float) -> float:
        """Return the CPU time that the only member takes for a second of time."""
        ((_, orders),) = self._members.values()
        orders.put((what, seconds))
        _, taken = self._wait_for("took")
        return float(taken) / seconds

    def _wait_for(self, wanted: str) -> tuple[float, float]:
        while True:
            name, what, moment, number = self._said.get(timeout=_LONGEST_S)
            if what == wanted:
                return moment, number
            if what == "has":
                self._shares[name] = number


def _member(log: str, name: int, orders: Any, said: Any) -> None:  # noqa: ANN401
    """Poll and commit until it is told to leave; say how many partitions it has."""
    options = {"startingOffsets": "earliest"}
    with kafkalog.Consumer(log, "group", _TOPIC, options=options) as consumer:
        said.put((name, "begins", time.monotonic(), 0))
        before = -1
        while True:
            if consumer.poll(0.05) is not None:
                consumer.commit()
            if len(consumer.assignment) != before:
                before = len(consumer.assignment)
                said.put((name, "has", time.monotonic(), before))
            try:
                order = orders.get_nowait()
            except Empty:
                continue
            if order == "leave":
                break
            what, seconds = order
            taken = time.process_time()
            (consumer.poll if what == "poll" else time.sleep)(seconds)
            said.put((name, "took", time.monotonic(), time.process_time() - taken))
        said.put((name, "leaves", time.monotonic(), 0))


def _section(partitions: int, rows: list[tuple[str, ...]]) -> str:
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return (
        f"Three processes share a topic of {many(partitions, 'partition')}; median and "
        f"range of {_ROUNDS} times, and CPU time over {_IDLE_S:.0f} s "
        "(`python -m benchmarks.groups`).\n\n"
        f"| what | found | goal |\n| --- | --- | --- |\n{lines}\n"
    )


if __name__ == "__main__":
    raise SystemExit(main())
