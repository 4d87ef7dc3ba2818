"""What happened, and what may never have happened, whoever did what for whatever reason.

Nothing here knows how kafkalog works. Each record is written under one name only, ``writes`` says
what its writer was told, and ``reads`` what each look at a topic gave. Time counts the entries.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Acceptance", "Audit", "Cut", "History", "Moved", "Read", "Write"]

Place = tuple[int, int]
"""Partition and offset."""

_MOST_BYTES: Final = 120
"""That a record takes, in a batch of its own."""


@dataclass
class Write:
    """A batch of records: all of them, or none.

    ``outcome`` is "ok" once one try was told so, "unknown" if one may have come to anything, else
    "fail".
    """

    values: dict[str, int]
    """Value to partition, in the order of the rows."""
    began: int
    outcome: str = "fail"
    acknowledged: int = 0
    ended: int = 0
    """When its last try was over; 0 if none is yet."""
    flush: str = "commit"
    is_durable: bool = False
    """Whether a loss of power takes nothing of it: it was acknowledged with ``flush=commit``."""
    is_doubtful: bool = False
    """Whether its writer was told that a loss of power, or of a node, may take it away."""
    is_left_to_system: bool = False
    """Whether it was ever tried with ``flush=os``."""
    is_brokers: bool = False
    """Whether a broker wrote it: that knows no state of ours, and appends to an older copy."""
    tries: list[str] = field(default_factory=list)


@dataclass
class Read:
    """A look at all of a topic, or one micro-batch of a ``life`` (a query, restarts included)."""

    reader: str
    began: int
    ended: int
    rows: list[tuple[int, int, str]]
    life: str | None = None
    is_part: bool = False
    """Whether a limit may have cut batches."""
    skips: bool = False
    """Whether it continues after a loss."""
    told_of_loss: bool = False
    passed_over: frozenset[Place] = frozenset()
    """Offsets that it was told by name are gone, and continued after."""
    bounds: dict[int, tuple[int, int]] | None = None
    """Of a micro-batch, from which offset up to which it is, by partition; None if not known."""
    begins_anywhere: bool = False
    """Whether a life may begin where it likes: with ``latest``."""
    copied: int | None = None
    """When the copy was made that lay in a directory's place meanwhile; None if none did."""

    @property
    def shows(self) -> int:
        """Until when what it shows was there for sure: a loss of power takes nothing of a copy."""
        return self.ended if self.copied is None else self.copied


@dataclass
class Cut:
    """The oldest records are deleted on purpose: those below ``starts``, by partition.

    A start is None where it is not known. With ``keeps_bytes`` any may go that are not among the
    last ones of so many bytes. ``ended`` is None if nobody was told how it ended.
    """

    actor: str
    began: int
    starts: dict[int, int | None] = field(default_factory=dict)
    keeps_bytes: int | None = None
    ended: int | None = None

    def reaches(self, partition: int, offset: int, read: Read) -> bool:
        """Whether a log may start at an offset by the end of a read."""
        if self.began > read.ended:
            return False
        if self.keeps_bytes is not None:
            return True
        start = self.starts.get(partition, 0)
        return start is None or start >= offset

    def is_over(self, read: Read) -> bool:
        """Whether it was over before a read began."""
        return self.ended is not None and self.ended < read.began


@dataclass
class Acceptance:
    """A person continues without what a loss of power took: offsets ``[start, end)`` by partition.

    ``named`` is None if nobody was told which they are.
    """

    at: int
    named: dict[int, tuple[int, int]] | None = None

    def names(self, place: Place) -> bool:
        """Whether an offset may be gone from then on."""
        partition, offset = place
        start, end = (0, offset + 1) if self.named is None else self.named.get(partition, (0, 0))
        return start <= offset < end


