"""Which segments become one: as many neighbours as the limits of a segment allow.

Source: Kafka ``Cleaner.groupSegmentsBySize``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Self

from kafkalog.streaming.log.index.offset import OFFSET_ENTRY
from kafkalog.streaming.log.index.time import TIME_ENTRY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.files.open_file import FileIdentity
    from kafkalog.streaming.log.segment import LogSegment

__all__ = ["SourceSegment", "group_segments"]

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
