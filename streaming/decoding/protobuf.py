"""Protocol Buffers: a column of a message, and values of other versions of it brought into that.

A schema is the text of a ``.proto`` file; ``protoc`` (of grpcio-tools) compiles it, in a process of
its own, with the files that it imports. A value says which message of its file it is. It is read by
the message of that name in the column's schema: fields are told apart by their numbers, which
versions of a schema keep. That is what Protobuf's own clients do.

Columns: ``uint32`` is a long and ``uint64`` a decimal of 20 digits, so that all of them fit; an
enum is its name; ``Timestamp`` and ``Duration`` are Spark's, in µs; a wrapper, such as
``Int32Value``, is what it wraps. ``Struct``, ``Value``, ``ListValue``, messages inside themselves
and messages without fields are text of JSON. A field that is not set is null if the message tells
that from its default, and its default otherwise.

Source: the Protobuf wire format of Confluent's serializers (``MessageIndexes``); Spark
``SchemaConverters`` of Protobuf.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from kafkalog.errors import OptionError, SchemaError
from kafkalog.streaming.decoding.registry import (
    MAX_DEPTH,
    MAX_TEXT_BYTES,
    Cells,
    DecodeError,
    FieldBudget,
)

if TYPE_CHECKING:
    from kafkalog.streaming.decoding.registry import SchemaText

__all__ = ["ProtobufColumn"]

_Convert: TypeAlias = Callable[[Any], Any]
_SECONDS: Final = 60
_MAIN: Final = "kafkalog_schema.proto"
_PATH: Final = re.compile(r"[A-Za-z0-9_.+-]+(/[A-Za-z0-9_.+-]+)*")
_MOST_INDEXES: Final = 64
_MICROS: Final = pa.timestamp("us", tz="UTC")
_META: Final = """\
syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta { string doc = 1; map<string, string> params = 2; repeated string tags = 3; }
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
"""
_DECIMAL: Final = """\
syntax = "proto3";
package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
"""
_BUILT_IN: Final = {"confluent/meta.proto": _META, "confluent/type/decimal.proto": _DECIMAL}
"""What a registry knows without being told."""


class ProtobufColumn:
    """The column of a message of a schema; ``type`` is its type in Arrow."""

    def __init__(self, schema: SchemaText, message: str | None = None) -> None:
        """Compile the schema, and take a message of it by its full name; default: the first one.

        Raises:
            SchemaError: it is none, has no such message, or is too large.
            OptionError: the library is not installed.
        """
        self._schema, self._file = schema, _Compiled(schema)
        self._name = message or self._file.names[0]
        self.cells = Cells()
        made = _Types(self.cells).of(self._file.message(self._name))
        self.type: pa.DataType = made.type
        self._convert = made.convert

    def reader(self, writer: SchemaText) -> Callable[[bytes], Any]:
        """Return what decodes a value that a schema wrote, for ``pa.array`` with the type.

        What it returns raises :class:`DecodeError` for a value that is of another message, or none.

        Raises:
            SchemaError: the writer's schema is none.
        """
        written = self._file if writer == self._schema else _Compiled(writer)
        make = self._file.maker(self._name)
        convert, expected, cells = self._convert, self._name, self.cells

        def decode(payload: bytes) -> Any:  # noqa: ANN401 - of the type
            cells.begin(len(payload))
            indexes, start = _indexes_of(payload)
            found = written.names_at(indexes)
            if expected not in found:
                raise DecodeError(f"is a message {found[0]}, the column is of {expected}")
            try:
                return convert(make(payload[start:]))
            except DecodeError:
                raise
            except Exception as error:  # the library has one for each way  # noqa: BLE001
                raise DecodeError(f"{type(error).__name__}: {error}"[:500]) from None

        return decode


def _indexes_of(payload: bytes) -> tuple[tuple[int, ...], int]:
    """Return which message of the file a value is, and where its bytes begin."""
    count, at = _zigzag(payload, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= _MOST_INDEXES:
        raise DecodeError(f"has {count} message indexes, expected 1 to {_MOST_INDEXES}")
    found = []
    for _ in range(count):
        index, at = _zigzag(payload, at)
        found.append(index)
    return tuple(found), at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 35, 7):
        if at >= len(data):
            raise DecodeError("ends within its message indexes")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise DecodeError("has a message index of more than 5 bytes")


# ----------------------------------------------------------------------------------------------
# Schemas.


class _Compiled:
    """A schema's file, with all that it imports."""

    def __init__(self, schema: SchemaText) -> None:
        from google.protobuf import descriptor_pb2, descriptor_pool  # noqa: PLC0415 - an extra

        files = descriptor_pb2.FileDescriptorSet()
        data = _serialized(schema)
        try:
            files.ParseFromString(data)
            self._pool = descriptor_pool.DescriptorPool()
            for each in files.file:
                self._pool.Add(each)
            main = files.file[-1]
        except Exception as error:  # noqa: BLE001 - whatever the library says of it
            raise SchemaError(f"no schema of Protobuf: {error}"[:500]) from None
        self._messages = main.message_type
        self._package = f"{main.package}." if main.package else ""
        self.names = [self._package + each.name for each in main.message_type]
        if not self.names:
            raise SchemaError("the schema of Protobuf has no message")

    def message(self, name: str) -> Any:  # noqa: ANN401 - a descriptor
        """Return the descriptor of a message."""
        try:
            return self._pool.FindMessageTypeByName(name)
        except KeyError:
            raise SchemaError(
                f"the schema has no message {name!r}, but {', '.join(self.names[:10])}"
            ) from None

    def maker(self, name: str) -> Callable[[bytes], Any]:
        """Return what parses a message's bytes."""
        from google.protobuf import message_factory  # noqa: PLC0415 - an extra

        made: Callable[[bytes], Any] = message_factory.GetMessageClass(
            self.message(name)
        ).FromString
        return made

    def names_at(self, indexes: tuple[int, ...]) -> list[str]:
        """Return the full names that a message at some indexes may have: of the file, then in it.

        Java's clients do not count the entries of maps, which Python's find among the messages.

        Raises:
            DecodeError: there is none.
        """
        found = {
            self._name_at(indexes, is_counted)
            for is_counted in (lambda each: not each.options.map_entry, lambda _each: True)
        } - {None}
        if not found:
            raise DecodeError(f"is of message {list(indexes)}, which its schema does not have")
        return sorted(filter(None, found))

    def _name_at(self, indexes: tuple[int, ...], is_counted: Callable[[Any], bool]) -> str | None:
        among, parts = self._messages, []
        for index in indexes:
            counted = [each for each in among if is_counted(each)]
            if not 0 <= index < len(counted):
                return None
            parts.append(counted[index].name)
            among = counted[index].nested_type
        return self._package + ".".join(parts)


