"""Rebuild a partition's sparse indexes from its log, on request.

Readers do without indexes, and appending corrects those of the active segment. This is for the
other segments: of a copy without indexes, or with indexes of another moment, and of a damaged disk.
The indexes become what Kafka 4.1's recovery makes of the same batches. Indexes of aborted
transactions and producer snapshots are not touched: without them, readers look into the log.

Source: Kafka ``LogSegment.recover``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.files.atomic import write_atomically
from kafkalog.files.regular import read_regular
from kafkalog.streaming.log.append.growth import index_segment
from kafkalog.streaming.log.files import OFFSET_INDEX, TIME_INDEX
from kafkalog.streaming.log.log_end import ValidBatches
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segment_files import list_base_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kafkalog.errors import CorruptRecordError
    from kafkalog.streaming.records.batch import BatchTable

__all__ = ["RebuiltSegment", "build_indexes", "rebuild_partition"]


_MAX_BYTES: Final = 1 << 30


class RebuiltSegment(NamedTuple):
    """What was done about the indexes of the segment in ``log``."""

    log: Path
    replaced: tuple[Path, ...]
    """The indexes that held something else, or were missing."""
    problem: CorruptRecordError | None
    """What ends the valid batches before the end of the file, if anything does."""


def rebuild_partition(
    directory: Path, *, index_interval_bytes: int = 4096, fsync: bool = True
) -> list[RebuiltSegment]:
    """Rebuild the offset and time indexes of a partition's segments; each is replaced by a rename.

    The caller makes sure that nobody writes there meanwhile. A rebuilt index would end at damage.
    An existing one stays then, since it may lead readers beyond the damage.

    Raises:
        UnknownTopicOrPartitionError: the folder is gone.
        LogDirectoryError: a link, FIFO or device has the name of a segment or an index.
    """
    bases = list_base_offsets(directory)
    return [_rebuild(directory, base, index_interval_bytes, fsync=fsync) for base in bases]


def build_indexes(
    segment: LogSegment, batches: Iterable[BatchTable], index_interval_bytes: int
) -> dict[Path, bytes]:
    """Return what the sparse indexes of a segment with these batches should hold, by path."""
    built = index_segment(segment.base_offset, batches, index_interval_bytes)
    return {
        segment.file(OFFSET_INDEX): built.index_entries,
        segment.file(TIME_INDEX): built.time_index_entries,
    }


def _rebuild(
    directory: Path, base_offset: int, index_interval_bytes: int, *, fsync: bool
) -> RebuiltSegment:
    with LogSegment(directory, base_offset) as segment:
        batches = ValidBatches(segment)
        called_for = build_indexes(segment, batches, index_interval_bytes)
        problem, replaced = batches.end.problem, []
        for path, entries in called_for.items():
            present = _content(path)
            stays = present is not None and problem is not None
            if present != entries and not stays:
                write_atomically(path, entries, fsync=fsync)
                replaced.append(path)
        return RebuiltSegment(segment.path, tuple(replaced), problem)


def _content(path: Path) -> bytes | None:
    """Return what an index holds; None if there is none, b"" of one that no segment calls for."""
    try:
        return b"" if path.stat().st_size > _MAX_BYTES else read_regular(path, limit=_MAX_BYTES)
    except FileNotFoundError:
        return None
