"""Avro: a column of a schema, and values of other versions of it brought into that.

Bytes are decoded by fastavro, by the schema that wrote them, and resolved to the one of the column
as Avro's specification says. Types are those of Spark's Avro source (``SchemaConverters``), but
that a type inside itself is text of JSON, and types of times are plain numbers where Spark has no
type. Records without fields and ``null`` are text, too. Many values of a plain schema are decoded
at once, by ``avro_columns``; it gives the same, or leaves a value to this.

fastavro recurses in C without a bound, and makes as many items as an array says. Schemas that let
a value abuse that are walked over first (:func:`_checker`): those with a type inside itself, and
those with arrays of items that may take no bytes.

Source: the Avro 1.12 specification, *Schema Resolution*; Spark ``SchemaConverters``.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from kafkalog.errors import OptionError, SchemaError
from kafkalog.streaming.decoding.avro_columns import (
    MOST_DIGITS,
    AvroType,
    BulkReader,
    NotPlainError,
)
from kafkalog.streaming.decoding.registry import (
    MAX_DEPTH,
    Cells,
    DecodeError,
    FieldBudget,
    parse_json,
)

if TYPE_CHECKING:
    from kafkalog.streaming.decoding.registry import SchemaText

__all__ = ["AvroColumn"]

_Value: TypeAlias = Any
_Convert: TypeAlias = Callable[[Any], Any]
_LOGICAL: Final = "kafkalog.logicalType"
"""Where the logical type is kept from fastavro: values come as they were written."""
_PRIMITIVES: Final = {
    "null": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_COMPLEX: Final = frozenset({"record", "error", "enum", "array", "map", "fixed"})
_MICROS: Final = pa.timestamp("us", tz="UTC")
_LOCAL_MICROS: Final = pa.timestamp("us")
_TIMES: Final = {
    ("int", "date"): (pa.date32(), 1),
    ("long", "timestamp-millis"): (_MICROS, 1000),
    ("long", "timestamp-micros"): (_MICROS, 1),
    ("long", "local-timestamp-millis"): (_LOCAL_MICROS, 1000),
    ("long", "local-timestamp-micros"): (_LOCAL_MICROS, 1),
}
_MOST_DIGITS: Final = 38
_KINDS: Final = {
    bool: ("boolean",),
    int: ("int", "long", "float", "double"),
    float: ("double", "float"),
    bytes: ("bytes", "fixed"),
    str: ("string", "enum"),
    list: ("array",),
    dict: ("record", "map"),
}
"""Which types of a union a value of Python can be of."""
_LEAST: Final = {"null": 0, "float": 4, "double": 8}
_LAST_INT: Final = 2**31
_CELLS_PER_BYTE: Final = 16
_BULK: Final = frozenset({"boolean", "int", "long", "float", "double", "bytes", "string"})


class AvroColumn:
    """The column of a schema; ``type`` is its type in Arrow."""

    def __init__(self, schema: SchemaText) -> None:
        """Read the schema.

        Raises:
            SchemaError: it is none, or too large.
        """
        self._schema = _parsed(schema)
        types = _Types(self._schema.named)
        made = types.of(self._schema.root)
        self.cells, self._fields = Cells(), types.count
        self.type: pa.DataType = made.type
        self._convert = made.convert

    def reader(self, writer: SchemaText) -> Callable[[bytes], _Value]:
        """Return what decodes a value that a schema wrote, for ``pa.array`` with the type.

        What it returns raises :class:`DecodeError` for a value that is none of the writer's, or
        cannot be brought into the column.

        Raises:
            SchemaError: the writer's schema is none.
        """
        written, convert = _parsed(writer), self._convert
        types = _Types(written.named)
        types.of(written.root)
        check = _checker(written, max(0, self._fields - types.count), self.cells)
        cells, fields = self.cells, self._fields
        column = None if written.plain == self._schema.plain else self._schema.root
        read = _library().schemaless_reader

        def decode(payload: bytes) -> _Value:
            cells.begin(len(payload))
            cells.take(fields + len(payload) if check is None else fields)
            if check is not None:
                check(payload)
            try:
                value = read(io.BytesIO(payload), written.root, column, return_named_type=True)
                return value if convert is None else convert(value)
            except DecodeError:
                raise
            except EOFError:
                raise DecodeError(f"ends too early, after {len(payload)} bytes") from None
            except Exception as error:  # the library has no base of its errors  # noqa: BLE001
                raise DecodeError(f"{type(error).__name__}: {error}"[:500]) from None

        return decode

    def bulk_reader(self, writer: SchemaText) -> BulkReader | None:
        """Return what decodes many values at once; None where it takes :meth:`reader`.

        Raises:
            SchemaError: the writer's schema is none.
        """
        written = _parsed(writer)
        if _checker(written, 0, self.cells) is not None:
            return None
        try:
            return BulkReader(_outline(written), _outline(self._schema))
        except NotPlainError:
            return None

    def filled(self, size: int) -> int:
        """Return about how many fields a value of so many bytes fills, decoded in bulk."""
        return 1 + self._fields + size


def _library() -> Any:  # noqa: ANN401 - a module
    """Import the library."""
    try:
        import fastavro as library  # noqa: PLC0415 - an extra; few queries decode
    except ImportError:
        raise OptionError(
            "Avro needs fastavro on every machine: pip install 'kafkalog[schemas]'"
        ) from None
    return library


# ----------------------------------------------------------------------------------------------
# Schemas.


@dataclass(frozen=True, slots=True)
class _Parsed:
    """``root`` and the types that it names, with full names, as fastavro has them."""

    root: Any
    named: dict[str, Any]
    plain: str


def _parsed(schema: SchemaText) -> _Parsed:
    library = _library()
    named: dict[str, Any] = {}
    try:
        for _, text in schema.references:
            library.parse_schema(_without_logical(parse_json(text)), named_schemas=named)
        raw = _without_logical(parse_json(schema.text))
        root = library.parse_schema(raw, named_schemas=named)
    except SchemaError:
        raise
    except Exception as error:  # a schema may be anything  # noqa: BLE001
        raise SchemaError(f"no schema of Avro: {type(error).__name__}: {error}"[:500]) from None
    plain = json.dumps([schema.text, schema.references])
    return _Parsed(root, named, plain)


def _without_logical(given: Any) -> Any:  # noqa: ANN401 - JSON
    """Hide logical types; types are nested where a schema has types, and nowhere else."""
    if isinstance(given, list):
        return [_without_logical(each) for each in given]
    if not isinstance(given, dict):
        return given
    changed = {(_LOGICAL if name == "logicalType" else name): each for name, each in given.items()}
    for name in ("type", "items", "values"):
        if name in changed:
            changed[name] = _without_logical(changed[name])
    fields = changed.get("fields")
    if isinstance(fields, list):
        changed["fields"] = [_without_logical(each) for each in fields]
    return changed


def _resolved(schema: Any, named: dict[str, Any]) -> tuple[str, Any]:  # noqa: ANN401 - JSON
    """Return the kind of a type, and what says more of it: of a union its members."""
    for _ in range(MAX_DEPTH):
        if isinstance(schema, list):
            return "union", schema
        kind = schema if isinstance(schema, str) else schema["type"]
        if isinstance(kind, str) and (kind in _PRIMITIVES or kind in _COMPLEX):
            return ("record" if kind == "error" else kind), schema
        schema = named[kind] if isinstance(kind, str) else kind
    raise SchemaError(f"the schema is nested deeper than {MAX_DEPTH} levels")


# ----------------------------------------------------------------------------------------------
# Columns.


@dataclass(frozen=True, slots=True)
class _Made:
    """A type, and what brings values of fastavro into it; None if they are as they should be."""

    type: pa.DataType
    convert: _Convert | None = None


class _Types:
    """Makes Arrow's types of a schema's."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._budget = FieldBudget()
        self.count = 0
        """How many types there are, unfolded."""
        self._above: list[str] = []
        self._depth = 0

    def of(self, schema: Any) -> _Made:  # noqa: ANN401 - JSON
        """Return the type of a schema, all that it names unfolded."""
        self._budget.take()
        self.count += 1
        if self._depth > MAX_DEPTH:
            raise SchemaError(f"the schema is nested deeper than {MAX_DEPTH} levels")
        self._depth += 1
        try:
            return self._of(schema)
        finally:
            self._depth -= 1

    def _of(self, schema: Any) -> _Made:  # noqa: ANN401 - JSON
        kind, found = _resolved(schema, self._named)
        complex_types: dict[str, Callable[[Any], _Made]] = {
            "union": self._union,
            "array": self._array,
            "map": self._map,
            "record": self._record,
        }
        if kind in complex_types:
            return complex_types[kind](found)
        if kind == "enum":
            return _Made(pa.string())
        plain = found if isinstance(found, dict) else {}
        return _primitive("bytes" if kind == "fixed" else kind, plain)

    def _array(self, schema: dict[str, Any]) -> _Made:
        item = self.of(schema["items"])
        convert = item.convert
        if convert is None:
            return _Made(pa.list_(item.type))
        return _Made(pa.list_(item.type), lambda items: [convert(each) for each in items])

    def _map(self, schema: dict[str, Any]) -> _Made:
        item = self.of(schema["values"])
        convert = item.convert
        if convert is None:
            return _Made(pa.map_(pa.string(), item.type), lambda items: [*items.items()])
        return _Made(
            pa.map_(pa.string(), item.type),
            lambda items: [(name, convert(each)) for name, each in items.items()],
        )

    def _record(self, schema: dict[str, Any]) -> _Made:
        name = schema["name"]
        if name in self._above or not schema["fields"]:
            return _Made(pa.string(), lambda value: json.dumps(_plain(value)))
        self._above.append(name)
        made = {each["name"]: self.of(each["type"]) for each in schema["fields"]}
        self._above.pop()
        kind = pa.struct([(each, one.type) for each, one in made.items()])
        converted = [(each, one.convert) for each, one in made.items() if one.convert is not None]
        if not converted:
            return _Made(kind)

        def convert(value: dict[str, Any]) -> dict[str, Any]:
            for each, change in converted:
                value[each] = change(value[each])
            return value

        return _Made(kind, convert)

    def _union(self, schemas: list[Any]) -> _Made:
        resolved = [_resolved(each, self._named) for each in schemas]
        rest = [each for each, (kind, _) in zip(schemas, resolved, strict=True) if kind != "null"]
        kinds = {kind for kind, _ in resolved} - {"null"}
        if not rest:
            return self.of("null")
        if len(rest) == 2 and kinds in ({"int", "long"}, {"float", "double"}):
            return self.of("long" if "int" in kinds else "double")  # as in Spark's Avro source
        made = [self.of(each) for each in rest]
        if len(rest) == 1:
            (one,) = made
            return _Made(one.type, _nullable(one.convert))
        branches = [
            (kind, found.get("name", "") if isinstance(found, dict) else "")
            for kind, found in resolved
            if kind != "null"
        ]
        members = pa.struct([(f"member{n}", one.type) for n, one in enumerate(made)])
        return _Made(members, lambda value: _member(value, branches, made))