@dataclass
class Moved:
    """A broker moves a partition's replica to another of its log directories.

    It is over when the broker has written down there how far the replica is committed: ``ended``.
    """

    partition: int
    began: int
    ended: int | None = None

    def is_amid(self, read: Read) -> bool:
        """Whether a read came amid it."""
        return self.began < read.ended and (self.ended is None or read.began < self.ended)


@dataclass
class History:
    """All that writers and readers were told."""

    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    losses_of_power: list[int] = field(default_factory=list)
    losses_are_named: bool = True
    accepted: list[Acceptance] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    """The keys of values, if older records of a key may be gone: it is compacted."""
    parts_may_be_away: bool = False
    """Whether directories may not be mounted: what was planned of them is skipped then, and said
    once, by those who continue after a loss."""
    moves: list[Moved] = field(default_factory=list)
    parts_may_be_older: bool = False
    """Whether older copies may lie in directories' places: whoever is told of what they lack, and
    continues, is given it once the directory is back."""
    is_compacted: bool = False
    """Whether any record may be cleaned away."""
    errors: list[str] = field(default_factory=list)
    """What failed though nothing was in its way."""
    clock: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    operations: int = 0
    amid: int = 0
    """How many of them had another process act before they ended."""

    def now(self) -> int:
        """Return the time, which goes on."""
        return next(self.clock)


