"""What is committed, as it comes: a stream without Spark, in splits or in rows."""

from __future__ import annotations

import logging
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from kafkalog.files.shield import shielded_step
from kafkalog.files.system import system
from kafkalog.streaming.arguments import seconds
from kafkalog.streaming.border import crosses_border
from kafkalog.streaming.source.damage import naming_way_out
from kafkalog.streaming.source.reading import LARGE_BATCHES, read_split
from kafkalog.streaming.source.stream_control import StreamControl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from kafkalog.streaming.schema import RowSchema
    from kafkalog.streaming.source.offsets import PartitionOffsets
    from kafkalog.streaming.source.plan.planner import LogSplit
    from kafkalog.streaming.source.read_options import ReadOptions
    from kafkalog.streaming.source.read_rows import ReadRows

__all__ = ["NewRows", "new_splits"]

_LOGGER: Final = logging.getLogger("kafkalog.source")


class _NewSplits:
    """Plans what is committed, as it comes."""

    def __init__(self, options: ReadOptions, idle_timeout: float | None) -> None:
        _warn_of_limits(options)
        self._options = options
        self._idle_s = None if idle_timeout is None else seconds("idle_timeout", idle_timeout)
        self._control = StreamControl(options)
        self._position: PartitionOffsets | None = None
        self._last_seen = 0.0

    def next(self) -> list[LogSplit] | None:
        """Plan what has come, if anything has; None once nothing came for the idle time."""
        with naming_way_out(self._options):
            if self._position is None:
                self._position = self._control.initial()
                self._last_seen = system.monotonic()
            position = self._position
            end = self._control.next_end(position, take_all=True)
            splits = self._control.plan(position, end) if end != position else []
        if end != position:
            self._position, self._last_seen = end, system.monotonic()
            return splits
        if self._idle_s is not None and system.monotonic() - self._last_seen >= self._idle_s:
            return None
        return []

    def was_read(self) -> None:
        """Count the idle time from now on: a split was read."""
        self._last_seen = system.monotonic()


def _warn_of_limits(options: ReadOptions) -> None:
    limits = {
        "minOffsetsPerTrigger": options.min_offsets_per_trigger,
        "maxOffsetsPerTrigger": options.max_offsets_per_trigger,
        "maxBytesPerTrigger": options.max_bytes_per_trigger,
    }
    if given := [name for name, value in limits.items() if value is not None]:
        _LOGGER.warning(
            "%s: no effect here, where there are no micro-batches: rows are given as soon as they "
            "are committed",
            ", ".join(given),
        )


def new_splits(options: ReadOptions, idle_timeout: float | None) -> Iterator[LogSplit]:
    """Plan what is committed, as it comes; each split has been read when the next is asked for."""
    new = _NewSplits(options, idle_timeout)
    while (splits := new.next()) is not None:
        for split in splits:
            yield split
            new.was_read()


class _Ready(NamedTuple):
    """Rows to hand out, and the offset after them; None where a view makes them."""

    batch: pa.RecordBatch
    next_offset: int | None


class NewRows:
    """The rows of what is committed, as it comes: an iterator that no interrupt ends.

    What it does is done in shielded threads. Rows wait until they were handed out. Where an error
    or an interrupt has cut off the reading of a split, it is read on behind the rows that were.
    """

    def __init__(
        self, open_rows: Callable[[], tuple[ReadOptions, ReadRows]], idle_timeout: float | None
    ) -> None:
        """Take what checks the options, when rows are asked for first, and when to end."""
        self._open_rows = open_rows
        self._idle_timeout = idle_timeout
        self._opened: tuple[ReadOptions, ReadRows, RowSchema | None, _NewSplits] | None = None
        self._splits: deque[LogSplit] = deque()
        self._batches: Iterator[pa.RecordBatch] | None = None
        """Of the first split, from where it was handed out up to."""
        self._begin_split()
        self._ready: _Ready | None = None
        """Rows that were not handed out, as far as is known."""
        self._handed: _Ready | None = None
        """The rows that were handed out last."""
        self._is_over = False

    def _begin_split(self) -> None:
        self._next_offset: int | None = None
        self._batches_handed = 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        ready = self._next()
        if ready is None:
            raise StopIteration
        batch = ready.batch
        self._handed = ready  # Python looks for no signal between this and the caller
        return batch

    @crosses_border
    def _next(self) -> _Ready | None:
        while self._ready is None or self._ready is self._handed:
            if self._is_over:
                return None
            self._advance()
        return self._ready

    @shielded_step
    def _advance(self) -> None:
        """Read or plan what comes next, or rest for a moment."""
        if self._handed is not None:
            self._next_offset = self._handed.next_offset
            self._batches_handed += 1
            self._ready = self._handed = None
        if self._opened is None:
            options, rows = self._open_rows()
            new = _NewSplits(options, self._idle_timeout)
            self._opened = options, rows, rows.with_offset(), new
        options, rows, read, new = self._opened
        if self._splits:
            self._ready = self._read(options, rows, read)
            if self._ready is None:
                self._batches = None
                self._begin_split()
                self._splits.popleft()
                new.was_read()
        else:
            splits = new.next()
            self._is_over = splits is None
            self._splits.extend(splits or ())

    def _read(self, options: ReadOptions, rows: ReadRows, read: RowSchema | None) -> _Ready | None:
        """Read the next rows of the first split; None if there are no more."""
        batches, self._batches = self._batches, None  # an error or an interrupt ends it
        if batches is None:
            split = self._splits[0]
            if self._next_offset is not None:
                split = split.from_offset(self._next_offset)
            batches = read_split(split, options, read, size=LARGE_BATCHES)
            if self._next_offset is None:
                batches = islice(batches, self._batches_handed, None)
        for batch in batches:
            if not batch.num_rows:
                continue
            self._batches = batches
            offset = None if read is None else batch.column("offset")[-1].as_py() + 1
            return _Ready(rows.chosen(batch), offset)
        return None