def _nullable(convert: _Convert | None) -> _Convert:
    """Return what unwraps the value of a union of null and another type."""

    def change(value: _Value) -> _Value:
        if type(value) is tuple:
            value = value[1]
        return value if value is None or convert is None else convert(value)

    return change


def _member(
    value: _Value, branches: list[tuple[str, str]], made: list[_Made]
) -> dict[str, Any] | None:
    """Return a value of a union of several types as a struct, in which one field is not null."""
    if value is None:
        return None
    name, value = value if type(value) is tuple else (None, value)
    kinds = _KINDS[type(value)]
    fitting = [
        number
        for number, (kind, named) in enumerate(branches)
        if kind in kinds
        and (name is None or named in {"", name})
        and not (kind == "int" and not -_LAST_INT <= value < _LAST_INT)
    ]
    exact = [n for n in fitting if name is not None and branches[n][1] == name]
    (number, *_) = exact or fitting
    convert = made[number].convert
    return {f"member{number}": value if convert is None else convert(value)}


def _primitive(kind: str, schema: dict[str, Any]) -> _Made:
    logical = schema.get(_LOGICAL)
    if (kind, logical) in _TIMES:
        made, factor = _TIMES[kind, str(logical)]
        return _Made(made, None if factor == 1 else lambda value: value * factor)
    if kind == "bytes" and logical == "decimal":
        digits, scale = schema.get("precision"), schema.get("scale", 0)
        if (
            isinstance(digits, int)
            and isinstance(scale, int)
            and 0 < digits <= _MOST_DIGITS
            and 0 <= scale <= digits
        ):
            return _Made(pa.decimal128(digits, scale), lambda value: _decimal(value, digits, scale))
    return _Made(_PRIMITIVES[kind])


