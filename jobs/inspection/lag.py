"""How far readers are behind what is committed."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafkalog.errors import (
    CorruptRecordError,
    DataLossError,
    KafkaLogError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.system import system
from kafkalog.files.watch import is_settled
from kafkalog.jobs.inspection.log_dirs import ends_of, log_dirs_of, partitions_of
from kafkalog.jobs.inspection.missing import say_missing
from kafkalog.streaming.log.history import find_divergence
from kafkalog.streaming.log.read.slices import open_planned
from kafkalog.streaming.records.columns import Columns, RecordDecoder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafkalog.jobs.inspection.readers import Reader, ReadersNamed
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.history import Divergence, LastBatch
    from kafkalog.streaming.log.partition_log import PartitionLog
    from kafkalog.streaming.log.read.slices import SegmentSlice
    from kafkalog.streaming.store.ends.tracker import LogEndTracker

__all__ = ["LagMeter", "lag_of"]

Row = dict[str, Any]


class _Place(NamedTuple):
    reader: str
    key: TopicPartition
    offset: int | None


_LOGGER: Final = logging.getLogger("kafkalog.jobs")


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What lies between a position and the end: bytes, and the first record's time."""

    bytes: int
    next_timestamp: int | None

    def row(self) -> Row:
        """Return the fields of a row, as of now."""
        behind = None
        if self.next_timestamp is not None:
            behind = max(0, system.time_ns() // 1_000_000 - self.next_timestamp)
        elif not self.bytes:
            behind = 0
        return {"bytes": self.bytes, "nextTimestamp": self.next_timestamp, "behindMs": behind}


@dataclass(frozen=True, slots=True)
class _Found:
    """How far behind a position is; without that, why there is no lag."""

    lag: int | None
    waiting: _Waiting | None
    problem: str | None = None

    def row(self) -> Row:
        """Return the fields of a row, as of now."""
        return {"lag": self.lag, **(_UNKNOWN if self.waiting is None else self.waiting.row())}


_UNKNOWN: Final[Row] = {"bytes": None, "nextTimestamp": None, "behindMs": None}


class LagMeter:
    """Looks at log directories again and again; logs that are as before are not opened again.

    Not thread safe.
    """

    def __init__(self, paths: Sequence[str], named: ReadersNamed, topic: str | None = None) -> None:
        """Take the log directories, who reads them, and the one topic to show, or None for all.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
            LogDirectoryError: there is nothing to look at.
        """
        self._named = named
        self._topic = topic
        self._lost = say_missing(log_dirs_of(paths), topic)
        if topic not in {key.topic for key in self._lost}:
            partitions_of(paths, topic)
        self._watch = ends_of(paths, None)
        self._found: dict[_Place, tuple[object, _Found]] = {}

    def look(self) -> list[Row]:
        """Return a row for each reader and partition as of now, sorted by their names.

        ``lag`` counts offsets, and is None for a partition that is not there, and for a position
        above the end of a log, or in another history of it. ``bytes`` are of whole batches; where
        the end is below the log's, an index interval more at most. ``nextTimestamp`` is the next
        unread record's, in ms, and ``behindMs`` how old that is.

        Raises:
            KafkaLogError: directories, logs or checkpoints that cannot be read.
        """
        ends = self._watch.look().offsets
        rows = []
        before, self._found = self._found, {}
        readers = self._named.look(self._watch, ends)
        for reader in sorted(readers, key=lambda each: each.name):
            keys = set(reader.positions)
            keys |= {key for key in (*ends, *self._lost) if key.topic in reader.topics}
            rows += [
                self._row(reader, key, ends.get(key), before)
                for key in sorted(keys)
                if self._topic in {None, key.topic}
            ]
        return rows

    def _row(
        self,
        reader: Reader,
        key: TopicPartition,
        end: int | None,
        before: Mapping[_Place, tuple[object, _Found]],
    ) -> Row:
        offset = reader.positions.get(key)
        place = _Place(reader.name, key, offset)
        end_there = None if key in self._lost else end
        standing = None if end_there is None else self._standing(key, end_there)
        said, found = before.get(place, (None, None))
        if found is None or standing is None or said != standing:
            found = _found(self._watch, key, offset, end_there, reader.batches.get(key))
            if found.problem is not None and key not in self._lost:
                _LOGGER.warning("%s in %s: %s", reader.name, key, found.problem)
        self._found[place] = standing, found
        return {"reader": reader.name, **key._asdict(), "offset": offset, "end": end, **found.row()}

    def _standing(self, key: TopicPartition, end: int) -> object | None:
        """Return what is the same where a log is; None for one that may be changing just now."""
        *identity, stamp = self._watch.standing(key)
        return (end, *identity, stamp) if stamp is not None and is_settled(stamp) else None


def lag_of(
    watch: LogEndTracker,
    key: TopicPartition,
    offset: int | None,
    end: int | None,
    batch: LastBatch | None = None,
) -> tuple[Row, str | None]:
    """Return ``lag``, ``bytes``, ``nextTimestamp`` and ``behindMs``, and why there is no lag.

    Args:
        watch: of the logs, which has looked.
        key: a partition.
        offset: where a reader is in it; None for its log start.
        end: how far it is committed; None for one that is not there.
        batch: the last one below the offset, where the reader has kept it.

    Raises:
        KafkaLogError: the log cannot be read.
    """
    found = _found(watch, key, offset, end, batch)
    return found.row(), found.problem


def _found(
    watch: LogEndTracker,
    key: TopicPartition,
    offset: int | None,
    end: int | None,
    batch: LastBatch | None,
) -> _Found:
    if end is None:
        return _Found(None, None, "the partition is not there")
    diverged = _divergence(watch, key, offset, batch)
    if diverged is not None:
        return _Found(
            None,
            None,
            f"the log has another history than the one that was read up to offset {diverged}. It "
            "was cut and written again, or an older copy was put back",
        )
    if offset == end:
        return _Found(0, _Waiting(0, None))
    if offset is not None and offset > end and not watch.reaches(key, offset):
        return _Found(
            None,
            None,
            f"offset {offset} lies above the end of the log, and {end} is committed: it is of "
            "another log, or records are gone",
        )
    try:
        with watch.open(key) as log:
            start = log.log_start_offset if offset is None else offset
            return _Found(max(0, end - start), _waiting(log, start, end))
    except UnknownTopicOrPartitionError:  # deleted since
        return _Found(None, None, "the partition is not there")


def _divergence(
    watch: LogEndTracker, key: TopicPartition, offset: int | None, batch: LastBatch | None
) -> Divergence | None:
    if offset is None or batch is None or not watch.reaches(key, offset):
        return None
    with suppress(KafkaLogError, OSError), watch.open(key) as log:
        return find_divergence(log, offset, batch)
    return None


def _waiting(log: PartitionLog, start: int, end: int) -> _Waiting:
    first = max(start, log.log_start_offset)
    slices = log.slices(first, end)
    size = sum(each.size for each in slices) - _already_read(slices)
    return _Waiting(size, _next_timestamp(log, slices, end))


def _already_read(slices: Sequence[SegmentSlice]) -> int:
    """Return the bytes before the batch of the first offset: an index leads near it, or before."""
    segment = open_planned(slices[0]) if slices else None
    if segment is None:
        return 0
    with segment, suppress(CorruptRecordError):  # said where the next record is looked for
        position = segment.translate_offset(slices[0].start_offset)
        return slices[0].size if position is None else max(0, position - slices[0].start_position)
    return 0


def _next_timestamp(log: PartitionLog, slices: Sequence[SegmentSlice], end: int) -> int | None:
    """Return the time of the first record, in ms; None without one, or if it has none."""
    decoder = RecordDecoder(Columns.TIMESTAMP_MS, max_rows=1)
    try:
        for planned in slices:
            for batch in log.read_slice(planned, decoder, committed_end=end):
                for stamp in batch.column(0).to_pylist():
                    return stamp if stamp >= 0 else None
    except (CorruptRecordError, DataLossError) as error:
        _LOGGER.warning("%s: the next record cannot be read: %s", log.topic_partition, error)
    return None
