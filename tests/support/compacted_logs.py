"""What a cleaner has left of a log, as values that can be compared, and what all of it shows."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkalog.streaming.log.files import TXN_INDEX
from kafkalog.streaming.log.indexes import TXN_ENTRY
from kafkalog.streaming.log.segments import LogSegments
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.records.control import as_data_batches

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Batch", "Contents", "at_horizons", "contents", "signs"]

_HORIZON = 0x40
_COLUMNS = Columns.KEY | Columns.VALUE | Columns.OFFSET | Columns.TIMESTAMP_MS | Columns.HEADERS


class Batch(NamedTuple):
    """A batch's header; sizes and checksums are those of whoever compressed it."""

    magic: int
    base_offset: int
    last_offset: int
    count: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    leader_epoch: int

    @property
    def horizon(self) -> int | None:
        """The delete horizon, ms; None where there is none."""
        has = self.magic == 2 and self.attributes & _HORIZON
        return self.base_timestamp if has else None


class Contents(NamedTuple):
    """All of a partition's folder that a cleaner decides."""

    segments: list[tuple[int, int]]
    """Base offset, and time of change in ms."""
    aborted: bytes
    """The indexes of aborted transactions, one after the other."""
    batches: list[Batch]
    records: list[dict[str, Any]]
    """Those of markers too."""

    @property
    def is_uncompressed(self) -> bool:
        """Whether sizes depend on no codec."""
        return all(batch.attributes & 7 == 0 for batch in self.batches)


def contents(folder: Path) -> Contents:
    """Read a partition's folder."""
    segments, batches, records, aborted = [], [], [], b""
    for segment in LogSegments.of(folder):
        with segment:
            changed = segment.path.stat().st_mtime_ns // 1_000_000
            segments.append((segment.base_offset, changed))
            index = segment.file(TXN_INDEX)
            aborted += index.read_bytes() if index.exists() else b""
            for chunk in segment.chunks(0):
                table = chunk.table
                columns = [getattr(table, name).tolist() for name in Batch._fields]
                batches.extend(Batch(*row) for row in zip(*columns, strict=True))
                decoder = RecordDecoder(_COLUMNS)
                for part in decoder.decode(
                    chunk.data, as_data_batches(table), file_position=chunk.file_position
                ):
                    records.extend(part.to_pylist())
    return Contents(segments, aborted, batches, records)


def at_horizons(
    batches: Iterable[Batch], retention_ms: int, times: Iterable[tuple[int, int]]
) -> list[Batch]:
    """Put the number of the round in the place of a delete horizon, which tells its time.

    ``times`` are when the rounds began and ended at the latest, in ms.
    """
    rounds = [(begin + retention_ms, end + retention_ms) for begin, end in times]
    found = []
    for batch in batches:
        horizon = batch.horizon
        if horizon is None:
            found.append(batch)
            continue
        number = [n for n, (begin, end) in enumerate(rounds) if begin <= horizon <= end]
        assert number, f"{batch}: no round was at this horizon: {rounds}"
        found.append(batch._replace(base_timestamp=number[0]))
    return found


def signs(found: Iterable[Contents]) -> Counter[str]:
    """Count what shows that cleaners had something to decide."""
    counted: Counter[str] = Counter()
    for log in found:
        for batch in log.batches:
            span = batch.last_offset - batch.base_offset + 1
            kind = "markers" if batch.attributes & 0x20 else "batches"
            counted[f"{kind} that are empty"] += batch.count == 0
            counted[f"{kind} with a horizon"] += batch.horizon is not None
            counted["batches with less records"] += 0 < batch.count < span
            counted["batches that are whole"] += 1 < batch.count == span
            counted[f"codec {batch.attributes & 7}"] += 1
        counted["tombstones"] += sum(record["value"] is None for record in log.records)
        counted["headers"] += sum(record["headers"] is not None for record in log.records)
        counted["aborted transactions"] += len(log.aborted) // TXN_ENTRY.itemsize
    return counted
