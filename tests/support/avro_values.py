"""Values of Avro: schemas and values at random, and both ways of decoding them held together."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, Final

import fastavro
import numpy as np
import pyarrow as pa

from kafkalog.streaming.decoding.avro import AvroColumn
from kafkalog.streaming.decoding.registry import DecodeError, SchemaText

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

__all__ = ["BothWays", "evolved", "random_schema", "random_value", "written"]

_PLAIN: Final[tuple[Any, ...]] = (
    *("boolean", "int", "long", "float", "double", "bytes", "string"),
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 0},
    {"type": "string", "logicalType": "uuid"},
)
_WIDER: Final = {"int": ("long", "double"), "float": ("double",)}
_TEXTS: Final = ("", "a", "Zürich", "東京", "🛫 gate", "x" * 200)


def random_schema(rng: random.Random, depth: int = 0) -> Any:
    """Return a type; now and then one that is decoded value by value."""
    number = rng.randrange(10**9)
    kind = rng.choices(
        ["plain", "enum", "fixed", "array", "map", "union", "record"],
        [10, 2, 2, *((0, 0, 0, 0) if depth > 3 else (3, 0.3, 3, 3))],
    )[0]
    if kind in {"plain", "union"}:
        inner = rng.choice(_PLAIN) if kind == "plain" else random_schema(rng, depth + 1)
        is_union = kind == "union" and not isinstance(inner, list)
        return rng.sample(["null", inner], 2) if is_union else inner
    made: dict[str, Any] = {"type": kind}
    if kind in {"array", "map"}:
        return made | {"items" if kind == "array" else "values": random_schema(rng, depth + 1)}
    made |= {"name": f"{kind}{number}"}
    if kind == "record":
        kinds = [random_schema(rng, depth + 1) for _ in range(rng.randint(1, 5))]
        return made | {"fields": [{"name": f"f{n}", "type": one} for n, one in enumerate(kinds)]}
    return made | ({"symbols": ["p", "q", "r"]} if kind == "enum" else {"size": rng.randrange(5)})


def evolved(rng: random.Random, schema: Any) -> Any:
    """Return a schema as a later version may be: not all of them read what this one wrote."""
    if isinstance(schema, str):
        return rng.choice([schema, *_WIDER.get(schema, ()), ["null", schema]])
    if isinstance(schema, list):
        return [each if each == "null" else evolved(rng, each) for each in schema]
    if schema["type"] == "array":
        return schema | {"items": evolved(rng, schema["items"])}
    if schema["type"] != "record":
        return schema
    fields = [each | {"type": evolved(rng, each["type"])} for each in schema["fields"]]
    fields = [each for each in fields if rng.random() < 0.9]
    rng.shuffle(fields)
    added: list[dict[str, Any]] = [
        {"name": "new", "type": "string", "default": "none"},
        {"name": "more", "type": ["null", "long"], "default": None},
        {"name": "odd", "type": "bytes", "default": "\u00ff"},
        {"name": "missing", "type": "int"},
    ]
    return schema | {"fields": [*fields, *(each for each in added if rng.random() < 0.3)]}


def random_value(rng: random.Random, schema: Any) -> Any:
    """Return a value of a schema, as fastavro writes it."""
    if isinstance(schema, list):
        return random_value(rng, rng.choice(schema))
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        return {each["name"]: random_value(rng, each["type"]) for each in schema["fields"]}
    if kind == "array":
        return [random_value(rng, schema["items"]) for _ in range(rng.choice([0, 0, 1, 2, 5]))]
    if kind == "map":
        return {str(n): random_value(rng, schema["values"]) for n in range(rng.randrange(3))}
    if kind == "bytes":
        return rng.randbytes(rng.choice([0, 1, 2, 3, 4, 9]))
    plain = {
        "null": lambda: None,
        "boolean": lambda: rng.random() < 0.5,
        "int": lambda: rng.choice([0, -1, rng.randrange(-(2**31), 2**31)]),
        "long": lambda: rng.choice([0, rng.randrange(2**41), rng.randrange(-(2**63), 2**63)]),
        "float": lambda: rng.choice([0.0, -1.5, float("inf")]),
        "double": rng.random,
        "string": lambda: rng.choice(_TEXTS),
        "enum": lambda: rng.choice(schema["symbols"]),
        "fixed": lambda: rng.randbytes(schema["size"]),
    }
    return plain[kind]()


def _shown(column: pa.Array) -> str:
    """Return what it holds as text: Python has no dates for some times, and NaN is not NaN."""
    return repr(column.cast(_without_times(column.type)).to_pylist())


def _without_times(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _without_times(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date32(kind) else kind


def written(schema: Any, value: Any) -> bytes:
    """Return the bytes of a value; its logical types are plain numbers and bytes already."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(_without_logical(schema)), value)
    return out.getvalue()


def _without_logical(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical(each) for each in schema]
    if isinstance(schema, dict):
        kept = {name: each for name, each in schema.items() if name != "logicalType"}
        return {name: _without_logical(each) for name, each in kept.items()}
    return schema


class BothWays:
    """Decodes values of one schema into the column of another, in bulk and one by one."""

    def __init__(self, writer: Any, reader: Any) -> None:
        """Take both schemas."""
        text = SchemaText(json.dumps(writer))
        column = AvroColumn(SchemaText(json.dumps(reader)))
        self.kind = column.type
        self.bulk = column.bulk_reader(text)
        self._one = column.reader(text)

    def check(self, values: Sequence[bytes]) -> int:
        """Hold both together; return how many values were left to be decoded one by one."""
        assert self.bulk is not None
        ends = np.cumsum([len(each) for each in values], dtype=np.int64)
        starts = ends - np.array([len(each) for each in values], np.int64)
        source = np.frombuffer(b"".join(values), np.uint8)
        found, bad = self.bulk.read(source, starts, ends)
        found.validate(full=True)
        assert found.type == self.kind
        assert found.null_count >= int(bad.sum())
        for place, data in enumerate(values):
            if not bad[place]:
                try:
                    expected = pa.array([self._one(data)], self.kind)
                except DecodeError as error:
                    raise AssertionError(f"{found[place]}, but one by one: {error}") from None
                shown = _shown(found.slice(place, 1))
                assert shown == _shown(expected), f"{data!r} as {self.kind}"
        return int(bad.sum())
