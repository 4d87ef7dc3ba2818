"""Numbers and times for people: what a page says, and where the ticks of an axis lie."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from kafkalog.jobs.units import shown_duration
from kafkalog.streaming.times import shown_time

__all__ = [
    "count_ticks",
    "per_span",
    "shown_count",
    "shown_moment",
    "shown_second",
    "shown_span",
    "size_ticks",
    "time_ticks",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = 253_402_300_799_999
"""Of the year 9999: the calendar knows no later time."""
_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_STEPS: Final = (
    *(each * _SECOND for each in (1, 2, 5, 10, 15, 30)),
    *(each * _MINUTE for each in (1, 2, 5, 10, 15, 30)),
    *(each * _HOUR for each in (1, 2, 3, 6, 12)),
    *(each * _DAY for each in (1, 2, 5, 10, 20)),
)
_MONTHS: Final = (1, 2, 3, 6, 12, 24, 60, 120, 240, 600, 1200, 2400, 6000, 12000, 24000)
_MONTH_NAMES: Final = (
    *("Jan", "Feb", "Mar", "Apr", "May", "Jun"),
    *("Jul", "Aug", "Sep", "Oct", "Nov", "Dec"),
)
_ONE: Final = {_SECOND: "second", _MINUTE: "minute", _HOUR: "hour", _DAY: "day"}
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def shown_count(number: int) -> str:
    """Return a number as an axis shows it: ``950``, ``12 k``, ``1.5 M``."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:g} {unit}"
    return str(number)


def shown_moment(milliseconds: int) -> str:
    """Return a time to the minute, in UTC: ``2023-11-14 22:13``."""
    return _cut(milliseconds, 16)


def shown_second(milliseconds: int) -> str:
    """Return a time to the second, in UTC: ``2023-11-14 22:13:20``."""
    return _cut(milliseconds, 19)


def _cut(milliseconds: int, length: int) -> str:
    text = shown_time(milliseconds)
    return text[:length].replace("T", " ") if "T" in text else text


def per_span(width_ms: int) -> str:
    """Return what a column of that width stands for: ``per day``, ``per 10 s``."""
    return f"per {_ONE.get(width_ms) or shown_duration(width_ms)}"


def shown_span(start: int, end: int) -> str:
    """Return a span of time by its ends (ms), without what both have in common."""
    first, last = shown_second(start), shown_second(end)
    if first == last:
        return first
    if len(first) == len(last) == 19 and first[:10] == last[:10]:
        return f"{first} \u2013 {last[11:]}"
    return f"{first} \u2013 {last}"


def size_ticks(most: int, number: int = 4) -> list[tuple[int, str]]:
    """Return where an axis of bytes from 0 on has ticks, and what they say."""
    step = 1
    while step * number < most:
        step *= 2
    return [(at, _size(at)) for at in range(0, most + step, step)]


def _size(size: int) -> str:
    unit = 0
    amount = float(size)
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount /= 1024
        unit += 1
    return f"{amount:g} {_UNITS[unit]}" if size else "0"


def count_ticks(most: int, number: int = 4) -> list[tuple[int, str]]:
    """Return where an axis of numbers from 0 on has ticks, and what they say."""
    power = 1
    while 10 * power * number < most:
        power *= 10
    step = next(each * power for each in (1, 2, 5, 10) if each * power * number >= most)
    return [(at, shown_count(at)) for at in range(0, most + step, step)]


def time_ticks(start: int, end: int, number: int = 6) -> list[tuple[int, str]]:
    """Return where an axis of time (ms) has ticks, and what they say: UTC.

    Nothing is said of what lies beyond the calendar.
    """
    if end > _LAST_MS:
        return []
    step = next((each for each in _STEPS if (end - start) / each <= number), None)
    if step is None:
        return _month_ticks(start, end, number)
    ticks, day = [], -1
    for at in range(-(-start // step) * step, end + 1, step):
        time = _EPOCH + timedelta(milliseconds=at)
        is_new_day, day = at // _DAY != day, at // _DAY
        date = f"{time.day} {_MONTH_NAMES[time.month - 1]}"
        if step >= _DAY or (is_new_day and not at % _DAY):
            ticks.append((at, date))
        else:
            ticks.append((at, f"{time:%H:%M}" if step >= _MINUTE else f"{time:%H:%M:%S}"))
    return ticks


def _month_ticks(start: int, end: int, number: int) -> list[tuple[int, str]]:
    first, last = (_EPOCH + timedelta(milliseconds=each) for each in (start, end))
    months = [each.year * 12 + each.month - 1 for each in (first, last)]
    step = next((each for each in _MONTHS if (months[1] - months[0]) / each <= number), _MONTHS[-1])
    ticks = []
    for month in range(-(-(months[0] + 1) // step) * step, months[1] + 1, step):
        time = datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC)
        at = (time - _EPOCH) // timedelta(milliseconds=1)
        said = str(time.year) if step >= 12 else f"{_MONTH_NAMES[time.month - 1]} {time.year}"
        ticks.append((at, said))
    return ticks
