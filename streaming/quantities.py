"""Lengths of time and sizes as people write them, and what is said about one that is refused."""

from __future__ import annotations

import re
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from kafkalog.streaming.times import parse_iso_time

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DURATION_UNITS_MS", "SIZE_UNITS", "quantity_hint", "read_quantity"]

SIZE_UNITS: Final = {"": 1, "b": 1} | {
    prefix + suffix: 1024**power
    for power, prefix in enumerate("kmgtp", start=1)
    for suffix in ("", "b")
}
DURATION_UNITS_MS: Final = {
    "": 1,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_QUANTITY: Final = re.compile(r"(-?[0-9]+)\s*([a-z]*)", re.ASCII)

# What no option accepts, and a hint reads all the same.
_MORE_SIZES: Final = SIZE_UNITS | {
    prefix + "ib": 1024**power for power, prefix in enumerate("kmgtp", start=1)
}
_MORE_DURATIONS_MS: Final = DURATION_UNITS_MS | {
    name + ending: factor
    for names, factor in (
        ("sec second", 1000),
        ("min minute", 60_000),
        ("hr hour", 3_600_000),
        ("day", 86_400_000),
        ("w week", 604_800_000),
    )
    for name in names.split()
    for ending in ("", "s")
}
_DECIMAL: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)", re.ASCII)
_DIGITS: Final = 15
"""Of the number in a hint: a longer one is no size and no time."""


def read_quantity(units: Mapping[str, int], text: str) -> int:
    """Read a whole number with a unit.

    Raises:
        ValueError: it is none.
    """
    match = _QUANTITY.fullmatch(text.strip().lower())
    if match is None or match[2] not in units:
        raise ValueError
    return int(match[1]) * units[match[2]]


def quantity_hint(name: str, text: str) -> str:
    """Return the end of a sentence that refuses a text for a number of ms or bytes.

    ``name`` is the setting's, or its unit: its end says what is counted. It is empty where there is
    nothing to say: ``: 7d is 604800000``.
    """
    counted = name.rpartition(".")[2]
    if counted not in {"ms", "bytes"}:
        return ""
    given = text.strip()
    units = _MORE_DURATIONS_MS if counted == "ms" else _MORE_SIZES
    match = _DECIMAL.fullmatch(given.lower())
    if match and match[2] in units and len(match[1]) <= _DIGITS:
        return f": {given} is {int(Decimal(match[1]) * units[match[2]])}"
    if counted == "ms":
        with suppress(ValueError, OverflowError):
            parse_iso_time(given)
            return ". A date is no length of time; 7 days are 604800000"
    return ""
