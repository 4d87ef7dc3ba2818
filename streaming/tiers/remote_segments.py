"""Which segments of a remote tier make up a log: by its broker's records, else by a listing.

Several brokers may have uploaded the same offsets, and a leader that was deposed may have uploaded
records that its successor never had. So a segment counts for the leader epochs that it has, and of
each epoch only up to where the log's next one begins. Of an epoch all that is uploaded is the same,
so that the fewest segments that cover it are taken: one from 5 to 100 hides one from 10 to 90.

A listing knows where segments begin, and no more: each ends where the next one begins.

Source: Kafka ``RemoteLogMetadataCache``, ``RemoteLogLeaderEpochState``,
``RemoteLogManager.fetchRemoteLogSegmentMetadata``.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from kafkalog.errors import CorruptRecordError, UnsupportedFormatError
from kafkalog.files.system import once_per_process
from kafkalog.streaming.coordinator.remote_log_metadata import (
    REMOTE_LOG_METADATA_TOPIC,
    RemoteLogReplay,
)
from kafkalog.streaming.log.files import (
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    parse_partition_directory,
)
from kafkalog.streaming.log.log_dir import entries_of
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.tiers.layouts import EPOCHS, TierSegment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.coordinator.remote_log_metadata import RemoteSegment

__all__ = [
    "Lineage",
    "Piece",
    "RemoteLogMetadata",
    "choose_segments",
    "gaps_between",
    "join_lineages",
    "lineage_of",
    "segment_from_record",
]

_LOGGER = logging.getLogger("kafkalog.source")

Lineage = tuple[tuple[int, int], ...]
"""Leader epochs of a log, ascending, each with its first offset."""


class Piece(NamedTuple):
    """The offsets ``[start, end)`` of a log that a segment has; the end is None if unknown."""

    segment: TierSegment
    start: int
    end: int | None

    @property
    def base_offset(self) -> int:
        """What the segment is called in the log's folder."""
        return self.segment.start_offset


# ----------------------------------------------------------------------------------------------
# The records of the brokers.


class RemoteLogMetadata:
    """Follows ``__remote_log_metadata`` in log directories: each look reads what is new.

    Of several brokers' copies of a partition, the one that reaches furthest is read.
    """

    def __init__(self, log_dirs: Sequence[Path]) -> None:
        self._log_dirs = log_dirs
        self._read_to: dict[TopicPartition, int] = {}
        self.replay = RemoteLogReplay()
        self.exists = False
        """Whether the last look found the topic."""

    def look(self) -> None:
        """Read what was written since the last look.

        Raises:
            CorruptRecordError: bytes that are no record of the topic, or no batch.
            LogDirectoryError: a directory cannot be listed.
        """
        furthest: dict[TopicPartition, tuple[int, Path]] = {}
        for folder, key in self._folders():
            end = _end_of(folder, key)
            if key not in furthest or end > furthest[key][0]:
                furthest[key] = end, folder
        if any(furthest.get(key, (0,))[0] < end for key, end in self._read_to.items()):
            self._read_to, self.replay = {}, RemoteLogReplay()  # another topic by now
        self.exists = bool(furthest)
        for key, (end, folder) in furthest.items():
            if self._read_to.get(key, -1) < end:
                for value in _values(folder, key, self._read_to.get(key, 0), end):
                    self._feed(value, folder)
                self._read_to[key] = end

    def _folders(self) -> Iterator[tuple[Path, TopicPartition]]:
        for log_dir in self._log_dirs:
            for entry in entries_of(log_dir):
                if entry.name.startswith(REMOTE_LOG_METADATA_TOPIC):
                    key = parse_partition_directory(entry.name)
                    if key is not None and key.topic == REMOTE_LOG_METADATA_TOPIC:
                        yield log_dir / entry.name, key

    def _feed(self, value: bytes | None, folder: Path) -> None:
        try:
            self.replay.feed(value)
        except UnsupportedFormatError as error:
            _say_passed_over(folder, str(error))
        except CorruptRecordError as error:
            raise CorruptRecordError(f"{folder}: {error}", path=str(folder)) from error


@once_per_process
def _say_passed_over(folder: Path, reason: str) -> None:
    _LOGGER.warning("%s: a record is passed over: %s", folder, reason)


def _end_of(folder: Path, key: TopicPartition) -> int:
    with PartitionLog(folder, key) as log:
        return log.log_end_offset()


def _values(folder: Path, key: TopicPartition, start: int, end: int) -> Iterator[bytes | None]:
    from kafkalog.streaming.records.columns import Columns, RecordDecoder  # noqa: PLC0415

    with PartitionLog(folder, key) as log:
        begin = max(start, log.log_start_offset)
        decoder = RecordDecoder(Columns.VALUE)
        for planned in log.slices(begin, end):
            for batch in log.read_slice(planned, decoder, committed_end=end):
                yield from batch.column(0).to_pylist()


def segment_from_record(record: RemoteSegment, folder: str) -> TierSegment:
    """Return a segment as its broker's record tells it; ``folder`` has its objects."""
    suffixes = {LOG, OFFSET_INDEX, TIME_INDEX, SNAPSHOT, EPOCHS}
    if record.has_txn_index:
        suffixes.add(TXN_INDEX)
    return TierSegment(
        folder,
        record.segment_id,
        record.start_offset,
        record.end_offset,
        record.size,
        frozenset(suffixes),
        record.max_timestamp,
        record.leader_epochs,
        record.custom_metadata,
    )


