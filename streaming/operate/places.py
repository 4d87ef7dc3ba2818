"""Damaged places by name, and what to do with each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self, TypeAlias

from kafkalog.errors import OptionError
from kafkalog.model import MAX_OFFSET, TopicPartition
from kafkalog.streaming.log.files import LOG, file_name, parse_partition_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.streaming.operate.damage import Damage, LogDamage

__all__ = ["Choice", "PlaceName", "chosen_places", "place_name"]

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
