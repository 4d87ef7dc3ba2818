"""Kinds of option values: whole numbers, sizes, times, words, log directories."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from kafkalog.errors import OptionError
from kafkalog.files.paths import SCHEME, local_path, split_paths
from kafkalog.files.storage import RemoteRoot, is_object_uri
from kafkalog.streaming.options.quantities import DURATION_UNITS_MS, SIZE_UNITS, read_quantity

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "BOOLEAN",
    "DURATION_MS",
    "NAME",
    "NAMES",
    "OFFSETS",
    "PARTITIONS",
    "PATHS",
    "PATTERN",
    "READABLE_PATHS",
    "SIZE",
    "TEXT",
    "WRITABLE_PATHS",
    "Kind",
    "choice",
    "duration_ms",
    "integer",
    "number",
    "size",
    "text",
]

T_co = TypeVar("T_co", covariant=True)

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_LONG_MIN: Final = -(2**63)
_LONG_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Kind(Generic[T_co]):
    """What an option's text may be: ``accepts`` says it to a person, ``read`` turns it to a value.

    ``read`` raises ValueError for anything else; the error's text is not shown, ``accepts`` is.
    """

    accepts: str
    read: Callable[[str], T_co]


def _read_boolean(text: str) -> bool:
    key = text.strip().lower()
    if key not in {"true", "false"}:
        raise ValueError
    return key == "true"


def _read_text(text: str) -> str:
    stripped = text.strip()
    if not stripped:
        raise ValueError
    stripped.encode()  # a UnicodeEncodeError is a ValueError
    return stripped


def _read_name(text: str) -> str:
    """Read a text as it is: a blank before or after it is a mistake that is told, not mended."""
    if not text.strip():
        raise ValueError
    text.encode()
    return text


def _read_integer(text: str) -> int:
    stripped = text.strip()
    if not _INTEGER.fullmatch(stripped):
        raise ValueError
    return int(stripped)


def _within(read: Callable[[str], int], minimum: int, maximum: int) -> Callable[[str], int]:
    def bounded(text: str) -> int:
        value = read(text)
        if not minimum <= value <= maximum:
            raise ValueError
        return value

    return bounded


def _bounds(minimum: int, maximum: int) -> str:
    if minimum > _LONG_MIN and maximum < _LONG_MAX:
        return f" from {minimum} to {maximum}"
    if minimum > _LONG_MIN:
        return f" of at least {minimum}"
    return f" of at most {maximum}" if maximum < _LONG_MAX else ""


def integer(minimum: int = _LONG_MIN, maximum: int = _LONG_MAX) -> Kind[int]:
    """Accept a whole number within bounds (an int64 if none are given)."""
    accepts = "a whole number" + _bounds(minimum, maximum)
    return Kind(accepts, _within(_read_integer, minimum, maximum))


def number(minimum: float, maximum: float) -> Kind[float]:
    """Accept a decimal number within bounds."""

    def read(text: str) -> float:
        value = float(text)
        if not minimum <= value <= maximum:
            raise ValueError
        return value

    return Kind(f"a number from {minimum:g} to {maximum:g}", read)


def size(minimum: int = 0, maximum: int = _LONG_MAX) -> Kind[int]:
    """Accept bytes, plain or with k, m, g, t (powers of 1024)."""
    accepts = "a size such as 1048576 or 64m" + _bounds(minimum, maximum)
    return Kind(accepts, _within(functools.partial(read_quantity, SIZE_UNITS), minimum, maximum))


def duration_ms(minimum: int = 0, maximum: int = _LONG_MAX) -> Kind[int]:
    """Accept a time in ms, plain or with ms, s, m, min, h, d; the value is in ms."""
    accepts = "a time such as 1500, 5s, 15m or 7d (ms without unit)" + _bounds(minimum, maximum)
    read = functools.partial(read_quantity, DURATION_UNITS_MS)
    return Kind(accepts, _within(read, minimum, maximum))


def choice(*values: str) -> Kind[str]:
    """Accept one of some words, in any case; the value has the case written here."""
    by_key = {value.lower(): value for value in values}

    def read(text: str) -> str:
        found = by_key.get(text.strip().lower())
        if found is None:
            raise ValueError
        return found

    return Kind("one of " + ", ".join(values), read)


def _place(item: str) -> str:
    """Return the absolute local path of a path or ``file:`` URI, or the root that another names."""
    found = SCHEME.match(item)
    if found is None or found[1].lower() == "file":
        return local_path(item)
    if not item[found.end() :].startswith("//"):
        raise OptionError(f"{found[0]!r} begins no path and no URI with //")
    return RemoteRoot.parse(item)


def _writable_place(item: str) -> str:
    """Return the absolute local path of a path, or the root of a store that a log can lie in."""
    return RemoteRoot.parse(item) if is_object_uri(item) else local_path(item)


def _read_paths(text: str, read: Callable[[str], str] = local_path) -> tuple[str, ...]:
    paths = split_paths(text, read)
    if not paths:
        raise ValueError
    return paths


def text(accepts: str) -> Kind[str]:
    """Return a kind of text that is read elsewhere; ``accepts`` says what it is."""
    return Kind(accepts, _read_text)


TEXT: Final = text("a text (UTF-8) that is not empty")
NAMES: Final = text("names of topics, commas between them")
PATTERN: Final = text("a regular expression (Python's)")
OFFSETS: Final = text('JSON such as {"t":{"0":23}}')
PARTITIONS: Final = text('JSON such as {"t":[0,1]}')
NAME: Final = Kind(TEXT.accepts, _read_name)
BOOLEAN: Final = Kind("true or false", _read_boolean)
SIZE: Final = size()
DURATION_MS: Final = duration_ms()
PATHS: Final = Kind(
    "log directories (paths or file: URIs), commas between them, semicolons between nodes",
    _read_paths,
)
WRITABLE_PATHS: Final = Kind(
    "log directories (paths or file: URIs), commas between them, semicolons between nodes; or the "
    "URI of a log in a bucket",
    functools.partial(_read_paths, read=_writable_place),
)
READABLE_PATHS: Final = Kind(
    "log directories (paths or URIs), commas between them, semicolons between nodes",
    functools.partial(_read_paths, read=_place),
)
