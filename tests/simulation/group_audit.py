"""What may never be of a consumer group that copies a topic, whoever of its members died or slept.

Members write, for each row that they have read, its place and who they are: so nothing has to be
known of who read it. The log of the group says in one order what was decided and where the group
stood. From both follows what has to be in the copy, and by whom.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

__all__ = ["At", "Copied", "Decided", "GroupHistory", "GroupLook", "Reset", "Try", "audit_group"]

Place: TypeAlias = tuple[int, int]
"""A partition, and an offset."""


class Decided(NamedTuple):
    """A record of the group's log: a generation, and what each member has; by client id.

    ``generation`` is None where the group was forgotten.
    """

    generation: int | None
    held: Mapping[str, frozenset[int]]


class At(NamedTuple):
    """Another one: the group stands at an offset, or at none any more."""

    partition: int
    offset: int | None


Log: TypeAlias = Sequence[Decided | At]


class Copied(NamedTuple):
    """A row of the copy: the place of its row in the input, who wrote it, and in which append."""

    place: Place
    client: str
    append: str


@dataclass
class Try:
    """One append, and what its writer was told last."""

    places: list[Place]
    outcome: str = "unknown"


@dataclass
class Reset:
    """A person moved the group: where to, by partition; None for an offset that is not known."""

    to: dict[int, int | None]
    deletes: bool = False


@dataclass
class GroupLook:
    """What somebody found: the log of the group, then the copy, then the log."""

    who: str
    began: int
    before: Log
    rows: list[Copied]
    after: Log
    ended: int


@dataclass
class GroupHistory:
    """All looks; ``ends`` are those of the topic once all is quiet, and all was read."""

    looks: list[GroupLook] = field(default_factory=list)
    tries: dict[str, Try] = field(default_factory=dict)
    resets: list[Reset] = field(default_factory=list)
    ends: Mapping[int, int] | None = None
    losses_of_power: list[int] = field(default_factory=list)


class _Due:
    """What a log says: which rows have to be in the copy, and what each partition's holder was."""

    def __init__(self, log: Log, resets: Sequence[Reset]) -> None:
        self.found: list[str] = []
        self.at: dict[int, int] = {}
        self.rows: list[tuple[Place, frozenset[str]]] = []
        """Each row that the group has passed, with those who had its partition then."""
        self._resets = resets
        self._held: Mapping[str, frozenset[int]] = {}
        self._generation = 0
        for record in log:
            if isinstance(record, Decided):
                self._decided(record)
            else:
                self._moved(*record)

    def _decided(self, record: Decided) -> None:
        if record.generation is None:
            if not any(each.deletes for each in self._resets):
                self.found.append("the group was forgotten, and nobody deleted it")
        elif record.generation <= self._generation:
            self.found.append(f"generation {record.generation} after {self._generation}")
        twice = Counter(partition for own in record.held.values() for partition in own)
        if max(twice.values(), default=0) > 1:
            self.found.append(f"in generation {record.generation} two have one partition: {twice}")
        self._generation, self._held = record.generation or 0, record.held

    def _moved(self, partition: int, offset: int | None) -> None:
        before = self.at.get(partition)
        if offset is None:
            self.at.pop(partition, None)
            if not any(each.deletes for each in self._resets):
                self.found.append(f"the position of {partition} is gone, and nobody deleted it")
            return
        self.at[partition] = offset
        if not self._held:
            if not any(each.to.get(partition, -1) in {None, offset} for each in self._resets):
                self.found.append(f"{partition} goes to {offset}, and there is no member")
        elif before is None:
            if offset:
                self.found.append(f"{partition} begins at {offset}")
        elif offset < before:
            self.found.append(f"the position of {partition} falls from {before} to {offset}")
        else:
            owners = frozenset(each for each, own in self._held.items() if partition in own)
            self.rows += [((partition, number), owners) for number in range(before, offset)]


def audit_group(history: GroupHistory) -> list[str]:
    """Return what is wrong, a line each."""
    found: list[str] = []
    looks = sorted(history.looks, key=lambda each: each.began)
    for look in looks:
        found += _whole(look, history)
    for earlier in looks:
        for later in looks:
            is_same = earlier.ended < later.began and not any(
                each > earlier.began for each in history.losses_of_power
            )
            if is_same and list(later.before[: len(earlier.after)]) != list(earlier.after):
                found.append(f"{later.who}: the log of the group is another than {earlier.who} saw")
    if looks:
        found += _ends(looks[-1], history)
    return found[:20]


def _whole(look: GroupLook, history: GroupHistory) -> list[str]:
    """See that rows and positions come at once, each row once, by who had its partition."""
    first, last = _Due(look.before, history.resets), _Due(look.after, history.resets)
    found = [f"{look.who}: {each}" for each in last.found]
    there = Counter(each.place for each in look.rows)
    least, most = (Counter(place for place, _ in due.rows) for due in (first, last))
    if missing := least - there:
        found.append(f"{look.who}: passed, and not processed: {sorted(missing)[:10]}")
    if over := there - most:
        found.append(f"{look.who}: processed, and not passed or twice: {sorted(over)[:10]}")
    if look.before == look.after and not found:
        found += _by_owners(look, last)
    return found


def _by_owners(look: GroupLook, due: _Due) -> list[str]:
    """See that each row was written by who had its partition when the group passed it."""
    writers: dict[Place, list[str]] = {}
    for each in look.rows:
        writers.setdefault(each.place, []).append(each.client)
    for place, owners in due.rows:
        left = writers[place]
        mine = next((client for client in left if client in owners), None)
        if mine is None:
            return [f"{look.who}: {place} was processed by {left}, and {sorted(owners)} had it"]
        left.remove(mine)
    return []


def _ends(look: GroupLook, history: GroupHistory) -> list[str]:
    """See that what was told was so, and that all was read in the end."""
    found = []
    by_append = Counter(each.append for each in look.rows)
    for name, tried in history.tries.items():
        if tried.outcome == "fail" and by_append[name]:
            found.append(f"{name} failed, and is in the copy: {tried.places[:5]}")
        if tried.outcome == "ok" and by_append[name] != len(tried.places):
            found.append(f"{name} is acknowledged, and {by_append[name]} of its rows are there")
    at = _Due(look.after, history.resets).at
    if history.ends is not None and at != history.ends:
        found.append(f"the group ends at {at}, and the topic at {dict(history.ends)}")
    return found