def _serialized(schema: SchemaText) -> bytes:
    """Return a ``FileDescriptorSet`` of a schema's file, which is the last one."""
    files = {_MAIN: schema.text, **dict(schema.references)}
    if sum(map(len, files.values())) > MAX_TEXT_BYTES:
        raise SchemaError(f"the schema has more than {MAX_TEXT_BYTES} characters")
    with tempfile.TemporaryDirectory(prefix="kafkalog-schema-") as folder:
        root = Path(folder, "in")
        for name, text in {**_BUILT_IN, **files}.items():
            if not _PATH.fullmatch(name) or ".." in name or len(name) > 200:
                raise SchemaError(f"the schema imports {name!r}, which is no path of a file")
            path = root / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", errors="surrogatepass")
            except OSError as error:
                raise SchemaError(f"the schema imports {name!r}: {error.strerror}") from None
        return _run_protoc(root, Path(folder, "out"))


def _run_protoc(root: Path, out: Path) -> bytes:
    """Compile the main file below a folder; a process of its own may fail as it likes."""
    try:
        import grpc_tools  # noqa: PLC0415 - an extra
    except ImportError:
        raise OptionError(
            "Protobuf needs grpcio-tools on every machine: pip install 'kafkalog[schemas]'"
        ) from None
    included = Path(grpc_tools.__file__).parent / "_proto"
    command = [
        *(sys.executable, "-m", "grpc_tools.protoc", f"-I{root}", f"-I{included}"),
        *("--include_imports", f"--descriptor_set_out={out}", _MAIN),
    ]
    try:
        run = subprocess.run(
            command, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise SchemaError(f"protoc did not compile the schema within {_SECONDS} s") from None
    if run.returncode or not out.exists():
        said = run.stderr.decode(errors="replace").strip() or f"exit code {run.returncode}"
        raise SchemaError(f"protoc does not compile the schema: {said}"[:1000])
    return out.read_bytes()


# ----------------------------------------------------------------------------------------------
# Columns.


class _Made(NamedTuple):
    type: pa.DataType
    convert: _Convert


def _as_it_is(value: Any) -> Any:  # noqa: ANN401 - of the type
    return value


def _json_of(message: Any) -> str:  # noqa: ANN401 - a message
    from google.protobuf import json_format  # noqa: PLC0415 - an extra

    found = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return json.dumps(found, ensure_ascii=False)


def _micros_of(message: Any) -> int:  # noqa: ANN401 - a Timestamp or Duration
    return int(message.seconds) * 1_000_000 + int(message.nanos / 1000)


def _wrapped(message: Any) -> Any:  # noqa: ANN401 - a wrapper
    return message.value


_UNSIGNED: Final = _Made(pa.decimal128(20, 0), Decimal)
_SCALARS: Final = {
    **dict.fromkeys((1,), _Made(pa.float64(), _as_it_is)),
    **dict.fromkeys((2,), _Made(pa.float32(), _as_it_is)),
    **dict.fromkeys((3, 16, 18), _Made(pa.int64(), _as_it_is)),
    **dict.fromkeys((4, 6), _UNSIGNED),
    **dict.fromkeys((5, 15, 17), _Made(pa.int32(), _as_it_is)),
    **dict.fromkeys((7, 13), _Made(pa.int64(), _as_it_is)),
    8: _Made(pa.bool_(), _as_it_is),
    9: _Made(pa.string(), _as_it_is),
    12: _Made(pa.binary(), _as_it_is),
}
"""By the numbers of the types in ``descriptor.proto``."""
_ENUM: Final = 14
_KNOWN: Final = {
    "google.protobuf.Timestamp": _Made(_MICROS, _micros_of),
    "google.protobuf.Duration": _Made(pa.duration("us"), _micros_of),
    **{
        f"google.protobuf.{name}": _Made(pa.string(), _json_of)
        for name in ("Struct", "Value", "ListValue")
    },
    **{
        f"google.protobuf.{name}Value": _Made(_SCALARS[number].type, _wrapped)
        for name, number in (
            *(("Double", 1), ("Float", 2), ("Int64", 3), ("Int32", 5), ("UInt32", 13)),
            *(("Bool", 8), ("String", 9), ("Bytes", 12)),
        )
    },
    "google.protobuf.UInt64Value": _Made(_UNSIGNED.type, lambda each: Decimal(each.value)),
}


class _Types:
    """Makes Arrow's types of messages."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._budget = FieldBudget()
        self._above: list[str] = []

    def of(self, message: Any) -> _Made:  # noqa: ANN401 - a descriptor
        """Return the type of a message, all that it names unfolded."""
        name = message.full_name
        known = _KNOWN.get(name)
        if known is not None:
            return known
        if name in self._above or not message.fields:
            return _Made(pa.string(), _json_of)
        if len(self._above) > MAX_DEPTH:
            raise SchemaError(f"the schema is nested deeper than {MAX_DEPTH} levels")
        self._above.append(name)
        fields = [(each.name, each, self._field(each)) for each in message.fields]
        self._above.pop()
        kind = pa.struct([(name, made.type) for name, _, made in fields])
        told = [(name, each.has_presence, made.convert) for name, each, made in fields]
        cells = self._cells

        def convert(value: Any) -> dict[str, Any]:  # noqa: ANN401 - a message
            cells.take(len(told))
            return {
                name: change(getattr(value, name)) if not is_told or value.HasField(name) else None
                for name, is_told, change in told
            }

        return _Made(kind, convert)

    def _field(self, field: Any) -> _Made:  # noqa: ANN401 - a descriptor
        self._budget.take()
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            return self._map(inner.fields_by_name["key"], inner.fields_by_name["value"])
        one = self._one(field)
        if not field.is_repeated:
            return one
        change = one.convert
        return _Made(pa.list_(one.type), lambda items: [change(each) for each in items])

    def _one(self, field: Any) -> _Made:  # noqa: ANN401 - a descriptor
        if field.message_type is not None:
            return self.of(field.message_type)
        if field.type == _ENUM:
            names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
            return _Made(pa.string(), lambda number: names.get(number, str(number)))
        return _SCALARS[field.type]

    def _map(self, key: Any, value: Any) -> _Made:  # noqa: ANN401 - descriptors
        keys, values = self._one(key), self._one(value)
        return _Made(
            pa.map_(keys.type, values.type),
            lambda items: [(keys.convert(k), values.convert(v)) for k, v in items.items()],
        )
