"""What rows hold, as people read it: numbers of bytes, points in time, lengths of time, places.

Rows keep exact numbers, which ``--json`` prints. :func:`for_people` makes of them what tables show,
by the names of the fields.
"""

from __future__ import annotations

import os
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from kafkalog.files.system import system
from kafkalog.model import NO_TIMESTAMP
from kafkalog.streaming.options.quantities import shown_time

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "counted",
    "for_people",
    "is_number",
    "shown_duration",
    "shown_place",
    "shown_size",
]

_SIZES: Final = {"bytes", "bytesBefore", "bytesPerBatch", "size"}
_TIMES: Final = {"baseTimestamp", "firstTimestamp", "maxTimestamp", "nextTimestamp", "timestamp"}
_AGED_TIMES: Final = {"lastTimestamp"}
_DURATIONS: Final = {"behindMs"}
_NAMES: Final = {"behindMs": "behind", "unread": "uncommitted"}
"""Fields and what they are called in a table: a length of time says its unit itself."""
_NOT_COUNTED: Final = {
    "baseSequence",
    "coordinatorEpoch",
    "crc",
    "deleteHorizonMs",
    "generation",
    "lastSequence",
    "leader",
    "leaderEpoch",
    "magic",
    "node",
    "partition",
    "process",
    "producerEpoch",
    "producerId",
}
"""Numbers that are names of something: they are shown without separators."""
_PLACES: Final = {"copy", "path"}
_SENTENCES: Final = {"error", "problem", "reason"}
_FILES: Final = {"file"}
"""Of a partition's folder: shown with that folder's name, and not where it lies."""
_FILE_OF_LOG: Final = re.compile(r"(?<!\S)/[^\s:]*/([^/\s:]+-\d+/\d{20}\.\w+)")
_UNITS: Final = (
    ("y", 31_536_000_000),
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("min", 60_000),
    ("s", 1000),
    ("ms", 1),
)


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
    """Return a row whose sizes and times have units; a time that a record does not have is None.

    Places are as short as they can be named from here. Of a partition's folder, whose name the row
    says, the log directory is shown: ``directory``.
    """
    shown = {_NAMES.get(name, name): _shown(name, value) for name, value in row.items()}
    folder, slash, name = str(row.get("path")).rpartition("/")
    if slash and name == f"{row.get('topic')}-{row.get('partition')}":
        names = {"path": "directory"}
        shown["path"] = shown_place(folder)
        shown = {names.get(each, each): value for each, value in shown.items()}
    return shown


def is_number(name: str, value: object, *, has_units: bool = True) -> bool:
    """Whether a value that is shown is a number, or one with its unit."""
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float) or (has_units and name in _SIZES)


def counted(name: str, value: object) -> object:
    """Return a number that counts something with separators; another value as it is."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and name not in _NOT_COUNTED
    return f"{value:,}" if is_count else value


def shown_place(path: str) -> str:
    """Return a path as it can be named from the working folder, if that is shorter."""
    if not path or "://" in path:
        return path
    try:
        return min(path, os.path.relpath(path), key=len)
    except OSError:  # the working folder is gone
        return path


def _shown(name: str, value: Any) -> Any:  # noqa: ANN401 - what rows hold
    if not isinstance(value, int):
        return _place(name, value) if isinstance(value, str) else value
    if name in _SIZES:
        return shown_size(value)
    if name in _DURATIONS:
        return shown_duration(value)
    if name in _TIMES | _AGED_TIMES and value == NO_TIMESTAMP:
        return None
    if name in _TIMES:
        return shown_time(value)
    return _with_age(value) if name in _AGED_TIMES else value


def _with_age(time: int) -> str:
    return f"{_BELOW_SECONDS.sub('Z', shown_time(time))} ({_age(time)})"


def _place(name: str, text: str) -> str:
    if name in _FILES:
        return "/".join(text.split("/")[-2:])
    if name in _SENTENCES:
        return _FILE_OF_LOG.sub(r"\1", text)
    return shown_place(text) if name in _PLACES else text


def _age(time: int) -> str:
    age = system.time_ns() // 1_000_000 - time
    text = shown_duration(abs(age))
    text = text if abs(age) < _DAY_MS else " ".join(text.split()[:2])
    return f"{text} ago" if age >= 0 else f"in {text}"


_DAY_MS: Final = 86_400_000
_BELOW_SECONDS: Final = re.compile(r"\.\d{3}Z$")