class Audit:
    """Looks a history through; ``found`` says what is wrong with it."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.found: list[str] = list(history.errors)
        self._writes = {value: each for each in history.writes for value in each.values}
        self._value_at: dict[Place, str] = {}
        self._place_of: dict[str, Place] = {}
        self._seen: dict[str, int] = {}
        self._look()

    def _look(self) -> None:
        lives: dict[str, list[Read]] = {}
        for read in self._history.reads:
            self._rows(read)
        self._by_key: dict[tuple[int, str], list[int]] = {}
        for value, (partition, offset) in self._place_of.items():
            if value in self._history.keys:
                key = partition, self._history.keys[value]
                self._by_key.setdefault(key, []).append(offset)
        for read in self._history.reads:
            self._gaps(read)
            self._batches(read)
            if read.life is None:
                self._whole(read)
            else:
                lives.setdefault(read.life, []).append(read)
        for reads in lives.values():
            self._life(reads)
        self._ends()

    def _say(self, what: str) -> None:
        if len(self.found) < 20:
            self.found.append(what)

    # What may be gone

    def _may_start(self, partition: int, offset: int, read: Read) -> bool:
        """Whether all below an offset may have been deleted on purpose."""
        return self._history.is_compacted or any(
            cut.reaches(partition, offset, read) for cut in self._history.cuts
        )

    def _may_lack(self, value: str, read: Read) -> bool:
        """Whether a value may have been deleted on purpose."""
        partition = self._writes[value].values[value]
        offset = self._place_of[value][1] if value in self._place_of else 0
        return self._may_start(partition, offset + 1, read)

    def _is_older(self, value: str) -> bool:
        """Whether a later record of the same key was seen: compaction may have taken a value."""
        key = self._history.keys.get(value)
        if key is None:
            return False
        partition = self._writes[value].values[value]
        offset = self._place_of[value][1] if value in self._place_of else -1
        return any(other > offset for other in self._by_key.get((partition, key), ()))

    def _are_older(self, partition: int, start: int, end: int) -> bool:
        """Whether compaction may have taken all that was seen of ``[start, end)``."""
        if self._history.is_compacted:
            return True
        known = (self._value_at.get((partition, offset)) for offset in range(start, end))
        is_compacted = bool(self._history.keys) and start < end
        return is_compacted and all(value is None or self._is_older(value) for value in known)

    def _is_unnamed(self, value: str, write: Write, read: Read) -> bool:
        """Whether a loss of power took what was acknowledged, and no person was told so."""
        if not self._history.losses_are_named:
            return False
        place = self._place_of.get(value)
        losses = [at for at in self._history.losses_of_power if write.began < at < read.began]
        if place is None or len(write.tries) > 1 or write.outcome != "ok" or not losses:
            return False
        was_there = write.acknowledged < losses[0]
        return was_there and not any(each.names(place) for each in self._history.accepted)

    def _was_lost(self, write: Write, since: int, until: int) -> bool:
        """Whether a loss of power between two moments may have taken what was there of a write.

        guarantees.md: nothing is lost with ``flush=commit`` once a commit has returned; what
        ``flush=os`` left unsynced may be.
        """
        done = write.acknowledged if write.outcome == "ok" and write.is_durable else until
        return any(since < at < until and at < done for at in self._history.losses_of_power)

    def _missing(self, write: Write, there: set[str], read: Read) -> list[str]:
        missing = sorted(write.values.keys() - there)
        if write.is_left_to_system and self._was_lost(write, write.began, read.began):
            missing = [value for value in missing if self._is_unnamed(value, write, read)]
        if write.is_brokers and read.copied is not None and read.copied < write.acknowledged:
            return []  # protocol.md, "Directories that are away": what the images know
        missing = [value for value in missing if not self._is_older(value)]
        missing = [value for value in missing if not self._waits(value, read)]
        missing = [value for value in missing if not self._lies_below(value, read)]
        return [value for value in missing if not self._may_lack(value, read)]

    def _lies_below(self, value: str, read: Read) -> bool:
        """Whether a query may be past a record, which took the place of a broker's on a copy.

        protocol.md, "Directories that are away": no state of ours knows what a broker has appended
        since the copy was made, and the query has read that.
        """
        partition = self._writes[value].values[value]
        if read.life is None or read.copied is None:
            return False
        lives = (each for each in self._history.reads if each.life == read.life)
        rows = (row for each in lives if each.began < read.began for row in each.rows)
        writes = (self._writes.get(other) for p, _, other in rows if p == partition)
        return any(w and w.is_brokers and read.copied < w.acknowledged for w in writes)

    def _waits(self, value: str, read: Read) -> bool:
        """Whether a broker's record at the end of a log is there, and not committed again yet.

        guarantees.md: a committed end may go back, as after a replica has moved between a broker's
        log directories.
        """
        write = self._writes[value]
        partition = write.values[value]
        moves = (each for each in self._history.moves if each.partition == partition)
        if not write.is_brokers or not any(each.is_amid(read) for each in moves):
            return False
        offset = self._place_of.get(value, (partition, 1 << 62))[1]
        return not any(p == partition and other > offset for p, other, _ in read.rows)

    def _all_wait(self, partition: int, start: int, end: int, read: Read) -> bool:
        known = [self._value_at.get((partition, offset)) for offset in range(start, end)]
        return all(value is not None and self._waits(value, read) for value in known)

    def _are_brokers(self, partition: int, start: int) -> bool:
        """Whether a broker has written what was seen from an offset on: no state of ours knows."""
        seen = ((p, offset, self._writes.get(v)) for (p, offset), v in self._value_at.items())
        return any(w and w.is_brokers and p == partition and at >= start for p, at, w in seen)

    # One read

    def _gaps(self, read: Read) -> None:
        self._bounds(read)
        seen: dict[int, int] = {}
        for partition, offset, _ in read.rows:
            due = seen.get(partition, offset)
            is_told = all((partition, each) in read.passed_over for each in range(due, offset))
            is_told = (is_told and offset > due) or read.skips
            if offset != due and not is_told and not self._are_older(partition, due, offset):
                self._say(f"{read.reader}: offset {offset} after {due - 1} in {partition}")
            seen[partition] = offset + 1

    def _rows(self, read: Read) -> None:
        for partition, offset, value in read.rows:
            place = (partition, offset)
            write = self._writes.get(value)
            self._place(read, place, value)
            if write is None or write.began > read.ended:
                self._say(f"{read.reader}: {value} was not written")
            elif write.outcome == "fail":
                self._say(f"{read.reader}: {value} is seen, and failed: {write.tries}")
            elif write.values[value] != partition:
                self._say(f"{read.reader}: {value} in {partition}")

    def _bounds(self, read: Read) -> None:
        """See that a micro-batch gives what lies between its bounds, and all of it."""
        if read.bounds is None:
            return
        for partition in read.bounds.keys() | {partition for partition, _, _ in read.rows}:
            start, end = read.bounds.get(partition, (0, 0))
            there = {offset for p, offset, _ in read.rows if p == partition}
            due = set(range(start, end))
            may_lack = read.skips or read.told_of_loss or self._history.is_compacted
            if there - due or (due - there and not may_lack):
                wrong = f"more {sorted(there - due)}, less {sorted(due - there)}"
                self._say(f"{read.reader}: of {partition} not [{start}, {end}): {wrong:.200}")

    def _place(self, read: Read, place: Place, value: str) -> None:
        """See that a place has the value that it had, and a value the place, powers aside."""
        was = self._value_at.setdefault(place, value)
        if was != value:
            if not self._is_back(was, read) and not self._was_lost(
                self._writes[was], self._seen[was], read.began
            ):
                self._say(f"{read.reader}: {place} is {value}, was {was}")
            self._value_at[place] = value
        before = self._place_of.setdefault(value, place)
        if before != place:
            write = self._writes.get(value)
            if write is None or not self._was_lost(write, self._seen[value], read.began):
                self._say(f"{read.reader}: {value} at {place}, and at {before}")
            self._place_of[value] = place
        self._seen[value] = max(self._seen.get(value, 0), read.shows)

    def _is_back(self, was: str, read: Read) -> bool:
        """Whether a directory came back that a broker has appended to an older copy of.

        protocol.md, "Directories that are away": what is written to an image is there when the
        image comes back, and not in the directory.
        """
        is_told = read.told_of_loss and self._history.parts_may_be_older
        return is_told and self._writes[was].is_brokers

    def _batches(self, read: Read) -> None:
        values = [value for _, _, value in read.rows]
        there = set(values)
        is_short = read.skips and self._history.parts_may_be_away
        if not read.is_part and not read.told_of_loss and not is_short:
            for write in {id(each): each for v in values if (each := self._writes.get(v))}.values():
                missing = self._missing(write, there, read)
                if missing:
                    self._say(f"{read.reader}: sees a part of a batch: without {missing}")
        places = {value: (p, o) for p, o, value in read.rows}
        for write in {id(each): each for v in values if (each := self._writes.get(v))}.values():
            found = sorted(places[value] for value in write.values if value in places)
            by_row = sorted(
                (places[value] for value in write.values if value in places), key=lambda p: p[0]
            )
            if found != by_row:
                self._say(f"{read.reader}: the order of {list(write.values)} is turned around")

    def _whole(self, read: Read) -> None:
        for partition, first in _firsts(read).items():
            is_told = all((partition, each) in read.passed_over for each in range(first))
            is_older = is_told or self._are_older(partition, 0, first)
            if first and not is_older and not self._may_start(partition, first, read):
                self._say(f"{read.reader}: {partition} begins at {first}")
            for cut in self._history.cuts:
                if cut.is_over(read) and first < (cut.starts.get(partition) or 0):
                    self._say(f"{read.reader}: {partition} begins at {first}, deleted by {cut}")
        if read.told_of_loss:
            return
        there = {value for _, _, value in read.rows}
        for write in self._history.writes:
            if write.outcome == "ok" and write.acknowledged < read.began:
                is_lost = not write.is_durable and self._was_lost(write, write.began, read.began)
                if is_lost and not write.is_left_to_system:
                    continue
                missing = self._missing(write, there, read)
                if missing:
                    self._say(f"{read.reader}: lacks what was acknowledged: {missing}")
        self._kept(read)

    def _kept(self, read: Read) -> None:
        """See that retention left as much as it was told to."""
        kept = [cut.keeps_bytes for cut in self._history.cuts if cut.keeps_bytes is not None]
        if not kept or self._history.keys or any(cut.starts for cut in self._history.cuts):
            return
        for write in self._history.writes:
            if write.began < read.ended and (not write.ended or read.began < write.ended):
                return  # its end may be older than what retention counted from
        counts = Counter(partition for partition, _, _ in read.rows)
        for partition, first in _firsts(read).items():
            if first and counts[partition] < min(kept) // _MOST_BYTES:
                self._say(
                    f"{read.reader}: of {partition} only {counts[partition]} records are left"
                )

    # Several reads

    def _life(self, reads: list[Read]) -> None:
        ends: dict[int, int] = {}
        last: dict[int, int] = {}
        told_at = -1
        for number, read in enumerate(reads):
            told_at = number if read.told_of_loss else told_at
            for partition, offset, _ in read.rows:
                due = ends.get(partition, 0)
                # What was skipped may have been all that a batch was to give of a partition.
                is_told = read.skips and told_at >= last.get(partition, 0)
                if read.begins_anywhere and partition not in ends:
                    due = offset
                may_skip = partition not in ends or is_told or self._history.is_compacted
                last[partition] = number
                is_gone = self._may_start(partition, offset, read) or (
                    is_told and self._history.parts_may_be_away
                )
                is_back = is_told and (
                    bool(self._history.losses_of_power) or self._history.parts_may_be_older
                )
                skips = (may_skip and is_gone) or self._are_older(partition, due, offset)
                if (offset < due and not is_back) or (offset > due and not skips):
                    self._say(
                        f"{read.reader}: gives offset {offset} of {partition} where {due} is due"
                    )
                ends[partition] = offset + 1

    def _ends(self) -> None:
        whole = sorted((r for r in self._history.reads if r.life is None), key=lambda r: r.ended)
        highest: dict[int, int] = {}
        falls = [(read.ended, 1, read) for read in whole] + [(r.began, 0, r) for r in whole]
        floors: dict[int, dict[int, int]] = {}
        losses = iter([*self._history.losses_of_power, 1 << 62])
        last, loss = 0, next(losses)
        for at, kind, read in sorted(falls, key=lambda each: each[:2]):
            while at > loss:
                # What was seen and not acknowledged may be gone.
                highest, last, loss = self._durable_ends(loss), loss, next(losses)
            if kind == 0:
                floors[id(read)] = dict(highest)
                continue
            ends = {partition: offset + 1 for partition, offset, _ in read.rows}
            for partition, floor in floors[id(read)].items():
                end = ends.get(partition, 0)
                is_gone = partition not in ends and self._may_start(partition, floor, read)
                # A cleaner may take the last rows that were planned, for newer ones after them.
                is_gone = is_gone or self._are_older(partition, end, floor)
                is_gone = is_gone or self._all_wait(partition, end, floor, read)
                is_gone = is_gone or (read.copied is not None and self._are_brokers(partition, end))
                if end < floor and not is_gone and not read.told_of_loss:
                    self._say(f"{read.reader}: the end of {partition} fell below {floor}")
            if read.shows > last:
                highest |= {p: max(highest.get(p, 0), end) for p, end in ends.items()}

    def _durable_ends(self, loss: int) -> dict[int, int]:
        """Give the least ends that a loss of power leaves."""
        ends: dict[int, int] = {}
        for value, seen in self._seen_before(loss).items():
            write = self._writes.get(value)
            if write is not None and not self._was_lost(write, 0, loss + 1):
                partition, offset = seen
                ends[partition] = max(ends.get(partition, 0), offset + 1)
        return ends

    def _seen_before(self, loss: int) -> dict[str, Place]:
        """Give the places of values by the whole reads that ended before a moment."""
        return {
            value: (partition, offset)
            for read in self._history.reads
            if read.life is None and read.ended < loss
            for partition, offset, value in read.rows
        }


def _firsts(read: Read) -> dict[int, int]:
    return {partition: offset for partition, offset, _ in reversed(read.rows)}