def _decimal(value: bytes, digits: int, scale: int) -> Decimal:
    if len(value) > 2 * _MOST_DIGITS:
        raise DecodeError(f"has a decimal of {len(value)} bytes")
    number = int.from_bytes(value, "big", signed=True)
    if abs(number) >= 10**digits:
        raise DecodeError(f"has a decimal of more than {digits} digits")
    sign, text = int(number < 0), str(abs(number))
    return Decimal((sign, tuple(map(int, text)), -scale))


# ----------------------------------------------------------------------------------------------
# Schemas that are decoded in bulk.


def _outline(schema: _Parsed) -> AvroType:
    """Return the types of a schema for ``avro_columns``.

    Raises:
        NotPlainError: it has types that are decoded value by value.
    """
    return _Outline(schema.named).of(schema.root)


class _Outline:
    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._above: list[str] = []

    def of(self, schema: Any) -> AvroType:  # noqa: ANN401 - JSON
        kind, found = _resolved(schema, self._named)
        if kind == "union":
            kinds = [_resolved(each, self._named)[0] for each in found]
            if len(found) != 2 or kinds.count("null") != 1 or "union" in kinds:
                raise NotPlainError
            null_at = kinds.index("null")
            return replace(self.of(found[1 - null_at]), null_at=null_at)
        if kind == "record":
            return self._record(found)
        if kind == "array":
            item = self.of(found["items"])
            return AvroType(kind, pa.list_(item.type), inner={"item": item})
        plain = found if isinstance(found, dict) else {}
        if kind in {"enum", "fixed"}:
            return _outlined_name(kind, plain)
        return _outlined(kind, plain)

    def _record(self, schema: dict[str, Any]) -> AvroType:
        name, fields = schema["name"], schema["fields"]
        if (
            name in self._above
            or not fields
            or any("aliases" in each for each in (schema, *fields))
        ):
            raise NotPlainError
        self._above.append(name)
        inner = {each["name"]: self.of(each["type"]) for each in fields}
        self._above.pop()
        if len(inner) != len(fields):
            raise NotPlainError
        defaults = {each["name"]: each["default"] for each in fields if "default" in each}
        made = pa.struct([(each, one.type) for each, one in inner.items()])
        return AvroType("record", made, inner=inner, identity=name, defaults=defaults)


