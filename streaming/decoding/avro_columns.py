"""Many values of Avro at once, as columns of Arrow, without an object for each value.

It does what :mod:`.avro` does value by value, for the schemas that most topics have: records,
lists and nulls of plain types. Maps, unions of several types, types inside themselves and
resolution by aliases are left to that, and so is each value that is not read plainly. So whatever
is here gives the same column, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from kafkalog.streaming.decoding import avro_kernels as kernels
from kafkalog.streaming.records.take_kernels import append_values

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

__all__ = ["MOST_DIGITS", "AvroType", "BulkReader", "Found", "NotPlainError"]

_NO_CELLS: Final = np.empty(0, np.int64)
_MOST_BYTES: Final = 2**31 - 1
_NOWHERE: Final = -1


class NotPlainError(Exception):
    """A schema that is decoded value by value."""


@dataclass(frozen=True, slots=True)
class AvroType:
    """What the column of a type is, resolved: ``kind`` as Avro names it, union of null unfolded.

    ``inner`` has a list's items, or a record's fields by their names. ``more`` is the size of a
    fixed type, the symbols of an enum, the digits of a decimal. ``identity`` is what two types
    must have in common so that one's values are the other's.
    """

    kind: str
    type: pa.DataType
    null_at: int = _NOWHERE
    inner: dict[str, AvroType] | None = None
    more: Any = None
    identity: Any = None
    defaults: dict[str, Any] | None = None


_Build: TypeAlias = Callable[["Found", int, "NDArray[np.bool_] | None"], pa.Array]
"""Makes a column of so many entries; those of the mask are null."""

_KINDS: Final = {
    "int": kernels.INT,
    "date": kernels.INT,
    "long": kernels.LONG,
    "millis": kernels.MILLIS,
    "boolean": kernels.BOOLEAN,
    "float": kernels.FLOAT,
    "double": kernels.DOUBLE,
    "bytes": kernels.BYTES,
    "string": kernels.STRING,
    "fixed": kernels.FIXED,
    "enum": kernels.ENUM,
    "decimal": kernels.DECIMAL,
}
_WIDER: Final = {("int32", "int64"), ("int32", "double"), ("float", "double")}
MOST_DIGITS: Final = 18
"""Decimals of more digits take more than an int64."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was found in some values: see :mod:`.avro_kernels`."""

    source: Bytes
    cells: Integers
    lengths: Integers
    bases: Integers

    def at(self, step: int) -> tuple[Integers, Integers]:
        """Return the cells and lengths of a type."""
        part = slice(int(self.bases[step]), int(self.bases[step + 1]))
        return self.cells[part], self.lengths[part]


