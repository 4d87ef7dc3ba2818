"""The cleanable part of a log: how much of it, whether it is due, and in which groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from kafkalog.streaming.log.indexes import OFFSET_ENTRY, TIME_ENTRY
from kafkalog.streaming.log.read.timestamps import largest_timestamp
from kafkalog.streaming.log.read.transactions import StableOffset
from kafkalog.streaming.log.segments import LogSegments

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kafkalog.files.open_file import FileIdentity
    from kafkalog.streaming.log.segment import LogSegment
    from kafkalog.streaming.options.topic_settings import LogConfig


__all__ = ["Cleanable", "SourceSegment", "find_cleanable", "group_segments"]


# ----------------------------------------------------------------------------------------------
# Which segments become one: as many neighbours as the limits of a segment allow.
#
# Source: Kafka ``Cleaner.groupSegmentsBySize``.


_MAX_RELATIVE_OFFSET: Final = 2**31 - 1


class SourceSegment(NamedTuple):
    """A segment as it was found: sizes in bytes, an index that is missing has none."""

    base_offset: int
    size: int
    index_size: int
    time_index_size: int
    modified_ns: int
    identity: FileIdentity
    """Of its log: whoever replaces the segment looks whether it is still this one."""

    @classmethod
    def of(cls, segment: LogSegment) -> Self:
        """Look at a segment's files, which stay open.

        Raises:
            FileNotFoundError: it is gone.
        """
        size, identity = segment.size, segment.identity
        index, times = (segment.offset_index(), segment.time_index()) if size else (None, None)
        return cls(
            segment.base_offset,
            size,
            0 if index is None else len(index) * OFFSET_ENTRY.itemsize,
            0 if times is None else len(times) * TIME_ENTRY.itemsize,
            segment.path.stat().st_mtime_ns,
            identity,
        )


def group_segments(
    segments: Sequence[SourceSegment], *, max_size: int, max_index_size: int, end_offset: int
) -> list[list[SourceSegment]]:
    """Put neighbours together whose logs, offset indexes and time indexes fit one segment.

    Args:
        segments: ascending by base offset.
        max_size: bytes of a log.
        max_index_size: bytes of an index of either kind.
        end_offset: where the cleaning ends, which bounds the offsets of the last segment.
    """
    groups: list[list[SourceSegment]] = []
    for number, segment in enumerate(segments, 1):
        end = segments[number].base_offset if number < len(segments) else end_offset
        if groups and _fits(groups[-1], segment, end - 1, max_size, max_index_size):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups


def _fits(
    group: Sequence[SourceSegment],
    segment: SourceSegment,
    last_offset: int,
    max_size: int,
    max_index_size: int,
) -> bool:
    together = [*group, segment]
    return (
        sum(one.size for one in together) <= max_size
        and sum(one.index_size for one in together) <= max_index_size
        and sum(one.time_index_size for one in together) <= max_index_size
        # An empty segment adds no offset: else one would be left of every 2^31 of them.
        and (not segment.size or last_offset - group[0].base_offset <= _MAX_RELATIVE_OFFSET)
    )


# ----------------------------------------------------------------------------------------------
# What of a log can be cleaned, and whether a broker would do it now.
#
# The *dirty* part begins where the last round ended. It ends at the first segment that must not
# be cleaned: the active one, the one with the last stable offset, or one that has records younger
# than ``min.compaction.lag.ms``.
#
# Source: Kafka ``LogCleanerManager.cleanableOffsets``, ``LogToClean``.


_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Cleanable:
    """The dirty part of a log, ``[first_dirty_offset, end_offset)``.

    The end is the base offset of a segment. Where nothing is dirty it is not above the start.
    """

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    """A segment that is partly clean counts in both, as a broker counts it."""
    delay_ms: int
    """How long the dirty part has waited beyond ``max.compaction.lag.ms``; 0 if it has not."""
    checkpoint_is_void: bool
    """Whether the offset up to which the log was clean lies outside of it."""

    @property
    def dirty_ratio(self) -> float:
        """The part of the bytes that is dirty, 0 to 1."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, min_ratio: float) -> bool:
        """Return whether a broker would clean it now; ``min_ratio`` is of the topic's settings."""
        return self.dirty_ratio > min_ratio or (self.delay_ms > 0 and self.dirty_bytes > 0)


def find_cleanable(
    directory: Path,
    config: LogConfig,
    *,
    clean_to: int | None,
    log_start: int,
    log_end: int,
    high_watermark: int,
    now_ms: int,
    has_transactions: bool = True,
) -> Cleanable | None:
    """Look how far a log is clean, and how far it can be cleaned; None if it has no segments.

    Args:
        directory: the partition's folder.
        config: the topic's settings.
        clean_to: what ``cleaner-offset-checkpoint`` says of the partition; None for nothing.
        log_start: the log start offset.
        log_end: the log end offset.
        high_watermark: nothing from it on is cleaned, as it may be rolled back.
        now_ms: the time.
        has_transactions: False where the log surely never had one: that saves a walk over it.

    Raises:
        CorruptRecordError: bytes below the high watermark that are no batch.
        UnknownTopicOrPartitionError: the folder is gone.
    """
    is_void = clean_to is not None and not log_start <= clean_to <= log_end
    first_dirty = log_start if clean_to is None or is_void else clean_to
    segments = LogSegments.of(directory)
    try:
        if segments.active is None:
            return None
        stable = high_watermark
        if has_transactions:
            stable = StableOffset(directory).find(high_watermark)
        return _measured(segments, first_dirty, stable, config, now_ms, is_void=is_void)
    finally:
        segments.close()


def _measured(
    segments: LogSegments,
    first_dirty: int,
    bound: int,
    config: LogConfig,
    now_ms: int,
    *,
    is_void: bool,
) -> Cleanable:
    assert segments.active is not None  # noqa: S101 - the caller looked
    waiting = _inactive_from(segments, first_dirty)
    young = _first_younger(waiting, config.min_compaction_lag_ms, now_ms)
    if young is not None:
        bound = min(bound, young)
    rest = _inactive_from(segments, max(first_dirty, bound))
    end = (rest[0] if rest else segments.active).base_offset
    return Cleanable(
        first_dirty_offset=first_dirty,
        end_offset=end,
        clean_bytes=_bytes(segments.between(-1, first_dirty)),
        dirty_bytes=_bytes(segments.between(first_dirty, end)),
        delay_ms=_delay(waiting, config.max_compaction_lag_ms, now_ms),
        checkpoint_is_void=is_void,
    )


def _bytes(segments: LogSegments) -> int:
    return sum(segment.size for segment in segments)


def _inactive_from(segments: LogSegments, offset: int) -> LogSegments:
    assert segments.active is not None  # noqa: S101 - callers looked
    return segments.between(offset, segments.active.base_offset)


def _first_younger(segments: LogSegments, lag_ms: int, now_ms: int) -> int | None:
    """Return the base offset of the first segment with a record younger than ``lag_ms``."""
    if lag_ms <= 0:
        return None
    for segment in segments:
        latest = largest_timestamp(segment, active=False).timestamp
        if latest < 0:
            latest = segment.path.stat().st_mtime_ns // _NS_PER_MS
        if latest > now_ms - lag_ms:
            return segment.base_offset
    return None


def _delay(segments: LogSegments, max_lag_ms: int, now_ms: int) -> int:
    first_batches = (segment.header_at(0) for segment in segments)
    times = [first.max_timestamp for first in first_batches if first and first.max_timestamp > 0]
    return max(0, now_ms - max_lag_ms - min(times)) if times else 0
