"""Damaged ranges of a log: find them, name them, and say what to do with each."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self, TypeAlias

import numpy as np

from kafkalog.errors import CorruptRecordError, OptionError
from kafkalog.model import MAX_OFFSET, TopicPartition
from kafkalog.streaming.log.files import LOG, file_name, parse_partition_directory
from kafkalog.streaming.log.segments import LogSegments
from kafkalog.streaming.log.valid_batches import ValidEnd, ends_in_zeros, valid_chunks
from kafkalog.streaming.records.columns import Columns, RecordDecoder
from kafkalog.streaming.store.recovery.intent_verification import find_valid_batch, reach_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kafkalog.streaming.log.segment import Chunk, LogSegment
    from kafkalog.streaming.records.batch import BatchTable


__all__ = [
    "Choice",
    "Damage",
    "LogDamage",
    "PlaceName",
    "chosen_places",
    "look_for_damage",
    "place_name",
]


# ----------------------------------------------------------------------------------------------
# Find what is damaged in a log, and which offsets are lost with it.
#
# Every byte is looked at. Damaged are batches with a wrong checksum, with records that cannot be
# decoded or with offsets that do not fit, and bytes that are no batch at all. After bytes without
# a usable size, the next valid batch is searched for at any byte. A log that ends below what was
# committed, or acknowledged by a broker, lacks its end: that is damage of no bytes.
#
# A torn batch or zeros at the end, above everything that was committed, are no damage. The next
# append cuts them off.


class Damage(NamedTuple):
    """Bytes of a segment that are no sound batch; none of them where the end of a log is missing.

    ``[start, end)`` are the offsets between the sound batches around it: those that are lost, or
    never were. ``records`` is what the damaged batches' headers say, None if that is not known.
    """

    base_offset: int
    position: int
    size: int
    start: int
    end: int
    records: int | None
    reason: str


@dataclass(slots=True)
class LogDamage:
    """What is wrong with a log: ``places`` in order.

    The log ends at offset ``end`` by its last sound batch. ``torn`` is the position in the last
    segment from which on bytes may be cut off, None if there are no such bytes.
    """

    places: list[Damage] = field(default_factory=list)
    end: int = 0
    torn: int | None = None


def look_for_damage(folder: Path, kept_end: int, flushed_end: int = 0) -> LogDamage:
    """Look at every byte of a partition's log.

    Args:
        folder: of the partition.
        kept_end: everything below it was committed, or acknowledged by a broker.
        flushed_end: everything below it was on the disk, if damaged batches can have reached it.

    Raises:
        UnknownTopicOrPartitionError: the folder is gone.
    """
    found = LogDamage()
    segments = LogSegments.of(folder)
    for segment, follower in zip_longest(segments, segments[1:]):
        with segment:
            walk = _Walk(segment, max(found.end, segment.base_offset))
            walk.go()
            found.end = walk.next_offset
            if follower is not None:
                found.places += walk.gaps_below(follower.base_offset)
                continue
            tail = walk.tail()
            flushed = tail is not None and flushed_end <= reach_of(segment, walk.valid_end)
            end = max(kept_end, flushed_end if flushed else 0)
            if tail and found.end >= end:
                found.torn = tail.position
            found.places += walk.gaps
            if found.end < end:
                found.places.append(tail._replace(end=end) if tail else walk.missing(end))
    if not segments and kept_end:
        found.places.append(Damage(0, 0, 0, 0, kept_end, None, "there is no segment"))
    return found


class _Walk:
    """Goes over one segment; ``gaps`` are those that a sound batch follows."""

    def __init__(self, segment: LogSegment, next_offset: int) -> None:
        self.gaps: list[Damage] = []
        self.next_offset = next_offset
        self._segment = segment
        self._position = 0
        self._reasons: dict[int, str] = {}
        self._decoder = RecordDecoder(Columns.OFFSET, check_crcs=False)

    def go(self) -> None:
        """Find the gaps, and where the last sound batch ends."""
        start: int | None = 0
        while start is not None:
            chunks = valid_chunks(self._segment, start)
            while True:
                try:
                    chunk = next(chunks)
                except StopIteration as stop:
                    broken = stop.value
                    break
                self._add(self._decodable(chunk))
                start = chunk.file_position + len(chunk.data)
            if broken is None:
                return
            self._reasons.setdefault(start, str(broken))
            start = self._next_valid(start)

    def gaps_below(self, next_base_offset: int) -> list[Damage]:
        """Return all gaps of a segment that another one follows."""
        tail = self.tail()
        if tail is None:
            return self.gaps
        is_whole = tail.start == next_base_offset
        if is_whole and ends_in_zeros(self._segment, tail.position):
            return self.gaps
        return [*self.gaps, tail._replace(end=max(tail.start, next_base_offset))]

    @property
    def valid_end(self) -> ValidEnd:
        """Where the last sound batch ends."""
        return ValidEnd(self.next_offset, self._position, None)

    def tail(self) -> Damage | None:
        """Return the bytes after the last sound batch; None if there are none."""
        if self._position == self._segment.size:
            return None
        return self._gap(self._segment.size, self.next_offset)

    def missing(self, end: int) -> Damage:
        """Return what is missing of a log that ends here."""
        reason = f"{self._segment.path}: the log ends at offset {self.next_offset}"
        return self._gap(self._position, end)._replace(records=None, reason=reason)

    def _gap(self, end_position: int, end: int) -> Damage:
        start, size = self._position, end_position - self._position
        reasons = (self._reasons[at] for at in sorted(self._reasons) if start <= at < end_position)
        records = sum(counts) if (counts := self._counts(start, end_position)) else None
        base = self._segment.base_offset
        return Damage(base, start, size, self.next_offset, end, records, "; ".join(reasons))

    def _counts(self, position: int, end: int) -> list[int]:
        """Return what headers say of the batches there; nothing unless they fill the place."""
        counts = []
        while position < end:
            header = self._segment.header_at(position)
            if (
                header is None
                or not 0 <= header.record_count <= header.last_offset - header.offset + 1
            ):
                return []
            counts.append(header.record_count)
            position += header.size
        return counts if position == end else []

    def _next_valid(self, position: int) -> int | None:
        """Find where valid batches begin again: after the damaged one, or at any byte."""
        header = self._segment.header_at(position)
        if header is not None and header.size:
            follower = self._segment.header_at(position + header.size)
            fits = follower is not None and follower.offset >= self.next_offset
            if fits and next(valid_chunks(self._segment, position + header.size), None) is not None:
                return position + header.size
        return find_valid_batch(self._segment.path, position + 1, self.next_offset)

    def _add(self, table: BatchTable) -> None:
        """Take sound batches, and note the gaps before them."""
        if not len(table):
            return
        ends = np.concatenate(([self._position], table.end_position[:-1]))
        offsets = np.concatenate(([self.next_offset], table.last_offset[:-1] + 1))
        for row in np.flatnonzero(table.position > ends).tolist():
            self._position, self.next_offset = int(ends[row]), int(offsets[row])
            first = int(table.base_offset[row])
            end = first if first >= 0 else int(table.last_offset[row])  # a wrapper does not say
            self.gaps.append(self._gap(int(table.position[row]), max(end, self.next_offset)))
        self._position = int(table.end_position[-1])
        self.next_offset = int(table.last_offset[-1]) + 1

    def _decodable(self, chunk: Chunk) -> BatchTable:
        """Leave out batches whose records cannot be decoded."""
        table = chunk.table
        bad = np.zeros(len(table), np.bool_)
        first = 0
        while first < len(table):
            try:
                for _ in self._decode(chunk, table[first:]):
                    pass
                break
            except CorruptRecordError as error:
                row = int(np.searchsorted(table.position, error.position))
                bad[row] = True
                self._reasons[int(table.position[row])] = str(error)
                first = row + 1
        return table[~bad]

    def _decode(self, chunk: Chunk, table: BatchTable) -> Iterator[object]:
        return self._decoder.decode(
            chunk.data, table, file_position=chunk.file_position, path=str(self._segment.path)
        )


# ----------------------------------------------------------------------------------------------

Choice: TypeAlias = Literal["drop", "cut"]

_BY_OFFSET: Final = re.compile(r"(?P<partition>[^/@]+)@(?P<offset>[0-9]{1,19})", re.ASCII)
_BY_POSITION: Final = re.compile(
    r"(?:.*/)?(?P<partition>[^/]+)/(?P<base>[0-9]{20})\.log:(?P<position>[0-9]{1,19})", re.ASCII
)


class PlaceName(NamedTuple):
    """A place by an offset that is lost there, or by segment and position; and what to do."""

    text: str
    topic_partition: TopicPartition
    offset: int | None
    base_offset: int
    position: int
    choice: Choice

    @classmethod
    def parse(cls, text: str, choice: Choice) -> Self:
        """Read ``topic-0@12`` or ``topic-0/00000000000000000000.log:345``.

        Raises:
            OptionError: it is neither.
        """
        found = _BY_OFFSET.fullmatch(text) or _BY_POSITION.fullmatch(text)
        key = None if found is None else parse_partition_directory(found["partition"])
        if found is None or key is None:
            raise OptionError(
                f"{text!r} names no place in a log, expected such as topic-0@12 (an offset) or "
                "topic-0/00000000000000000000.log:345 (a position in a segment)"
            )
        if found.re is _BY_OFFSET:
            return cls(text, key, min(int(found["offset"]), MAX_OFFSET), -1, -1, choice)
        return cls(text, key, None, int(found["base"]), int(found["position"]), choice)

    def is_of(self, damage: Damage) -> bool:
        """Return whether it names this place."""
        if self.offset is None:
            return (damage.base_offset, damage.position) == (self.base_offset, self.position)
        return damage.start <= self.offset < max(damage.end, damage.start + 1)


def place_name(key: TopicPartition, damage: Damage) -> str:
    """Return a name that no other place has."""
    return f"{key}/{file_name(damage.base_offset, LOG)}:{damage.position}"


def chosen_places(
    key: TopicPartition, found: LogDamage, names: Sequence[PlaceName], *, again: bool = False
) -> tuple[dict[Damage, Choice | None], list[str]]:
    """Find out what to do with each damaged place of a partition.

    ``again``: a salvage was cut off, which may have done some of what is named.

    Returns:
        for each place what was chosen, None for nothing; and notes.

    Raises:
        OptionError: a name of none of them, or choices that do not go together.
    """
    choices: dict[Damage, Choice | None] = dict.fromkeys(found.places)
    notes = []
    for name in names:
        if name.topic_partition != key:
            continue
        named = [damage for damage in found.places if name.is_of(damage)]
        if not found.places:
            notes.append(f"{name.text}: nothing is damaged in {key}, so nothing was done")
        elif again and not named:
            notes.append(f"{name.text}: nothing is damaged there any more")
        elif len(named) != 1:
            there = ", ".join(place_name(key, damage) for damage in named or found.places)
            many = "several damaged places" if named else "no damaged place"
            raise OptionError(f"{name.text} names {many} of {key}; there are {there}")
        for damage in named:
            if choices[damage] not in {None, name.choice}:
                raise OptionError(f"{name.text} is to be dropped and to be cut at: choose one")
            choices[damage] = name.choice
    _check_together(key, choices)
    return choices, notes


def _check_together(key: TopicPartition, choices: dict[Damage, Choice | None]) -> None:
    places = list(choices)
    for slot, (damage, choice) in enumerate(choices.items()):
        name = place_name(key, damage)
        beside = [each for each in places if each.base_offset == damage.base_offset]
        if choice == "drop" and any(choices[each] is None and each.size for each in beside):
            raise OptionError(
                f"{name} cannot be dropped alone: other places of that segment are damaged too. "
                f"Name all of them: {', '.join(place_name(key, each) for each in beside)}"
            )
        if choice == "cut":
            if any(choices[each] for each in places[slot + 1 :]):
                raise OptionError(f"{name}: what lies after a cut goes with it; name the cut alone")
            before = [each for each in places[:slot] if each.base_offset == damage.base_offset]
            if before:
                raise OptionError(
                    f"{name} cannot be cut at: {place_name(key, before[0])} in the same segment is "
                    "damaged too. Cut there, or drop both"
                )
