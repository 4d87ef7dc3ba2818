"""Lengths of time, sizes, points in time and JSON as people write them."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from kafkalog.errors import OptionError
from kafkalog.model import MAX_OFFSET

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = [
    "DURATION_UNITS_MS",
    "SIZE_UNITS",
    "TIME_ACCEPTS",
    "RepeatedNameError",
    "iso_time",
    "milliseconds_of",
    "moment",
    "parse_iso_time",
    "parse_json",
    "quantity_hint",
    "read_moment",
    "read_quantity",
    "short_duration",
    "shown_time",
]


# ----------------------------------------------------------------------------------------------
# JSON as people write it, with each name of an object once.
#
# Of two values for one name, Python and Java take the last without a word: the other one is lost.


class RepeatedNameError(ValueError):
    """An object has a name twice."""

    def __init__(self, name: str) -> None:
        super().__init__(f"it has {name!r} twice")
        self.name = name


def parse_json(text: str | bytes) -> Any:  # noqa: ANN401 - what JSON has
    """Parse a JSON text.

    Raises:
        RepeatedNameError: an object has a name twice.
        ValueError: it is no JSON.
        RecursionError: it is nested too deep.
    """
    return json.loads(text, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise RepeatedNameError(name)
        found[name] = value
    return found


# ----------------------------------------------------------------------------------------------
# Lengths of time, sizes and points in time as people write them.


# ----------------------------------------------------------------------------------------------
# Points in time as people write them: ISO 8601, or milliseconds since 1970.


TIME_ACCEPTS: Final = "a time such as 2026-11-22T10:15:00Z, or milliseconds since 1970"

_SECONDS: Final = range(10**9, 4_102_444_800)
"""Numbers that are times from 2001 to 2099 as seconds, and days of 1970 as milliseconds."""
_DATES: Final = range(19_700_101, 21_000_000)
"""Numbers that are dates without hyphens, and hours of 1970 as milliseconds."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def milliseconds_of(option: str, text: str, *, accepts: str = TIME_ACCEPTS) -> int:
    """Read a point in time: ``2026-11-22``, ``2026-11-22T10:15:00Z`` or milliseconds.

    A time without a zone is UTC. ``accepts`` is what the option takes, for the error.

    Raises:
        OptionError: it is none, or a number that counts seconds by all appearances.
    """
    try:
        return _milliseconds(text)
    except OptionError as error:
        raise OptionError(f"{option} is {error}") from None
    except ValueError:
        raise OptionError(f"{option} is {text!r}, expected {accepts}") from None


def moment(option: str, given: int | str | datetime) -> int:
    """Return the milliseconds of a point in time, also of one that Python's library made.

    Raises:
        OptionError: as in :func:`milliseconds_of`.
    """
    return milliseconds_of(option, given.isoformat() if isinstance(given, datetime) else str(given))


def read_moment(text: str) -> int:
    """Read a point in time as :func:`milliseconds_of` does, for an option that names itself.

    Raises:
        ValueError: it is none, or lies before 1970 or beyond an int64.
        OptionError: a number that counts seconds by all appearances.
    """
    time = _milliseconds(text)
    if not 0 <= time <= MAX_OFFSET:
        raise ValueError
    return time


def _milliseconds(text: str) -> int:
    text = text.strip()
    number = int(text) if text.isdecimal() and text.isascii() else None
    if number is not None and number in _SECONDS:
        raise OptionError(
            f"{text}, which looks like seconds since 1970: a number counts milliseconds. Give "
            f"{number * 1000}, or {shown_time(number * 1000)}"
        )
    date = _date(text) if number is not None and number in _DATES else None
    if date is not None:
        raise OptionError(f"{text}, which looks like a date: write {date}")
    return parse_iso_time(text) if number is None else number


def _date(text: str) -> str | None:
    """Return the date of ``20231114``; None if no month has such a day."""
    with suppress(ValueError):
        return datetime.strptime(text, "%Y%m%d").replace(tzinfo=UTC).date().isoformat()
    return None


def parse_iso_time(text: str) -> int:
    """Return the milliseconds of a time in ISO 8601; without a zone it is UTC.

    Raises:
        ValueError: it is none.
    """
    time = datetime.fromisoformat(text)
    return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND


def iso_time(milliseconds: int) -> str | None:
    """Return a time as ISO 8601 in UTC; None where the calendar has no such year."""
    try:
        time = _EPOCH + milliseconds * _MILLISECOND
    except OverflowError:
        return None
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shown_time(milliseconds: int) -> str:
    """Return :func:`iso_time`, or the number itself where there is none."""
    return iso_time(milliseconds) or str(milliseconds)


# ----------------------------------------------------------------------------------------------
# Lengths of time and sizes as people write them, and what is said about one that is refused.


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
_SHORT_DURATIONS_MS: Final = {unit: DURATION_UNITS_MS[unit] for unit in "dhms"}
_SHORT_SIZES: Final = {unit: SIZE_UNITS[unit] for unit in "tgmk"}
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
    nothing to say: ``: 7 days is 604800000, or 7d``.
    """
    counted = name.rpartition(".")[2]
    if counted not in {"ms", "bytes"}:
        return ""
    given = text.strip()
    is_time = counted == "ms"
    number = _counted(given, _MORE_DURATIONS_MS if is_time else _MORE_SIZES)
    if number is not None:
        short = _short(number, _SHORT_DURATIONS_MS if is_time else _SHORT_SIZES)
        return f": {given} is {number}" + (f", or {short}" if short not in {given, None} else "")
    if is_time:
        with suppress(ValueError, OverflowError):
            parse_iso_time(given)
            return ". A date is no length of time; 7 days are 604800000, or 7d"
    return ""


def short_duration(text: str) -> str | None:
    """Return a length of time as options accept it, ``7d`` of ``7 days``; None if it is none."""
    number = _counted(text.strip(), _MORE_DURATIONS_MS)
    return None if number is None else _short(number, _SHORT_DURATIONS_MS) or f"{number}ms"


def _counted(given: str, units: Mapping[str, int]) -> int | None:
    match = _DECIMAL.fullmatch(given.lower())
    if not match or match[2] not in units or len(match[1]) > _DIGITS:
        return None
    return int(Decimal(match[1]) * units[match[2]])


def _short(number: int, units: Mapping[str, int]) -> str | None:
    """Return a number in the largest unit that it is a whole number of; None if it has none."""
    for unit, factor in units.items():
        if number and number % factor == 0:
            return f"{number // factor}{unit}"
    return None
