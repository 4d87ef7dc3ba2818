"""What a schema and a value may be at most, and the errors of those that are not.

A schema of a few lines can stand for a billion fields, when types name each other twice, and a
value of a few bytes for a billion items without bytes. So everything is counted before it is made.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from kafkalog.errors import SchemaError

__all__ = [
    "MAX_DEPTH",
    "MAX_TEXT_BYTES",
    "Cells",
    "DecodeError",
    "FieldBudget",
    "check_depth",
    "parse_json",
]

MAX_TEXT_BYTES: Final = 4 << 20
"""The longest text of a schema, with all that it refers to."""
MAX_DEPTH: Final = 64
"""How deep schemas and values are nested. Avro's library has no bound: it would crash."""
_MAX_FIELDS: Final = 10_000
_BASE_CELLS: Final = 100_000
_CELLS_PER_BYTE: Final = 16


class DecodeError(ValueError):
    """A value that is none of its schema; the row says so."""


@dataclass(slots=True)
class FieldBudget:
    """How many more fields a type may have, all that it names unfolded."""

    left: int = _MAX_FIELDS

    def take(self) -> None:
        """Count a field.

        Raises:
            SchemaError: there are too many.
        """
        self.left -= 1
        if self.left < 0:
            raise SchemaError(f"the schema has more than {_MAX_FIELDS:,} fields, unfolded")


@dataclass(slots=True)
class Cells:
    """How many fields a value fills: an array may repeat, in a byte each, a type of many."""

    used: int = 0
    _most: int = 0

    def begin(self, size: int) -> None:
        """Begin with a value of so many bytes."""
        self.used, self._most = 0, _BASE_CELLS + _CELLS_PER_BYTE * size

    def take(self, count: int) -> None:
        """Count fields that are about to be filled.

        Raises:
            DecodeError: there are far more than bytes.
        """
        self.used += count
        if self.used > self._most:
            raise DecodeError(f"fills more than {self._most:,} fields")


def check_depth(parsed: Any) -> None:  # noqa: ANN401 - JSON
    """Refuse JSON that is nested deeper than any schema of use; it is walked without recursion.

    Raises:
        SchemaError: it is.
    """
    level = [parsed] if isinstance(parsed, dict | list) else []
    for _ in range(2 * MAX_DEPTH):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [item for items in inner for item in items if isinstance(item, dict | list)]
        if not level:
            return
    raise SchemaError(f"the schema is nested deeper than {2 * MAX_DEPTH} levels")


def parse_json(text: str) -> Any:  # noqa: ANN401 - JSON
    """Parse the JSON of a schema.

    Raises:
        SchemaError: it is none, too much, or nested too deep.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise SchemaError(f"the schema has {len(text)} characters, more than {MAX_TEXT_BYTES}")
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the schema is no JSON: {error}") from None
    check_depth(parsed)
    return parsed
