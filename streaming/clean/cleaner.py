"""One round of compaction: what a partition's segments become, written beside them.

Nothing in the partition's folder changes. The caller replaces segments, and repeats the round where
the map of offsets was full before all of the dirty part was in it.

Source: Kafka ``Cleaner.doClean``, ``Cleaner.cleanSegments``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kafkalog.streaming.clean.batch_filter import BatchFilter, FilterRules
from kafkalog.streaming.clean.checked import checked_chunks
from kafkalog.streaming.clean.cleanable import segments_between
from kafkalog.streaming.clean.grouping import SourceSegment, group_segments
from kafkalog.streaming.clean.map_building import build_offset_map
from kafkalog.streaming.clean.transactions import CleanedTransactions
from kafkalog.streaming.clean.writing import CleanedSegment, SegmentWriter
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segments import LogSegments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kafkalog.streaming.clean.cleanable import Cleanable
    from kafkalog.streaming.clean.offset_map import OffsetMap
    from kafkalog.streaming.clean.producers import LastRecords
    from kafkalog.streaming.log.config import LogConfig

__all__ = ["CleanedGroup", "CleanedLog", "clean_log"]

_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class CleanedGroup:
    """Neighbouring segments, and what is to replace them: one segment in all but odd logs."""

    sources: tuple[SourceSegment, ...]
    segments: tuple[CleanedSegment, ...]


@dataclass(frozen=True, slots=True)
class CleanedLog:
    """What a round came to."""

    clean_to: int
    """The offset below which the log is clean once the groups are in place."""
    is_complete: bool
    """Whether that is all that could be cleaned; else the map was full."""
    groups: tuple[CleanedGroup, ...]
    keyless: int
    """Records that go because they have no key."""

    @property
    def bytes_before(self) -> int:
        """Bytes of the logs that are replaced."""
        return sum(source.size for group in self.groups for source in group.sources)

    @property
    def bytes_after(self) -> int:
        """Bytes of the logs that replace them."""
        return sum(segment.size for group in self.groups for segment in group.segments)


def clean_log(
    directory: Path,
    output: Path,
    cleanable: Cleanable,
    config: LogConfig,
    *,
    offsets: OffsetMap,
    last_records: LastRecords,
    now_ms: int,
    prefix: str = "",
    progress: Callable[[int], object] = lambda _: None,
) -> CleanedLog:
    """Clean a partition's log once and write the result into durable files in another folder.

    Args:
        directory: the partition's folder.
        output: a folder for segments with their final names, which the caller makes durable.
        cleanable: how far.
        config: the topic's settings.
        offsets: a map to be used.
        last_records: those of the active producers of the whole log.
        now_ms: the time, from which ``delete.retention.ms`` counts.
        prefix: what the names of the files begin with.
        progress: see :func:`~kafkalog.streaming.clean.checked.checked_chunks`.

    Raises:
        CorruptRecordError: the log is damaged where it was to be cleaned.
        FileNotFoundError: a segment went away meanwhile.
    """
    start, end = cleanable.first_dirty_offset, cleanable.end_offset
    dirty, found = _listed(directory, start, end)
    if not dirty:
        return CleanedLog(start, is_complete=True, groups=(), keyless=0)
    build_offset_map(directory, dirty, start, end, offsets, progress)
    clean_to = offsets.latest_offset + 1
    sources = [source for source in found if source.base_offset < clean_to]
    rules = _rules(sources, cleanable, config, last_records, now_ms)
    new_segment = partial(SegmentWriter, output, prefix=prefix)
    cleaner = _Cleaner(directory, new_segment, config, offsets, rules, progress)
    return CleanedLog(clean_to, clean_to >= end, cleaner.clean(sources), cleaner.keyless)


class _Cleaner:
    def __init__(
        self,
        directory: Path,
        new_segment: Callable[..., SegmentWriter],
        config: LogConfig,
        offsets: OffsetMap,
        rules: FilterRules,
        progress: Callable[[int], object],
    ) -> None:
        self._directory = directory
        self._new_segment = new_segment
        self._progress = progress
        self._config = config
        self._rules = rules
        self._transactions = CleanedTransactions(directory)
        self._filter = BatchFilter(offsets, rules, self._transactions)

    @property
    def keyless(self) -> int:
        return self._filter.keyless

    def clean(self, sources: Sequence[SourceSegment]) -> tuple[CleanedGroup, ...]:
        """Write what the segments become, group by group."""
        groups = group_segments(
            sources,
            max_size=self._config.segment_bytes,
            max_index_size=self._config.segment_index_bytes,
            end_offset=self._rules.end_offset,
        )
        return tuple(self._clean_group(group) for group in groups)

    def _clean_group(self, group: Sequence[SourceSegment]) -> CleanedGroup:
        with self._new_segment(
            group[0].base_offset,
            index_interval_bytes=self._config.index_interval_bytes,
            modified_ns=group[-1].modified_ns,
        ) as writer:
            for source in group:
                self._take(source, writer)
            return CleanedGroup(tuple(group), writer.finish())

    def _take(self, source: SourceSegment, writer: SegmentWriter) -> None:
        keep_tombstones = source.modified_ns // _NS_PER_MS > self._rules.legacy_horizon_ms
        with LogSegment(self._directory, source.base_offset) as segment:
            for chunk in checked_chunks(segment, 0, self._progress):
                pieces = list(
                    self._filter.pieces(segment, chunk, keep_legacy_tombstones=keep_tombstones)
                )
                writer.add_aborted(self._transactions.take_kept())
                for piece in pieces:
                    writer.append(piece)


def _listed(directory: Path, start: int, end: int) -> tuple[list[LogSegment], list[SourceSegment]]:
    """Give the dirty segments, and all up to their end as they are before any of them is read.

    So the caller notices what replaces one of them meanwhile.
    """
    listed = LogSegments.of(directory)
    dirty = segments_between(listed, start, end)
    return dirty, [_look(segment) for segment in segments_between(listed, 0, end)] if dirty else []


def _look(segment: LogSegment) -> SourceSegment:
    with segment:
        return SourceSegment.of(segment)


def _rules(
    sources: Sequence[SourceSegment],
    cleanable: Cleanable,
    config: LogConfig,
    last_records: LastRecords,
    now_ms: int,
) -> FilterRules:
    retention_ms = config.delete_retention_ms
    horizon_ms = _legacy_horizon(sources, cleanable.first_dirty_offset, retention_ms)
    return FilterRules(now_ms, retention_ms, cleanable.end_offset, horizon_ms, last_records)


def _legacy_horizon(sources: Sequence[SourceSegment], dirty: int, retention_ms: int) -> int:
    """Return up to when a segment of magic 0 or 1 must be written for its tombstones to go, ms."""
    before = [source for source in sources if source.base_offset < dirty]
    return before[-1].modified_ns // _NS_PER_MS - retention_ms if before else 0
