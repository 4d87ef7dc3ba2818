"""The schemas that a registry kept in its topic, ``_schemas``.

Keys and values are JSON. A key says what its value is, ``{"keytype":"SCHEMA","subject":"t-value",
"version":1,"magic":1}``; registries order its fields differently, and add some, so keys are
compared as what they say. A ``SCHEMA`` has ``subject``, ``version``, ``id``, ``schema``,
``schemaType`` (Avro without one), ``references`` and ``deleted``. ``DELETE_SUBJECT`` deletes the
versions of a subject up to one. Null is a version that was deleted for good.

A deleted schema is no subject's newest any more. Values with its id are still decoded: they were
written while it was there.

Ids belong to a *context*: subjects ``:.name:rest`` have ids of their own.

Source: Confluent's ``SchemaRegistryKey`` and ``SchemaValue``; Karapace's ``schema_reader``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kafkalog.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "FORMATS",
    "HEAD_BYTES",
    "MAX_DEPTH",
    "MAX_TEXT_BYTES",
    "Cells",
    "DecodeError",
    "FieldBudget",
    "Reference",
    "Registry",
    "Schema",
    "SchemaText",
    "check_depth",
    "context_of",
    "parse_json",
    "split_framed",
]

FORMATS: Final = {"AVRO": "avro", "JSON": "json", "PROTOBUF": "protobuf"}
"""A registry's names of the formats, and those of the option ``decode.value``."""

_CONTEXT: Final = re.compile(r":(\.[^:]*):")
_MOST_REFERENCES: Final = 1000
_MOST_PROBLEMS: Final = 3
HEAD_BYTES: Final = 5
"""Bytes before the payload: a byte 0, and the id of the schema."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Another schema that one builds on, under the name by which it says so."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A version of a subject."""

    subject: str
    version: int
    id: int
    format: str
    text: str
    references: tuple[Reference, ...] = ()
    deleted: bool = False

    def __str__(self) -> str:
        return f"version {self.version} of {self.subject} (id {self.id})"