def _outlined_name(kind: str, schema: dict[str, Any]) -> AvroType:
    """Return an enum, or a fixed type that is no number."""
    if "aliases" in schema or schema.get(_LOGICAL) == "decimal":
        raise NotPlainError
    if kind == "enum":
        symbols = tuple(schema["symbols"])
        return AvroType(kind, pa.string(), more=symbols, identity=(schema["name"], symbols))
    size = schema["size"]
    return AvroType(kind, pa.binary(), more=size, identity=(schema["name"], size))


def _outlined(kind: str, schema: dict[str, Any]) -> AvroType:
    """Return a type without a name."""
    if kind not in _BULK:
        raise NotPlainError
    made, logical = _primitive(kind, schema).type, schema.get(_LOGICAL)
    identity, more = str(made), None
    if pa.types.is_decimal(made):
        if made.precision > MOST_DIGITS:
            raise NotPlainError
        kind, more = "decimal", 10**made.precision
    elif (kind, logical) in _TIMES:
        in_millis = str(logical).endswith("-millis")
        kind = "date" if logical == "date" else "millis" if in_millis else kind
    return AvroType(kind, made, more=more, identity=identity)


def _plain(value: _Value) -> Any:  # noqa: ANN401 - JSON
    """Return a decoded value as what JSON has: bytes as Avro's JSON encoding writes them."""
    if type(value) is tuple:
        value = value[1]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.decode("latin-1") if isinstance(value, bytes) else value


# ----------------------------------------------------------------------------------------------
# Values that could harm.


def _checker(schema: _Parsed, defaults: int, cells: Cells) -> Callable[[bytes], None] | None:
    """Return what refuses a value nested too deep, or that would fill too much; None if none can.

    It walks over the bytes as Avro says, and stops with an error before fastavro would crash.
    ``defaults`` is how many fields a column has that the schema has not.
    """
    sizes = _Sizes(schema.named, defaults)
    sizes.of(schema.root)
    if not sizes.has_hazard:
        return None

    def check(payload: bytes) -> None:
        try:
            _Walk(payload, schema.named, sizes, cells).skip(schema.root, 0)
        except (IndexError, KeyError, TypeError) as error:
            raise DecodeError(f"cannot be walked over: {type(error).__name__}") from None

    return check


