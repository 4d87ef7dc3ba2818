"""Queries in processes of their own that are killed at any moment, and readers that watch them.

A query keeps its place as Spark does: it notes the batch that it is about to write before it writes
it, and when it starts again it writes the noted batch again.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.support.sinking import Writer, rows

from kafkalog.files.storage import RemoteRoot
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.source.end_offsets import EndOffsets

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import pyarrow as pa

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.partition_log import PartitionLog

__all__ = ["Follower", "Query", "rows_of", "start", "wait_for"]

_SECONDS = 300


@dataclass(frozen=True)
class Query:
    """A query named ``name`` that writes batches 0 to ``batches`` of two tasks, then ends."""

    name: str
    directories: tuple[Path, ...]
    options: dict[str, str]
    topics: tuple[str, ...]
    batches: int
    rows: int
    noted: Path

    def run(self, run_id: str) -> None:
        """Write what is left to write."""
        writer = Writer(*self.directories, name=self.name, run=run_id, **self.options)
        first = int(self.noted.read_text()) if self.noted.exists() else 0
        for batch_id in range(first, self.batches):
            scratch = self.noted.with_suffix(".tmp")
            scratch.write_text(str(batch_id))
            scratch.replace(self.noted)
            writer.write(batch_id, *self._tasks(batch_id), digest=f"digest of {batch_id}")

    def _tasks(self, batch_id: int) -> list[pa.RecordBatch]:
        return [
            rows(
                [f"{self.name}/{batch_id}/{task}/{number}" for number in range(self.rows)],
                keys=[f"{self.name} {number % 5}" for number in range(self.rows)],
                topics=[self.topics[n % len(self.topics)] for n in range(self.rows)],
            )
            for task in range(2)
        ]

    def expected(self) -> Counter[str]:
        """Return all values that it is to have written, once each."""
        return Counter(rows_of(self.name, range(self.batches), self.rows))


def rows_of(name: str, batches: Iterable[int], count: int) -> list[str]:
    """Return the values of some batches of a query."""
    return [f"{name}/{b}/{task}/{n}" for b in batches for task in range(2) for n in range(count)]


class Follower:
    """A tailing reader: each look must give whole batches, in order, each row once.

    ``rows`` are those of a task.
    """

    def __init__(
        self, directories: Sequence[Path | RemoteRoot], topics: Sequence[str], rows: int
    ) -> None:
        self._rows = rows
        places = [each if isinstance(each, RemoteRoot) else str(each) for each in directories]
        self._tail = EndOffsets(places, lambda key: key.topic in topics)
        self._decoder = RecordDecoder(Columns.VALUE | Columns.OFFSET)
        self._positions: dict[TopicPartition, int] = {}
        self._last: dict[tuple[TopicPartition, str], tuple[int, ...]] = {}
        self.seen: Counter[str] = Counter()

    def look(self) -> None:
        """Read what is new, and check it."""
        found: list[str] = []
        for key, end in self._tail.look().offsets.items():
            start = self._positions.get(key, 0)
            with self._tail.open(key) as log:
                values = _read(log, start, end, self._decoder)
            self._check_order(key, values)
            found += values
            self._positions[key] = end
        self.seen.update(found)
        assert max(self.seen.values(), default=1) == 1, "a row was read twice"
        batches = {(value.split("/")[0], int(value.split("/")[1])) for value in found}
        whole = [row for name, batch in batches for row in rows_of(name, [batch], self._rows)]
        assert Counter(found) == Counter(whole), "a part of a batch was read"

    def _check_order(self, key: TopicPartition, values: Iterable[str]) -> None:
        for value in values:
            name, *place = value.split("/")
            order = tuple(map(int, place))
            assert order > self._last.get((key, name), ()), f"{key}: {value} is out of order"
            self._last[key, name] = order


def _read(log: PartitionLog, start: int, end: int, decoder: RecordDecoder) -> list[str]:
    values: list[str] = []
    offsets: list[int] = []
    for part in log.slices(start, end):
        for batch in log.read_slice(part, decoder, committed_end=end):
            values += [value.decode() for value in batch.column("value").to_pylist()]
            offsets += batch.column("offset").to_pylist()
    assert offsets == list(range(start, end))
    return values


def start(action: Callable[[], object]) -> int:
    """Run ``action`` in a forked process; give its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        action()
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it is, the child must not go on as the parent
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait_for(child: int, chance: random.Random, longest: float) -> bool:
    """Kill a process after some random time; give whether it had come to its end before."""
    time.sleep(chance.uniform(0, longest))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    assert os.WEXITSTATUS(status) == 0, "the process failed, see its traceback above"
    return True
