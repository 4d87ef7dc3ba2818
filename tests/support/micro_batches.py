"""What Spark's engine does with a streaming source, without Spark: offsets, restarts, replays."""

from __future__ import annotations

import json
import time
import uuid
from typing import TYPE_CHECKING

import pyarrow as pa

from kafkalog.checkpoints.query_checkpoint import last_batch
from kafkalog.errors import CommitError
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.offsets import from_json, to_json
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema, source_schema
from kafkalog.streaming.source.stream_control import StreamControl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kafkalog.streaming.source.offsets import PartitionOffsets

__all__ = ["NO_ROWS", "CheckpointedQuery", "Engine"]

Place = tuple[str, int, int]
"""Topic, partition and offset of a row."""

_ROWS = RowSchema.of(source_schema(include_headers=False))
_MOST_BATCHES = 1000

NO_ROWS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)
"""The columns of a micro-batch of which no row was read."""


class Engine:
    """One query with its checkpoint: the ends of its micro-batches, and the rows of each."""

    def __init__(self, path: Path, **options: str) -> None:
        self.options = ReadOptions.parse({"path": str(path), **options})
        self.batches: list[list[Place]] = []
        self._ends: list[str] = []

    @property
    def places(self) -> list[Place]:
        """The rows of all micro-batches, in order."""
        return sorted(place for rows in self.batches for place in rows)

    def run(self, *, failing: int | None = None) -> list[list[Place]]:
        """Read what there is, as a run with ``Trigger.AvailableNow``; give its micro-batches.

        A micro-batch of the number ``failing`` is planned, logged and not done.
        """
        before = len(self.batches)
        control = StreamControl(self.options)
        control.freeze_targets()
        start = self._start(control)
        for _ in range(_MOST_BATCHES):
            if len(self._ends) > len(self.batches):  # logged, and not done: again, without a look
                end = from_json(json.loads(self._ends[-1]))
            else:
                end = control.next_end(start, take_all=False)
                if self._ends and _text(end) == self._ends[-1]:
                    return self.batches[before:]
                self._ends.append(_text(end))
                if failing == len(self.batches):
                    return self.batches[before:]
            self._do(control, start, end)
            start = end
        raise AssertionError(f"no end after {_MOST_BATCHES} micro-batches")

    def _start(self, control: StreamControl) -> PartitionOffsets:
        done = self._ends[: len(self.batches)]
        return from_json(json.loads(done[-1])) if done else control.initial()

    def _do(self, control: StreamControl, start: PartitionOffsets, end: PartitionOffsets) -> None:
        rows: list[Place] = []
        for split in control.plan(start, end):
            for batch in read_split(split, self.options, _ROWS):
                names = ("topic", "partition", "offset")
                rows += zip(*(batch.column(name).to_pylist() for name in names), strict=True)
        self.batches.append(sorted(rows))


def _text(offsets: PartitionOffsets) -> str:
    return json.dumps(to_json(offsets))


class CheckpointedQuery:
    """One query whose checkpoint is on the disk, as Spark keeps it.

    ``take`` gets each micro-batch: what reads its rows, which are planned and not read yet, and its
    number. ``step`` is called between any two things that it does, with their name: it may raise.
    """

    def __init__(
        self,
        folder: Path,
        options: Mapping[str, str],
        take: Callable[[Callable[[], pa.Table], int], None],
        step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.folder = folder
        self.options = ReadOptions.parse(options)
        self._take = take
        self._step = step

    def run(self) -> None:
        """Read what there is, as a run with ``Trigger.AvailableNow``."""
        control = StreamControl(self.options)
        control.freeze_targets()
        self.note_query()
        planned, done = last_batch(self.folder / "offsets"), last_batch(self.folder / "commits")
        number = -1 if planned is None else planned
        again = planned is not None and planned != done
        start = self._end(number - again) if number - again >= 0 else control.initial()
        for _ in range(_MOST_BATCHES):
            if again:
                end = self._end(number)
            else:
                end = control.next_end(start, take_all=False)
                if number >= 0 and end == start:
                    return
                number += 1
                of = json.dumps({"batchTimestampMs": time.time_ns()})  # two are never alike
                self._write("offsets", number, f"v1\n{of}\n{_text(end)}\n")
                self._step(f"batch {number} planned")
            self._do(control, start, end, number)
            self._step(f"batch {number} taken")
            self._write("commits", number, "v1\n{}")
            self._step(f"batch {number} committed")
            start, again = end, False
        raise AssertionError(f"no end after {_MOST_BATCHES} micro-batches")

    def note_query(self) -> str:
        """Give the query an id, unless it has one; return it."""
        path = self.folder / "metadata"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"id": str(uuid.uuid4())}))
        return str(json.loads(path.read_text())["id"])

    def _do(
        self, control: StreamControl, start: PartitionOffsets, end: PartitionOffsets, number: int
    ) -> None:
        rows = RowSchema.of(source_schema(include_headers=self.options.include_headers))
        splits = control.plan(start, end)
        self._step(f"batch {number} split")

        def read() -> pa.Table:
            found = [each for split in splits for each in read_split(split, self.options, rows)]
            self._step(f"batch {number} read")
            return pa.Table.from_batches(found, None if found else NO_ROWS)

        self._take(read, number)

    def _end(self, number: int) -> PartitionOffsets:
        text = (self.folder / "offsets" / str(number)).read_text().splitlines()[2]
        return from_json(json.loads(text))

    def _write(self, log: str, number: int, text: str) -> None:
        """Note it, unless another run has.

        Raises:
            CommitError: one has, as where two share a checkpoint.
        """
        (self.folder / log).mkdir(parents=True, exist_ok=True)
        try:
            with (self.folder / log / str(number)).open("x") as file:
                file.write(text)
        except FileExistsError:
            raise CommitError(f"Spark: concurrent update to {log}/{number}") from None
