"""JSON: a column of a JSON Schema, and values brought into it.

A value says its own fields, so it is read by the column's schema alone; the one that it was written
by is not needed. What the schema has no single type for (several types, fields of any name beside
named ones, a type inside itself) is text of JSON. Fields that the schema does not name are left
out, and those that a value does not have are null. Other rules of a schema (lengths, patterns,
required fields) are not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias

import pyarrow as pa

from kafkalog.errors import SchemaError
from kafkalog.streaming.decoding.registry import (
    MAX_DEPTH,
    Cells,
    DecodeError,
    FieldBudget,
    parse_json,
)

if TYPE_CHECKING:
    from kafkalog.streaming.decoding.registry import SchemaText

__all__ = ["JsonColumn"]

_Convert: TypeAlias = Callable[[Any, str], Any]
"""Brings a value into the column; it gets where the value lies, for what it says of a wrong one."""
_LONG: Final = 2**63


class _Made(NamedTuple):
    type: pa.DataType
    convert: _Convert


class JsonColumn:
    """The column of a schema; ``type`` is its type in Arrow."""

    def __init__(self, schema: SchemaText) -> None:
        """Read the schema.

        Raises:
            SchemaError: it is none, or too large.
        """
        self.cells = Cells()
        documents = {name: parse_json(text) for name, text in schema.references}
        documents[""] = parse_json(schema.text)
        made = _Types(documents, self.cells).of("", None, "")
        self.type: pa.DataType = made.type
        self._convert = made.convert

    def decode(self, payload: bytes) -> Any:  # noqa: ANN401 - of the type
        """Return a value for ``pa.array`` with the type.

        Raises:
            DecodeError: it is no JSON, or not of the schema.
        """
        self.cells.begin(len(payload))
        try:
            value = json.loads(payload.decode(), parse_constant=_refuse_constant)
        except RecursionError:
            raise DecodeError("is nested too deep") from None
        except ValueError as error:
            raise DecodeError(f"is no JSON: {error}"[:500]) from None
        try:
            return self._convert(value, "")
        except RecursionError:
            raise DecodeError("is nested too deep") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


# ----------------------------------------------------------------------------------------------
# Columns.


class _Types:
    """Makes Arrow's types of a schema's."""

    def __init__(self, documents: dict[str, Any], cells: Cells) -> None:
        self._documents = documents
        self._cells = cells
        self._budget = FieldBudget()
        self._above: list[tuple[str, str]] = []

    def of(self, document: str, schema: Any, pointer: str | None) -> _Made:  # noqa: ANN401 - JSON
        """Return the type of what a pointer names in a document, or of a schema in it."""
        self._budget.take()
        if len(self._above) > MAX_DEPTH:
            raise SchemaError(f"the schema is nested deeper than {MAX_DEPTH} levels")
        if pointer is not None:
            if (document, pointer) in self._above:
                return _text()
            schema = _at(self._documents, document, pointer)
        self._above.append((document, pointer if pointer is not None else f"@{id(schema)}"))
        try:
            return self._of(document, schema) if isinstance(schema, dict) else _text()
        finally:
            self._above.pop()

    def _of(self, document: str, schema: dict[str, Any]) -> _Made:
        reference = schema.get("$ref")
        if isinstance(reference, str):
            name, _, pointer = reference.partition("#")
            return self.of(name or document, None, pointer)
        for name in ("oneOf", "anyOf", "allOf"):
            parts = schema.get(name)
            if isinstance(parts, list) and "properties" not in schema:
                rest = [each for each in parts if not _is_null(each)]
                return self.of(document, rest[0], None) if len(rest) == 1 else _text()
        kind = _kind_of(schema)
        if kind in _PLAIN:
            return _PLAIN[kind]
        if kind == "array" and isinstance(schema.get("items"), dict):
            return self._array(document, schema["items"])
        if kind == "object":
            return self._object(document, schema)
        return _text()

    def _array(self, document: str, items: dict[str, Any]) -> _Made:
        item = self.of(document, items, None)

        def convert(value: Any, at: str) -> Any:  # noqa: ANN401 - JSON
            if value is None:
                return None
            if not isinstance(value, list):
                raise _wrong(value, at, "an array")
            return [item.convert(each, f"{at}/{number}") for number, each in enumerate(value)]

        return _Made(pa.list_(item.type), convert)

    def _object(self, document: str, schema: dict[str, Any]) -> _Made:
        properties, others = schema.get("properties"), schema.get("additionalProperties")
        if isinstance(properties, dict) and properties:
            made = {name: self.of(document, each, None) for name, each in properties.items()}
            return _Made(
                pa.struct([(name, each.type) for name, each in made.items()]),
                _struct_of(made, self._cells),
            )
        if isinstance(others, dict):
            return self._map(document, others)
        return _text()

    def _map(self, document: str, values: dict[str, Any]) -> _Made:
        item = self.of(document, values, None)

        def convert(value: Any, at: str) -> Any:  # noqa: ANN401 - JSON
            if value is None:
                return None
            if not isinstance(value, dict):
                raise _wrong(value, at, "an object")
            return [(name, item.convert(each, f"{at}/{name}")) for name, each in value.items()]

        return _Made(pa.map_(pa.string(), item.type), convert)


def _struct_of(made: dict[str, _Made], cells: Cells) -> _Convert:
    def convert(value: Any, at: str) -> Any:  # noqa: ANN401 - JSON
        if value is None:
            return None
        if not isinstance(value, dict):
            raise _wrong(value, at, "an object")
        cells.take(len(made))
        return {
            name: each.convert(value[name], f"{at}/{name}") if name in value else None
            for name, each in made.items()
        }

    return convert


def _at(documents: dict[str, Any], document: str, pointer: str) -> Any:  # noqa: ANN401 - JSON
    if document not in documents:
        raise SchemaError(f"the schema refers to {document!r}, which is not among its references")
    found = documents[document]
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            raise SchemaError(f"the schema refers to {document}#{pointer}, which is not there")
        found = found[name]
    return found


def _is_null(schema: object) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"


def _kind_of(schema: dict[str, Any]) -> str | None:
    """Return the one type of a schema beside null; None if there is none, or several."""
    kind = schema.get("type")
    if isinstance(kind, list):
        rest = [each for each in kind if each != "null"]
        kind = rest[0] if len(rest) == 1 else None
    if kind is None and "properties" in schema:
        return "object"
    if kind is None and isinstance(schema.get("enum"), list):
        values = [each for each in schema["enum"] if each is not None]
        return "string" if values and all(isinstance(each, str) for each in values) else None
    return kind if isinstance(kind, str) else None


# ----------------------------------------------------------------------------------------------
# Values.


def _text() -> _Made:
    return _Made(
        pa.string(),
        lambda value, _: None if value is None else json.dumps(value, ensure_ascii=False),
    )


def _string(value: Any, at: str) -> str | None:  # noqa: ANN401 - JSON
    if value is None or isinstance(value, str):
        return value
    raise _wrong(value, at, "a string")


def _boolean(value: Any, at: str) -> bool | None:  # noqa: ANN401 - JSON
    if value is None or isinstance(value, bool):
        return value
    raise _wrong(value, at, "true or false")


def _integer(value: Any, at: str) -> int | None:  # noqa: ANN401 - JSON
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(value, at, "an integer")
    if not -_LONG <= value < _LONG:
        raise DecodeError(f"{at or '/'} is an integer of more than 64 bits")
    return value


def _number(value: Any, at: str) -> float | None:  # noqa: ANN401 - JSON
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong(value, at, "a number")
    try:
        return float(value)
    except OverflowError:
        raise DecodeError(f"{at or '/'} is larger than every float") from None


def _wrong(value: object, at: str, expected: str) -> DecodeError:
    return DecodeError(f"{(at or '/')[:200]} is {repr(value)[:50]}, expected {expected}")


_PLAIN: Final = {
    "string": _Made(pa.string(), _string),
    "boolean": _Made(pa.bool_(), _boolean),
    "integer": _Made(pa.int64(), _integer),
    "number": _Made(pa.float64(), _number),
    "null": _Made(pa.string(), lambda _value, _at: None),
}
