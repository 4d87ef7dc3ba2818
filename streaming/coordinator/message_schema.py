"""Kafka's message format, read by schema: the primitives, arrays, structs and tagged fields.

Coordinator records and the consumer protocol are messages in the encoding of Kafka's requests. All
integers are big-endian. A message is read by its version, which also says whether it is *flexible*:

====================  =============================  ==============================================
type                  classic versions               flexible versions
====================  =============================  ==============================================
``int8`` .. ``int64``  1, 2, 4, 8 bytes, signed       the same
``string``            int16 length, UTF-8            uvarint length + 1, UTF-8
``bytes``             int32 length, bytes            uvarint length + 1, bytes
``array``             int32 count, elements          uvarint count + 1, elements
null                  a negative length or count     0
``uuid``              16 bytes                       the same
struct                its fields                     its fields, then its tagged fields
tagged fields         none                           uvarint count, then per field: uvarint tag,
                                                     uvarint size, payload
====================  =============================  ==============================================

A type is a function from a :class:`MessageReader` to a value; :func:`struct_of` and
:func:`array_of` build types from types, so a schema reads like Kafka's definition of the message.

Nothing is trusted. Every length is checked against the bytes that are left before it is used. An
array cannot have more elements than bytes are left. Nesting is as deep as the schema. Bytes after
the last field are ignored, and so are unknown tags: Kafka adds fields this way.

Source: ``Readable``, ``types.Type`` and ``types.TaggedFields`` of Kafka's clients; KIP-482.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from kafkalog.errors import CorruptRecordError, UnsupportedFormatError
from kafkalog.texts import decode_as_java

__all__ = [
    "Field",
    "Fields",
    "MessageReader",
    "Schema",
    "array_of",
    "int8",
    "int16",
    "int32",
    "int64",
    "nullable_array_of",
    "nullable_bytes",
    "nullable_string",
    "plain_bytes",
    "read_frame",
    "string",
    "struct_of",
    "tagged_struct_of",
    "uuid",
]

Fields: TypeAlias = dict[str, Any]
"""A struct: its values by Kafka's field names; every field of the schema is there."""

_T = TypeVar("_T")
_MAX_VERSION: Final = 2**15 - 1
_NEVER: Final = 2**15
_UVARINT_BITS: Final = 35  # five groups of seven


class MessageReader:
    """A cursor over the bytes of one message.

    Attributes:
        version: the version that the message is read as.
        flexible: whether that version has compact lengths and tagged fields.
        field: the field being read, for the text of errors.
    """

    __slots__ = ("_data", "_position", "field", "flexible", "version")

    def __init__(self, data: bytes, version: int, *, flexible: bool, field: str = "") -> None:
        self._data = data
        self._position = 0
        self.version = version
        self.flexible = flexible
        self.field = field

    @property
    def remaining(self) -> int:
        """Bytes that are left."""
        return len(self._data) - self._position

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes.

        Raises:
            CorruptRecordError: fewer are left.
        """
        if size > self.remaining:
            raise self.corrupt(f"needs {size} bytes, {self.remaining} are left")
        start = self._position
        self._position = start + size
        return self._data[start : self._position]

    def integer(self, size: int) -> int:
        """Return a signed big-endian integer of ``size`` bytes."""
        return int.from_bytes(self.take(size), "big", signed=True)

    def uvarint(self) -> int:
        """Return an unsigned varint of at most five bytes.

        Raises:
            CorruptRecordError: it continues after the fifth, or the bytes end.
        """
        value = 0
        for shift in range(0, _UVARINT_BITS, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise self.corrupt("has a varint of more than 5 bytes")

    def length(self, classic_size: int) -> int:
        """Return a length or count, negative for null; it has ``classic_size`` bytes if classic."""
        return self.uvarint() - 1 if self.flexible else self.integer(classic_size)

    def corrupt(self, reason: str) -> CorruptRecordError:
        """Make the error for the field being read, at this byte."""
        return CorruptRecordError(f"field {self.field!r} at byte {self._position} {reason}")


ReadType: TypeAlias = Callable[[MessageReader], _T]


def int8(reader: MessageReader) -> int:
    """Read one signed byte."""
    return reader.integer(1)


def int16(reader: MessageReader) -> int:
    """Read a signed integer of 2 bytes."""
    return reader.integer(2)


def int32(reader: MessageReader) -> int:
    """Read a signed integer of 4 bytes."""
    return reader.integer(4)


def int64(reader: MessageReader) -> int:
    """Read a signed integer of 8 bytes."""
    return reader.integer(8)


def uuid(reader: MessageReader) -> str:
    """Read 16 bytes, and return them as Kafka prints ids: URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(reader.take(16)).decode("ascii").rstrip("=")


