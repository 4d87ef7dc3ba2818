"""Points in time as people write them: ISO 8601, or milliseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from kafkalog.errors import OptionError

__all__ = ["iso_time", "milliseconds_of", "parse_iso_time", "shown_time"]

_SECONDS: Final = range(10**8, 10**11)
"""Numbers that are dates from 1973 to 5138 as seconds, and days of 1970 to 1973 as milliseconds."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def milliseconds_of(option: str, text: str) -> int:
    """Read a point in time: ``2026-11-22``, ``2026-11-22T10:15:00Z`` or milliseconds.

    A time without a zone is UTC.

    Raises:
        OptionError: it is none, or a number that counts seconds by all appearances.
    """
    if text.isdecimal():
        number = int(text)
        if number in _SECONDS:
            raise OptionError(
                f"{option} is {text}, which looks like seconds since 1970: a number counts "
                f"milliseconds. Give {number * 1000}, or {shown_time(number * 1000)}"
            )
        return number
    try:
        return parse_iso_time(text.strip())
    except ValueError:
        raise OptionError(
            f"{option} is {text!r}, expected a time such as 2026-11-22T10:15:00Z, or milliseconds "
            "since 1970"
        ) from None


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