class _Sizes:
    """How many bytes a type takes at least, and how many fields it fills.

    ``has_hazard`` is whether a type lies inside itself, or an array or map repeats one that takes
    few bytes for what it fills.
    """

    def __init__(self, named: dict[str, Any], defaults: int) -> None:
        self._named = named
        self._defaults = defaults
        self._above: list[str] = []
        self.has_hazard = False

    def of(self, schema: Any) -> tuple[int, int]:  # noqa: ANN401 - JSON
        """Return the least bytes, and the fields, of a type."""
        kind, schema = _resolved(schema, self._named)
        if kind == "union":
            found = [self.of(each) for each in schema]
            return 1 + min((least for least, _ in found), default=0), 1 + sum(c for _, c in found)
        if kind == "record":
            return self._of_record(schema)
        if kind in {"array", "map"}:
            self.has_hazard |= self.filled_by_item(schema, kind) > self._least_of_item(schema, kind)
            return 1, 1
        least = max(0, schema["size"]) if kind == "fixed" else _LEAST.get(kind, 1)
        return least, 1

    def filled_by_item(self, schema: dict[str, Any], kind: str) -> int:
        """Return how many fields an item of an array or map fills at most."""
        return self._defaults + self.of(schema["values" if kind == "map" else "items"])[1]

    def _least_of_item(self, schema: dict[str, Any], kind: str) -> int:
        """Return how many fields may come of its least bytes."""
        least = self.of(schema["values" if kind == "map" else "items"])[0]
        return _CELLS_PER_BYTE * (least + (kind == "map"))

    def _of_record(self, schema: dict[str, Any]) -> tuple[int, int]:
        if schema["name"] in self._above:
            self.has_hazard = True
            return 0, 1
        self._above.append(schema["name"])
        found = [self.of(each["type"]) for each in schema["fields"]]
        self._above.pop()
        return sum(least for least, _ in found), 1 + sum(count for _, count in found)


class _Walk:
    """Passes over a value without making anything of it."""

    def __init__(self, data: bytes, named: dict[str, Any], sizes: _Sizes, cells: Cells) -> None:
        self._data = data
        self._named = named
        self._at = 0
        self._sizes = sizes
        self._cells = cells
        self._filled: dict[int, int] = {}

    def skip(self, schema: Any, depth: int) -> None:  # noqa: ANN401 - JSON
        """Pass over a value of a type."""
        if depth > 4 * MAX_DEPTH:
            raise DecodeError(f"is nested deeper than {4 * MAX_DEPTH} levels")
        kind, schema = _resolved(schema, self._named)
        if kind == "union":
            number = self._long()
            if not 0 <= number < len(schema):
                raise DecodeError(f"names type {number} of a union of {len(schema)}")
            self.skip(schema[number], depth + 1)
        elif kind == "record":
            for each in schema["fields"]:
                self.skip(each["type"], depth + 1)
        elif kind in {"array", "map"}:
            self._skip_blocks(schema, kind, depth)
        else:
            self._skip_plain(kind, schema)

    def _skip_blocks(self, schema: dict[str, Any], kind: str, depth: int) -> None:
        filled = self._filled.get(id(schema))
        if filled is None:
            filled = self._filled[id(schema)] = self._sizes.filled_by_item(schema, kind)
        while count := self._long():
            if count < 0:
                count = -count
                self._long()
            self._cells.take(count * filled)
            for _ in range(count):
                before = self._at
                if kind == "map":
                    self._skip_plain("bytes", schema)
                self.skip(schema["values" if kind == "map" else "items"], depth + 1)
                if self._at == before:  # so are all that follow: they take no bytes
                    break

    def _skip_plain(self, kind: str, schema: Any) -> None:  # noqa: ANN401 - JSON
        if kind in {"int", "long", "enum"}:
            self._long()
        elif kind in {"bytes", "string"}:
            self._take(self._long())
        elif kind != "null":
            self._take(schema["size"] if kind == "fixed" else _LEAST.get(kind, 1))

    def _take(self, size: int) -> None:
        if not 0 <= size <= len(self._data) - self._at:
            raise DecodeError(f"has {size} bytes where {len(self._data) - self._at} are left")
        self._at += size

    def _long(self) -> int:
        number = shift = 0
        while True:
            if self._at >= len(self._data) or shift > 63:
                raise DecodeError(f"ends too early, or has a bad number, at byte {self._at}")
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
