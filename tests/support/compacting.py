"""Logs that are compacted in place: written as Spark would, read as a query does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.sinking import Writer, rows

from kafkalog.files.system import system
from kafkalog.streaming.admin.compaction import Wanted, compact
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.store.ends.tracker import LogEndTracker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.admin.compaction import Compacted

__all__ = ["FORCED", "compacted", "latest", "read", "updates", "writer"]

FORCED = Wanted(forces=True)


def writer(log: Path, *, topic: str = "t", **options: str) -> Writer:
    """Make a query that writes to a compacted topic, a small segment for each batch."""
    given = {"cleanup__policy": "compact", "segment__bytes": "100"} | options
    return Writer(log, topic=topic, name=topic, **given)


def updates(
    into: Writer, batches: Iterable[Mapping[str, str | None]], *, first: int = 0, partition: int = 0
) -> None:
    """Write each of the mappings as a batch of its own."""
    for number, values in enumerate(batches, start=first):
        count = len(values)
        batch = rows(
            values.values(),
            keys=[*values],
            partitions=[partition] * count,
            timestamps=[system.time_ns() // 1_000_000] * count,
        )
        into.write(number, batch)


def compacted(log: Path, wanted: Wanted = FORCED, **named: Any) -> Compacted:
    """Compact, and see that nothing went wrong."""
    done = compact([str(log)], wanted, **named)
    assert done.problems == []
    return done


def read(log: Path, key: TopicPartition) -> dict[int, tuple[str, str | None]]:
    """Read what a query sees: key and value by offset."""
    watch = LogEndTracker([str(log)])
    end = watch.look().offsets[key]
    decoder = RecordDecoder(Columns.KEY | Columns.VALUE | Columns.OFFSET)
    found: dict[int, tuple[str, str | None]] = {}
    with watch.open(key) as opened:
        for part in opened.slices(opened.log_start_offset, end):
            for batch in opened.read_slice(part, decoder, committed_end=end):
                for row in batch.to_pylist():
                    assert not found or row["offset"] > max(found)
                    value = None if row["value"] is None else row["value"].decode()
                    found[row["offset"]] = (row["key"].decode(), value)
    return found


def latest(found: Mapping[int, tuple[str, str | None]]) -> dict[str, str | None]:
    """Give the last value of each key."""
    return dict(found[offset] for offset in sorted(found))