def nullable_string(reader: MessageReader) -> str | None:
    """Read a string or null; bytes that are not UTF-8 become U+FFFD, as a broker reads them.

    Raises:
        CorruptRecordError: it is cut off.
    """
    size = reader.length(2)
    return None if size < 0 else decode_as_java(reader.take(size))


def nullable_bytes(reader: MessageReader) -> bytes | None:
    """Read bytes or null."""
    size = reader.length(4)
    return None if size < 0 else reader.take(size)


def nullable_array_of(element: ReadType[_T]) -> ReadType[list[_T] | None]:
    """Make the type of an array, or null, of ``element``, which takes at least one byte."""

    def read(reader: MessageReader) -> list[_T] | None:
        count = reader.length(4)
        if count < 0:
            return None
        if count > reader.remaining:
            raise reader.corrupt(f"has {count} elements in {reader.remaining} bytes")
        return [element(reader) for _ in range(count)]

    return read


def _required(read_nullable: ReadType[_T | None]) -> ReadType[_T]:
    """Make a type that refuses null, as Kafka's readers do, from one that knows it."""

    def read(reader: MessageReader) -> _T:
        value = read_nullable(reader)
        if value is None:
            raise reader.corrupt("is null")
        return value

    return read


string: Final = _required(nullable_string)
plain_bytes: Final = _required(nullable_bytes)


def array_of(element: ReadType[_T]) -> ReadType[list[_T]]:
    """Make the type of an array of ``element`` that is never null."""
    return _required(nullable_array_of(element))


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct.

    The field is there from version ``since`` to ``until``. ``default`` is its value in other
    versions, and where a field with a ``tag`` is not among the tagged ones.
    """

    name: str
    read: ReadType[Any]
    since: int = 0
    until: int = _MAX_VERSION
    default: int | None = None
    tag: int | None = None

    def is_positional_in(self, version: int) -> bool:
        """Return whether a message of this version has the field in its place among the others."""
        return self.tag is None and self.since <= version <= self.until


def struct_of(*fields: Field) -> ReadType[Fields]:
    """Make the type of a struct of ``fields``, in their order."""
    tagged = {field.tag: field for field in fields if field.tag is not None}

    def read(reader: MessageReader) -> Fields:
        values: Fields = {field.name: field.default for field in fields}
        for field in fields:
            if field.is_positional_in(reader.version):
                reader.field = field.name
                values[field.name] = field.read(reader)
        if reader.flexible:
            values.update(_read_tagged(reader, tagged))
        return values

    return read


def tagged_struct_of(*fields: Field) -> ReadType[Fields | None]:
    """Make the type of a tagged struct or null: a uvarint, 0 for null, comes before it."""
    read_struct = struct_of(*fields)

    def read(reader: MessageReader) -> Fields | None:
        return None if reader.uvarint() == 0 else read_struct(reader)

    return read


def _read_tagged(reader: MessageReader, known: dict[int, Field]) -> Fields:
    values: Fields = {}
    reader.field = "tagged fields"
    for _ in range(reader.uvarint()):
        tag = reader.uvarint()
        payload = reader.take(reader.uvarint())
        if (field := known.get(tag)) is not None:
            inner = MessageReader(payload, reader.version, flexible=True, field=field.name)
            values[field.name] = field.read(inner)
    return values


@dataclass(frozen=True, slots=True)
class Schema:
    """A message in all its versions, 0 to ``last_version``."""

    name: str
    read: ReadType[Fields]
    last_version: int = 0
    first_flexible: int = _NEVER

    def decode(self, data: bytes, version: int) -> Fields:
        """Read the message that ``data`` starts with.

        Raises:
            UnsupportedFormatError: no such version.
            CorruptRecordError: the bytes are not a message of that version; names the field, the
                byte in ``data`` (of a tagged field: in its payload) and what is wrong.
        """
        if not 0 <= version <= self.last_version:
            raise UnsupportedFormatError(
                f"{self.name} version {version} is not known (0 to {self.last_version} are)"
            )
        return self.read(MessageReader(data, version, flexible=version >= self.first_flexible))


# ----------------------------------------------------------------------------------------------
# The frame of the records of ``__cluster_metadata`` and ``__remote_log_metadata``::
#
#     uvarint frame version (1), uvarint api key, uvarint version, message of that version


_FRAME: Final = 1


def read_frame(value: bytes) -> tuple[int, int, bytes]:
    """Return the api key of a message, its version, and the message, which is not decoded yet.

    Raises:
        UnsupportedFormatError: a frame that is not known.
        CorruptRecordError: the bytes are no frame.
    """
    reader = MessageReader(value, 0, flexible=True, field="frame")
    frame = reader.uvarint()
    if frame != _FRAME:
        raise UnsupportedFormatError(f"frame version {frame} is not known ({_FRAME} is)")
    return reader.uvarint(), reader.uvarint(), reader.take(reader.remaining)