class BulkReader:
    """Reads values that one schema wrote into the column of another, or of the same."""

    def __init__(self, writer: AvroType, reader: AvroType) -> None:
        """Plan how.

        Raises:
            NotPlainError: these are read value by value.
        """
        self._steps: list[list[int]] = []
        self._build = self._plan(writer, reader)
        self._program = np.array(self._steps, np.int64).reshape(-1, kernels.FIELDS)

    def read(
        self, source: Bytes, starts: Integers, ends: Integers
    ) -> tuple[pa.Array, NDArray[np.bool_]]:
        """Return the column of the values, and which could not be read: they are null in it.

        Raises:
            NotPlainError: a column would be too large.
        """
        count, steps = len(starts), len(self._program)
        program, faults = self._program.copy(), np.zeros(count, np.uint8)
        lists = np.zeros((kernels.MOST_LISTS, kernels.LIST_FIELDS), np.int64)
        counts, before = np.zeros(steps, np.int64), np.zeros(steps, np.int64)
        given = (source, starts, ends)
        kernels.walk_values(*given, program, counts, before, faults, _NO_CELLS, _NO_CELLS, lists)
        bases = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        program[:, kernels.BASE] = bases[:-1]
        cells, lengths = (np.zeros(int(bases[-1]), np.int64) for _ in range(2))
        counts[:] = 0
        kernels.walk_values(*given, program, counts, before, faults, cells, lengths, lists)
        bad = faults.astype(bool)
        column = self._build(Found(source, cells, lengths, bases), count, bad)
        return column, bad

    # Plans: a step of the program for each type that is written, and a column for each wanted.

    def _plan(self, writer: AvroType, reader: AvroType | None) -> _Build:
        if reader is not None and reader.null_at == _NOWHERE != writer.null_at:
            raise NotPlainError
        if writer.null_at == _NOWHERE:
            return self._plan_present(writer, reader)
        step = self._add(kernels.NULLABLE, writer.null_at)
        build = self._plan_present(writer, reader)
        self._steps[step][kernels.SKIP] = len(self._steps)

        def nullable(found: Found, count: int, _mask: NDArray[np.bool_] | None) -> pa.Array:
            _, lengths = found.at(step)
            return build(found, count, lengths < 0)

        return nullable

    def _plan_present(self, writer: AvroType, reader: AvroType | None) -> _Build:
        if reader is not None and (str(writer.type), str(reader.type)) in _WIDER:
            build, wider = self._plan_present(writer, writer), reader.type
            return lambda found, count, mask: build(found, count, mask).cast(wider)
        if reader is not None and (writer.kind, writer.identity) != (reader.kind, reader.identity):
            raise NotPlainError
        if writer.kind == "record":
            return self._plan_record(writer, reader)
        if writer.kind == "array":
            return self._plan_list(writer, reader)
        more = len(writer.more) if writer.kind == "enum" else writer.more
        step = self._add(_KINDS[writer.kind], more or 0)
        return _column_of(step, writer)

    def _plan_record(self, writer: AvroType, reader: AvroType | None) -> _Build:
        wanted = (reader and reader.inner) or {}
        made = {
            name: self._plan(each, wanted.get(name)) for name, each in (writer.inner or {}).items()
        }
        if reader is None:
            return made.popitem()[1]
        builds = [made.get(name) or _default_of(reader, name) for name in wanted]
        fields = list(reader.type)

        def build(found: Found, count: int, mask: NDArray[np.bool_] | None) -> pa.Array:
            columns = [each(found, count, None) for each in builds]
            nulls = None if mask is None or not mask.any() else pa.array(mask)
            return pa.StructArray.from_arrays(columns, fields=fields, mask=nulls)

        return build

    def _plan_list(self, writer: AvroType, reader: AvroType | None) -> _Build:
        step = self._add(kernels.LIST, 0)
        (item,) = (writer.inner or {}).values()
        (wanted,) = (reader.inner or {}).values() if reader is not None else (None,)
        build = self._plan(item, wanted)
        self._steps[step][kernels.SKIP] = len(self._steps)
        kind = (reader or writer).type

        def items(found: Found, count: int, _mask: NDArray[np.bool_] | None) -> pa.Array:
            cells, lengths = found.at(step)
            ends = np.zeros(count + 1, np.int32)
            total = int(cells.sum())
            if total > _MOST_BYTES:
                raise NotPlainError
            np.cumsum(cells, out=ends[1:])
            values = build(found, total, None)
            buffers = [_bitmap(lengths), pa.py_buffer(ends)]
            return pa.Array.from_buffers(kind, count, buffers, children=[values])

        return items

    def _add(self, kind: int, more: int) -> int:
        step = len(self._steps)
        self._steps.append([kind, more, step + 1, 0])
        return step


def _default_of(reader: AvroType, name: str) -> _Build:
    """Return the column of a field that was not written.

    Raises:
        NotPlainError: it has no default, or none that is plainly one of the type.
    """
    defaults, kind = reader.defaults or {}, (reader.inner or {})[name]
    if name not in defaults:
        raise NotPlainError
    value = defaults[name]
    plain = {"string": str, "boolean": bool, "int": int, "long": int, "double": float}
    if not ((value is None and kind.null_at != _NOWHERE) or type(value) is plain.get(kind.kind)):
        raise NotPlainError
    try:
        scalar = pa.scalar(value, kind.type)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        raise NotPlainError from None
    return lambda _found, count, _mask: pa.repeat(scalar, count)


# Columns of types without others in them.


def _bitmap(lengths: Integers) -> pa.Buffer | None:
    valid = lengths >= 0
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _column_of(step: int, one: AvroType) -> _Build:
    make = {"string": _text, "bytes": _text, "fixed": _text, "enum": _symbols}.get(
        one.kind, _numbers
    )
    return lambda found, _count, _mask: make(found, step, one)


def _numbers(found: Found, step: int, one: AvroType) -> pa.Array:
    cells, lengths = found.at(step)
    if one.kind == "boolean":
        return pa.array(cells != 0, mask=lengths < 0)
    values: NDArray[Any] = cells
    if one.kind in {"int", "date"}:
        values = cells.astype(np.int32)
    elif one.kind == "float":
        values = cells.astype(np.uint32)
    elif one.kind == "decimal":
        values = np.stack([cells, cells >> 63], axis=1)
    buffer = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(one.type, len(cells), [_bitmap(lengths), buffer])


def _text(found: Found, step: int, one: AvroType) -> pa.Array:
    starts, lengths = found.at(step)
    count = len(starts)
    total = int(np.maximum(lengths, 0).sum())
    if total > _MOST_BYTES:
        raise NotPlainError
    ends, out = np.zeros(count + 1, np.int32), np.empty(total, np.uint8)
    valid = np.full((count + 7) // 8, 255, np.uint8)
    if append_values(found.source, starts, lengths, 0, ends, out, valid) < 0:
        raise NotPlainError
    buffers = [pa.py_buffer(valid), pa.py_buffer(ends), pa.py_buffer(out)]
    return pa.Array.from_buffers(one.type, count, buffers)


def _symbols(found: Found, step: int, one: AvroType) -> pa.Array:
    cells, lengths = found.at(step)
    return pa.array(one.more, pa.string()).take(pa.array(cells, mask=lengths < 0))