@dataclass(frozen=True, slots=True)
class SchemaText:
    """A schema's text, and those of all that it refers to: by name, what is needed first."""

    text: str
    references: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Registry:
    """The schemas as of the records that it was fed, in the order of their offsets."""

    problems: list[str] = field(default_factory=list)
    """The first records that are none of a registry."""
    skipped: int = 0
    _subjects: dict[str, dict[int, Schema]] = field(default_factory=dict)
    _by_id: dict[tuple[str, int], Schema] = field(default_factory=dict)

    def feed(self, key: bytes | None, value: bytes | None) -> None:
        """Take a record; one that cannot be read is counted, and told in ``problems``."""
        try:
            self._take(key, value)
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            self.skipped += 1
            if len(self.problems) < _MOST_PROBLEMS:
                self.problems.append(f"{type(error).__name__}: {error}"[:200])

    def _take(self, key: bytes | None, value: bytes | None) -> None:
        if key is None:
            raise ValueError("a record of a registry has no key")
        said = _object_of(key)
        kind = said.get("keytype")
        if kind == "SCHEMA":
            subject, version = _text(said["subject"]), _number(said["version"])
            if value is None:
                self._delete(subject, lambda each: each == version)
            else:
                self._add(_schema_of(subject, version, _object_of(value)))
        elif kind == "DELETE_SUBJECT" and value is not None:
            last = _number(_object_of(value)["version"])
            self._delete(_text(said["subject"]), lambda each: each <= last)

    def _add(self, schema: Schema) -> None:
        self._subjects.setdefault(schema.subject, {})[schema.version] = schema
        key = (context_of(schema.subject), schema.id)
        known = self._by_id.get(key)
        if known is None or not schema.deleted:
            self._by_id[key] = schema

    def _delete(self, subject: str, is_meant: Callable[[int], bool]) -> None:
        versions = self._subjects.get(subject, {})
        for version in filter(is_meant, list(versions)):
            gone = versions[version]
            versions[version] = Schema(
                *(gone.subject, gone.version, gone.id, gone.format, gone.text),
                references=gone.references,
                deleted=True,
            )

    def subjects(self) -> list[str]:
        """Return the names of all subjects, in order."""
        return sorted(self._subjects)

    def versions(self, subject: str) -> list[Schema]:
        """Return the versions of a subject, newest first, those that are not deleted before."""
        found = self._subjects.get(subject, {})
        return sorted(found.values(), key=lambda each: (not each.deleted, each.version))[::-1]

    def version(self, subject: str, number: int) -> Schema | None:
        """Return a version of a subject, deleted or not; None if there is none."""
        return self._subjects.get(subject, {}).get(number)

    def by_id(self, context: str, number: int) -> Schema | None:
        """Return a schema by its id, deleted or not; None if there is none."""
        return self._by_id.get((context, number))

    def text_of(self, schema: Schema) -> SchemaText:
        """Return a schema's text with those of all that it refers to.

        Raises:
            SchemaError: a reference names what is not there, or itself, or there are too many, or
                it is too much text.
        """
        found: dict[str, str] = {}
        self._collect(schema, found, (schema.subject, schema.version), ())
        size = len(schema.text) + sum(map(len, found.values()))
        if size > MAX_TEXT_BYTES:
            raise SchemaError(f"{schema} has {size} characters, more than {MAX_TEXT_BYTES}")
        return SchemaText(schema.text, tuple(found.items()))

    def _collect(
        self,
        schema: Schema,
        found: dict[str, str],
        at: tuple[str, int],
        above: tuple[tuple[str, int], ...],
    ) -> None:
        for each in schema.references:
            place = (each.subject, each.version)
            if place in (*above, at) or len(above) > _MOST_REFERENCES // 20:
                raise SchemaError(f"{schema} refers to itself by {each.name!r}")
            if each.name in found:
                continue
            if len(found) >= _MOST_REFERENCES:
                raise SchemaError(f"{schema} refers to more than {_MOST_REFERENCES} others")
            other = self.version(*place)
            if other is None:
                raise SchemaError(
                    f"{schema} refers to version {each.version} of {each.subject}, which is not "
                    "there"
                )
            self._collect(other, found, place, (*above, at))
            found[each.name] = other.text


def context_of(subject: str) -> str:
    """Return the context whose ids a subject has; that of most is without a name."""
    found = _CONTEXT.match(subject)
    return found[1] if found is not None else "."


def split_framed(value: bytes) -> tuple[int, bytes]:
    """Return the id of the schema that a value was written by, and the payload.

    Raises:
        DecodeError: it does not begin as a registry's clients write it: a byte 0, the id.
    """
    if len(value) < HEAD_BYTES or value[0]:
        raise DecodeError(
            f"begins with {value[:HEAD_BYTES].hex(' ') or 'nothing'}, expected a byte 0 and the "
            "4 bytes of a schema's id"
        )
    return int.from_bytes(value[1:HEAD_BYTES], "big", signed=True), value[HEAD_BYTES:]


def _schema_of(subject: str, version: int, value: dict[str, Any]) -> Schema:
    references = value.get("references") or []
    return Schema(
        subject,
        version,
        _number(value["id"]),
        _text(value.get("schemaType") or "AVRO").upper(),
        _text(value["schema"]),
        tuple(_references(references)),
        deleted=value.get("deleted") is True,
    )


def _references(given: list[dict[str, Any]]) -> Iterator[Reference]:
    for each in given:
        yield Reference(_text(each["name"]), _text(each["subject"]), _number(each["version"]))


def _object_of(data: bytes) -> dict[str, Any]:
    found = json.loads(data)
    if not isinstance(found, dict):
        raise TypeError("expected an object of JSON")
    return found


def _text(given: object) -> str:
    if not isinstance(given, str):
        raise TypeError(f"expected a text, found {type(given).__name__}")
    return given


def _number(given: object) -> int:
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"expected a number, found {type(given).__name__}")
    return given


# ----------------------------------------------------------------------------------------------
# What a schema and a value may be at most, and the errors of those that are not.
#
# A schema of a few lines can stand for a billion fields, when types name each other twice, and a
# value of a few bytes for a billion items without bytes. So everything is counted before it is
# made.


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
