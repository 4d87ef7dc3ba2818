"""What is in a single file of a partition's folder, as rows of plain values."""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from kafkalog.errors import CorruptRecordError, OptionError
from kafkalog.model import MAX_OFFSET
from kafkalog.streaming.log.files import (
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    parse_base_offset,
)
from kafkalog.streaming.log.index.offset import OffsetIndex
from kafkalog.streaming.log.index.time import TimeIndex
from kafkalog.streaming.log.index.txn import TxnIndex
from kafkalog.streaming.log.log_end import ends_in_zeros
from kafkalog.streaming.log.producer_state import read_snapshot
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.records.batch_rows import BatchDescriber

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa

__all__ = ["dump_file"]

Row = dict[str, Any]

_LOGGER: Final = logging.getLogger("kafkalog.jobs")
_ENTRIES: Final = 8192


def dump_file(path: Path, start: int, count: int | None) -> Iterator[Row]:
    """Yield up to ``count`` rows (None for all) of a segment, an index or a producer snapshot.

    A segment gives a row for each batch whose last offset is not below ``start``. The folder that
    the file lies in, and the other files of the segment, are not looked at.

    Raises:
        OptionError: its name is no such file's.
        CorruptRecordError: bytes that cannot be a batch; rows of those before them were yielded.
        CorruptIndexError: entries that cannot be right.
        CheckpointError: a producer snapshot that cannot be read.
    """
    base_offset = parse_base_offset(path.name, path.suffix)
    rows = _KINDS.get(path.suffix)
    if base_offset is None or rows is None:
        raise OptionError(
            f"{path} is a file, but not one of a partition's folder, which is called such as "
            f"00000000000000000000{LOG} (or {', '.join(kind for kind in _KINDS if kind != LOG)})"
        )
    return islice(rows(path, base_offset, start), count)


def _batches(path: Path, base_offset: int, start: int) -> Iterator[Row]:
    describer, end = BatchDescriber(), 0
    with LogSegment(path.parent, base_offset) as segment:
        try:
            for data, table, position in segment.chunks(0):
                end = position + len(data)
                yield from _plain(
                    describer.feed(
                        *(data, table),
                        file_position=position,
                        path=str(path),
                        start_offset=start,
                        end_offset=MAX_OFFSET,
                    )
                )
        except CorruptRecordError:
            yield from _plain(describer.flush())
            if not ends_in_zeros(segment, end):
                raise
        yield from _plain(describer.flush())
        if end < segment.size:
            zeros = ends_in_zeros(segment, end)
            what = "zeros, as a broker preallocates them" if zeros else "the beginning of a batch"
            rest = segment.size - end
            _LOGGER.warning("%s: after its batches come %d bytes: %s", path, rest, what)


def _plain(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    for rows in batches:
        yield from rows.to_pylist()


def _offsets(path: Path, base_offset: int, _: int) -> Iterator[Row]:
    with OffsetIndex(path, base_offset) as index:
        for first in range(0, len(index), _ENTRIES):
            entries = index.read(first, min(first + _ENTRIES, len(index)))
            for offset, position in entries.tolist():
                yield {"offset": base_offset + offset, "position": position}


def _times(path: Path, base_offset: int, _: int) -> Iterator[Row]:
    with TimeIndex(path, base_offset) as index:
        for first in range(0, len(index), _ENTRIES):
            entries = index.read(first, min(first + _ENTRIES, len(index)))
            for timestamp, offset in entries.tolist():
                yield {"timestamp": timestamp, "offset": base_offset + offset}


def _aborted(path: Path, base_offset: int, _: int) -> Iterator[Row]:
    with TxnIndex(path, base_offset) as index:
        for entry in index:
            yield {
                "producerId": entry.producer_id,
                "firstOffset": entry.first_offset,
                "lastOffset": entry.last_offset,
                "lastStableOffset": entry.last_stable_offset,
            }


def _producers(path: Path, *_: int) -> Iterator[Row]:
    for entry in read_snapshot(path):
        yield {
            "producerId": int(entry["producer_id"]),
            "producerEpoch": int(entry["epoch"]),
            "lastSequence": int(entry["last_sequence"]),
            "lastOffset": int(entry["last_offset"]),
            "offsetDelta": int(entry["offset_delta"]),
            "timestamp": int(entry["timestamp"]),
            "coordinatorEpoch": int(entry["coordinator_epoch"]),
            "transactionFirstOffset": int(entry["txn_first_offset"]),
        }


_KINDS: Final[dict[str, Callable[[Path, int, int], Iterator[Row]]]] = {
    LOG: _batches,
    OFFSET_INDEX: _offsets,
    TIME_INDEX: _times,
    TXN_INDEX: _aborted,
    SNAPSHOT: _producers,
}
