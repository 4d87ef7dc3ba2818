"""What rows hold, as people read it: numbers of bytes, points in time and lengths of time.

Rows keep exact numbers, which ``--json`` prints. :func:`for_people` makes of them what tables show,
by the names of the fields.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from kafkalog.files.system import system
from kafkalog.streaming.times import shown_time

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["for_people", "shown_duration", "shown_size"]

_SIZES: Final = {"bytes", "bytesBefore", "bytesPerBatch", "size"}
_TIMES: Final = {"baseTimestamp", "firstTimestamp", "maxTimestamp", "nextTimestamp", "timestamp"}
_AGED_TIMES: Final = {"lastTimestamp"}
_DURATIONS: Final = {"behindMs": "behind"}
"""Fields and what they are called in a table: a length of time says its unit itself."""
_UNITS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1))


def shown_size(size: int) -> str:
    """Return a number of bytes in the unit that suits it: ``812 B``, ``1.2 GiB``."""
    if size < 1024:
        return f"{size} B"
    amount = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        amount /= 1024
        if amount < 1023.95 or unit == "PiB":
            break
    return f"{amount:.1f} {unit}"


def shown_duration(milliseconds: int) -> str:
    """Return a length of time in the largest unit it fills, and in the next: ``3 h 5 min``.

    What is less than that is left out; ``ms`` stand for themselves.
    """
    for (unit, size), (lower, lower_size) in pairwise(_UNITS):
        if milliseconds >= size:
            count, rest = divmod(milliseconds, size)
            below = rest // lower_size if lower != "ms" else 0
            return f"{count} {unit} {below} {lower}" if below else f"{count} {unit}"
    return f"{milliseconds} ms"


def for_people(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row whose sizes and times have units; a time that a record does not have is None."""
    return {_DURATIONS.get(name, name): _shown(name, value) for name, value in row.items()}


def _shown(name: str, value: Any) -> Any:  # noqa: ANN401 - what rows hold
    if not isinstance(value, int):
        return value
    if name in _SIZES:
        return shown_size(value)
    if name in _DURATIONS:
        return shown_duration(value)
    if name in _TIMES:
        return None if value < 0 else shown_time(value)
    if name in _AGED_TIMES:
        return None if value < 0 else f"{shown_time(value)} ({_age(value)})"
    return value


def _age(time: int) -> str:
    age = system.time_ns() // 1_000_000 - time
    return f"{shown_duration(age)} ago" if age >= 0 else f"in {shown_duration(-age)}"