# ----------------------------------------------------------------------------------------------
# Which of them make up the log.


def choose_segments(segments: Sequence[TierSegment], lineage: Lineage) -> list[Piece]:
    """Choose the segments that make up a log, in order of their offsets.

    Args:
        segments: those that are there to read, in any order.
        lineage: the log's leader epochs; what has another one was never part of it. Empty if it
            is not known: then the segments' own tell.
    """
    if any(segment.end_offset is None for segment in segments):
        return _by_starts(segments)
    known = join_lineages(lineage, lineage_of(segments))
    pieces: list[Piece] = []
    for (epoch, start), (_, end) in pairwise([*known, (0, 2**63 - 1)]):
        for piece in _cover(list(_of_epoch(segments, epoch, start, end))):
            begin = piece.start
            # what has an offset of an epoch has all that was before it in the log, as well
            while pieces and pieces[-1].base_offset >= piece.base_offset:
                begin = pieces.pop().start
            pieces.append(piece._replace(start=begin))
    return pieces


def _by_starts(segments: Iterable[TierSegment]) -> list[Piece]:
    """Take the largest of those that begin at one offset; each ends where the next one begins."""
    by_start: dict[int, TierSegment] = {}
    for each in segments:
        other = by_start.get(each.start_offset)
        if other is None or (each.size or 0) > (other.size or 0):
            by_start[each.start_offset] = each
    starts = sorted(by_start)
    return [
        Piece(by_start[start], start, end)
        for start, end in zip(starts, [*starts[1:], None], strict=True)
    ]


def _of_epoch(
    segments: Iterable[TierSegment], epoch: int, start: int, end: int
) -> Iterator[tuple[int, int, TierSegment]]:
    """Yield what segments have of an epoch, as far as the log has it."""
    for segment in segments:
        found = _epoch_range(segment, epoch)
        if found is not None:
            first, last = max(found[0], start), min(found[1], end)
            if first < last:
                yield first, last, segment


def _epoch_range(segment: TierSegment, epoch: int) -> tuple[int, int] | None:
    epochs = segment.leader_epochs
    for slot, (each, first) in enumerate(epochs):
        if each == epoch:
            end = epochs[slot + 1][1] if slot + 1 < len(epochs) else segment.end_offset
            assert end is not None  # noqa: S101 - of a listing, no segment comes here
            return max(first, segment.start_offset), end
    return None


def _cover(ranges: list[tuple[int, int, TierSegment]]) -> Iterator[Piece]:
    """Cover what ranges have with as few of them as will do."""
    ranges.sort(key=lambda each: each[0])
    slot, position = 0, -1
    best: tuple[int, int, TierSegment] | None = None
    while True:
        while slot < len(ranges) and ranges[slot][0] <= position:
            if best is None or _reach(ranges[slot]) > _reach(best):
                best = ranges[slot]
            slot += 1
        if best is not None and best[1] > position:
            yield Piece(best[2], position, best[1])
            position = best[1]
        elif slot < len(ranges):
            position = ranges[slot][0]
        else:
            return


def _reach(entry: tuple[int, int, TierSegment]) -> tuple[int, int]:
    return entry[1], entry[2].end_offset or 0


def lineage_of(segments: Sequence[TierSegment]) -> Lineage:
    """Return the leader epochs of the log that segments tell: a later epoch cuts earlier ones."""
    first: dict[int, int] = {}
    for segment in segments:
        for epoch, offset in segment.leader_epochs:
            start = max(offset, segment.start_offset)
            first[epoch] = min(first.get(epoch, start), start)
    followed = {
        (one[0], other[0]) for each in segments for one, other in pairwise(each.leader_epochs)
    }
    found: list[tuple[int, int]] = []
    for epoch in sorted(first, reverse=True):
        accepted = {each for each, _ in found}
        # a log that goes from an earlier epoch to a later one was never in those between
        if any(before < epoch < after and after in accepted for before, after in followed):
            continue
        if not found or first[epoch] < found[-1][1]:
            found.append((epoch, first[epoch]))
    return tuple(reversed(found))


def join_lineages(local: Lineage, remote: Lineage) -> Lineage:
    """Put before a log's own leader epochs those that its broker has forgotten.

    A broker cuts epochs off at the log's start. One that the log does not have, and that is above
    its first, was never part of it.
    """
    if not local:
        return remote
    epoch, start = local[0]
    earlier = tuple(each for each in remote if each[0] < epoch and each[1] < start)
    begin = min([start, *(offset for each, offset in remote if each == epoch)])
    if earlier and begin <= earlier[-1][1]:
        begin = start
    return (*earlier, (epoch, begin), *local[1:])


def gaps_between(pieces: Sequence[Piece], local_start: int | None) -> list[tuple[int, int]]:
    """Return the offsets between pieces, and before the local log, that nothing has.

    None are known where the end of a piece is not.
    """
    starts = [piece.start for piece in pieces[1:]]
    if pieces:
        end = pieces[-1].end
        starts.append(local_start if local_start is not None else end if end is not None else -1)
    return [
        (piece.end, start)
        for piece, start in zip(pieces, starts, strict=True)
        if piece.end is not None and piece.end < start
    ]
