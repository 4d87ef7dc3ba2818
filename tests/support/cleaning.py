"""Logs to be cleaned, written batch by batch, cleaned with a swap that nobody disturbs, read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from tests.support.record_batches import record_of, varint

from kafkalog.streaming.log.compaction.cleanable import Cleanable, find_cleanable
from kafkalog.streaming.log.compaction.cleaner import CleanedLog, clean_log
from kafkalog.streaming.log.compaction.offset_map import OffsetMap
from kafkalog.streaming.log.compaction.transactions import LastRecords
from kafkalog.streaming.log.segments import LogSegments
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.records.batch_layout import seal_batch
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.records.compression import Codec, compress
from kafkalog.streaming.records.control import as_data_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

__all__ = ["ABORT", "COMMIT", "NOW", "CleanableLog", "Found", "batch", "keyed", "marker"]

ABORT, COMMIT = 0, 1
NOW = 1_700_000_000_000
_KEPT = Columns.KEY | Columns.VALUE | Columns.OFFSET | Columns.TIMESTAMP_MS | Columns.HEADERS


class Found(NamedTuple):
    """A batch as it lies in a log; records are (offset, key, value, timestamp)."""

    base_offset: int
    last_offset: int
    producer: int
    epoch: int
    sequence: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    records: tuple[tuple[int, bytes | None, bytes | None, int], ...]

    @property
    def horizon(self) -> int | None:
        return self.base_timestamp if self.attributes & 0x40 else None


def keyed(key: bytes | None, value: bytes | None, headers: bytes = b"\0") -> bytes:
    """Encode a record's fields from the length of the key on."""
    parts = [varint(-1) if one is None else varint(len(one)) + one for one in (key, value)]
    return b"".join(parts) + headers


def batch(
    base_offset: int,
    rows: Sequence[tuple[bytes | None, bytes | None]],
    *,
    deltas: Sequence[int] = (),
    times: Sequence[int] = (),
    codec: Codec = Codec.NONE,
    attributes: int = 0,
    **fields: int,
) -> bytes:
    """Encode a batch of (key, value); ``fields`` are those of ``seal_batch``."""
    deltas = deltas or range(len(rows))
    times = times or [NOW] * len(rows)
    base = fields.pop("base_timestamp", times[0] if times else -1)
    records = b"".join(
        record_of(keyed(*row), timestamp_delta=time - base, offset_delta=delta)
        for row, delta, time in zip(rows, deltas, times, strict=True)
    )
    return seal_batch(
        [compress(codec, records)] if rows else [],
        **{
            "base_offset": base_offset,
            "leader_epoch": 3,
            "attributes": attributes | codec,
            "last_offset_delta": deltas[-1] if deltas else 0,
            "base_timestamp": base,
            "max_timestamp": max(times, default=-1),
            "producer_id": -1,
            "producer_epoch": -1,
            "base_sequence": -1,
            "count": len(rows),
            **fields,
        },
    )


def marker(offset: int, producer: int, kind: int, *, epoch: int = 0, time: int = NOW) -> bytes:
    """Encode a control batch."""
    key, value = b"\0\0\0" + bytes([kind]), b"\0\0\0\0\0\5"
    return batch(
        offset,
        [(key, value)],
        times=[time],
        attributes=0x30,
        producer_id=producer,
        producer_epoch=epoch,
    )


@dataclass
class CleanableLog:
    """A partition's folder, and what its cleaner knows."""

    folder: Path
    config: dict[str, str] = field(default_factory=dict)
    clean_to: int | None = None
    now: int = NOW
    memory: int = 24 * 1000
    high_watermark: int = 1 << 62
    log_start: int | None = None
    """None where the first segment begins."""
    rounds: int = 0

    def write(self, *segments: Iterable[bytes]) -> None:
        """Write segments, each from its batches, the first of which names it."""
        self.folder.mkdir(exist_ok=True, parents=True)
        for batches in segments:
            data = b"".join(batches)
            base = int.from_bytes(data[:8], "big")
            (self.folder / f"{base:020d}.log").write_bytes(data)

    def cleanable(self, **changes: Any) -> Cleanable:
        """Look what can be cleaned."""
        end = self.end()
        arguments: dict[str, Any] = {
            "clean_to": self.clean_to,
            "log_start": self.bases()[0] if self.log_start is None else self.log_start,
            "log_end": end,
            "high_watermark": min(end, self.high_watermark),
            "now_ms": self.now,
        }
        found = find_cleanable(
            self.folder, LogConfig.from_mapping(self.config), **arguments | changes
        )
        assert found is not None
        return found

    def end(self) -> int:
        """Return the log end offset."""
        active = LogSegments.of(self.folder)[-1]
        with active:
            ends = [int(chunk.table.last_offset[-1]) + 1 for chunk in active.chunks(0)]
        return max([*ends, active.base_offset])

    def clean(self, *, expiration_ms: int = 1 << 60) -> CleanedLog:
        """Clean once, and put the result in place."""
        self.rounds += 1
        output = self.folder.parent / f"{self.folder.name}-cleaned-{self.rounds}"
        output.mkdir()
        result = clean_log(
            self.folder,
            output,
            self.cleanable(),
            LogConfig.from_mapping(self.config),
            offsets=OffsetMap(self.memory),
            last_records=LastRecords.read(
                self.folder, end_offset=self.end(), now_ms=self.now, expiration_ms=expiration_ms
            ),
            now_ms=self.now,
        )
        for group in result.groups:
            for source in group.sources:
                for path in self.folder.glob(f"{source.base_offset:020d}.*"):
                    if path.suffix != ".snapshot":
                        path.unlink()
            for segment in group.segments:
                for path in segment.files:
                    path.rename(self.folder / path.name)
        output.rmdir()
        self.clean_to = result.clean_to
        return result

    def bases(self) -> list[int]:
        """Return the base offsets of the segments."""
        return [segment.base_offset for segment in LogSegments.of(self.folder)]

    def batches(self) -> list[Found]:
        """Read all batches, markers too."""
        return [found for segment in LogSegments.of(self.folder) for found in _read(segment)]

    def records(self) -> dict[int, tuple[bytes | None, bytes | None]]:
        """Read the records that are no markers, by offset."""
        return {
            offset: (key, value)
            for found in self.batches()
            if not found.attributes & 0x20
            for offset, key, value, _ in found.records
        }

    def keys(self) -> list[bytes | None]:
        """Read the keys of those."""
        return [key for key, _ in self.records().values()]


def _read(segment: Any) -> Iterable[Found]:
    with segment:
        for chunk in segment.chunks(0):
            for row in range(len(chunk.table)):
                one = chunk.table[row : row + 1]
                rows = [
                    tuple(record[name] for name in ("offset", "key", "value", "timestampMs"))
                    for part in RecordDecoder(_KEPT).decode(
                        chunk.data, as_data_batches(one), file_position=chunk.file_position
                    )
                    for record in part.to_pylist()
                ]
                facts = (one.base_offset, one.last_offset, one.producer_id, one.producer_epoch)
                more = (one.base_sequence, one.attributes, one.base_timestamp, one.max_timestamp)
                numbers = [int(np.asarray(column)[0]) for column in (*facts, *more)]
                yield Found(*numbers, tuple(rows))  # type: ignore[arg-type]
