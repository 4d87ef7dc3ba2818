"""What is committed, split by split, as it comes: a stream without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.files.system import system
from kafkalog.streaming.arguments import seconds
from kafkalog.streaming.source.damage import naming_way_out
from kafkalog.streaming.source.stream_control import StreamControl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.source.plan.planner import LogSplit
    from kafkalog.streaming.source.read_options import ReadOptions

__all__ = ["new_splits"]


def new_splits(options: ReadOptions, idle_timeout: float | None) -> Iterator[LogSplit]:
    """Plan what is committed, as it comes; each split has been read when the next is asked for."""
    idle_s = None if idle_timeout is None else seconds("idle_timeout", idle_timeout)
    control = StreamControl(options)
    with naming_way_out(options):
        position = control.initial()
    last_seen = system.monotonic()
    while True:
        with naming_way_out(options):
            end = control.next_end(position, take_all=True)
            splits = control.plan(position, end) if end != position else ()
        if end != position:
            yield from splits
            position, last_seen = end, system.monotonic()
        elif idle_s is not None and system.monotonic() - last_seen >= idle_s:
            return
