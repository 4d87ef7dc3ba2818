"""What happened, and what may never have happened, whoever did what for whatever reason.

Nothing here knows how kafkalog works. Each record is written under one name only, ``writes`` says
what its writer was told, and ``reads`` what each look at a topic gave. Time counts the entries.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Audit", "History", "Read", "Write"]

Place = tuple[int, int]
"""Partition and offset."""


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
    tries: list[str] = field(default_factory=list)


@dataclass
class Read:
    """A look at all of a topic, or one micro-batch of a ``life`` (a query, restarts included)."""

    reader: str
    began: int
    ended: int
    rows: list[tuple[int, int, str]]
    life: str | None = None


@dataclass
class History:
    """All that writers and readers were told."""

    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    """What failed though nothing was in its way."""
    tick: int = 0

    def now(self) -> int:
        """Return the time, which goes on."""
        self.tick += 1
        return self.tick


class Audit:
    """Looks a history through; ``found`` says what is wrong with it."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.found: list[str] = list(history.errors)
        self._writes = {value: each for each in history.writes for value in each.values}
        self._value_at: dict[Place, str] = {}
        self._place_of: dict[str, Place] = {}
        self._look()

    def _look(self) -> None:
        lives: dict[str, list[Read]] = {}
        for read in self._history.reads:
            self._rows(read)
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

    def _rows(self, read: Read) -> None:
        seen: dict[int, int] = {}
        for partition, offset, value in read.rows:
            place = (partition, offset)
            if partition in seen and offset != seen[partition] + 1:
                self._say(f"{read.reader}: offset {offset} after {seen[partition]} in {partition}")
            seen[partition] = offset
            if self._value_at.setdefault(place, value) != value:
                self._say(f"{read.reader}: {place} is {value}, was {self._value_at[place]}")
            if self._place_of.setdefault(value, place) != place:
                self._say(f"{read.reader}: {value} at {place}, and at {self._place_of[value]}")
            write = self._writes.get(value)
            if write is None or write.began > read.ended:
                self._say(f"{read.reader}: {value} was not written")
            elif write.outcome == "fail":
                self._say(f"{read.reader}: {value} is seen, and failed: {write.tries}")
            elif write.values[value] != partition:
                self._say(f"{read.reader}: {value} in {partition}")

    def _batches(self, read: Read) -> None:
        values = [value for _, _, value in read.rows]
        there = set(values)
        for write in {id(each): each for v in values if (each := self._writes.get(v))}.values():
            missing = write.values.keys() - there
            if missing:
                self._say(f"{read.reader}: sees a part of a batch: without {sorted(missing)}")
        places = {value: (p, o) for p, o, value in read.rows}
        for write in self._history.writes:
            found = sorted(places[value] for value in write.values if value in places)
            by_row = sorted(
                (places[value] for value in write.values if value in places), key=lambda p: p[0]
            )
            if found != by_row:
                self._say(f"{read.reader}: the order of {list(write.values)} is turned around")

    def _whole(self, read: Read) -> None:
        first = {partition: offset for partition, offset, _ in reversed(read.rows)}
        if any(first.values()):
            self._say(f"{read.reader}: begins at {first}")
        there = {value for _, _, value in read.rows}
        for write in self._history.writes:
            if write.outcome == "ok" and write.acknowledged < read.began:
                missing = write.values.keys() - there
                if missing:
                    self._say(f"{read.reader}: lacks what was acknowledged: {sorted(missing)}")

    def _life(self, reads: list[Read]) -> None:
        ends: dict[int, int] = {}
        for read in reads:
            for partition, offset, _ in read.rows:
                if offset != ends.get(partition, 0):
                    self._say(
                        f"{read.reader}: gives offset {offset} of {partition} where "
                        f"{ends.get(partition, 0)} is due"
                    )
                ends[partition] = offset + 1

    def _ends(self) -> None:
        whole = sorted((r for r in self._history.reads if r.life is None), key=lambda r: r.ended)
        highest: dict[int, int] = {}
        falls = [(read.ended, 1, read) for read in whole] + [(r.began, 0, r) for r in whole]
        floors: dict[int, dict[int, int]] = {}
        for _, kind, read in sorted(falls, key=lambda each: each[:2]):
            if kind == 0:
                floors[id(read)] = dict(highest)
                continue
            ends = {partition: offset + 1 for partition, offset, _ in read.rows}
            for partition, floor in floors[id(read)].items():
                if ends.get(partition, 0) < floor:
                    self._say(f"{read.reader}: the end of {partition} fell below {floor}")
            for partition, end in ends.items():
                highest[partition] = max(highest.get(partition, 0), end)
