"""The columns of the sink's rows: which there may be, of which types, and what they become.

As in Spark's Kafka sink (``KafkaWriter``), names are exact and case-sensitive, columns are checked
in its order, and other columns are left alone. Three columns are ours: ``timestamp``, and with
``preserveOffsets`` ``offset`` and ``timestampType``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafkalog.errors import RowError
from kafkalog.model import NO_TIMESTAMP, TimestampType
from kafkalog.streaming.records.builder import RecordColumns
from kafkalog.streaming.sink.partition_kernels import RECORD_OVERHEAD, record_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.streaming.records.arrow_buffers import BinaryColumn, Integers


__all__ = ["Rows", "check_columns", "spark_type_name"]


# ----------------------------------------------------------------------------------------------
# The types that the columns of the sink's rows may have, by Spark's names for them.


class _Column(NamedTuple):
    name: str
    types: tuple[str, ...]


_BYTES: Final = ("string", "binary")

_TOPIC: Final = _Column("topic", ("string",))
_COLUMNS: Final = (
    _TOPIC,
    _Column("key", _BYTES),
    _Column("value", _BYTES),
    _Column("headers", ("array<struct<key:string,value:binary>>",)),
    _Column("partition", ("int",)),
    _Column("timestamp", ("timestamp", "bigint")),
)
"""In the order in which Spark's Kafka sink checks them."""

_OFFSET: Final = _Column("offset", ("bigint",))
_KEPT: Final = (_OFFSET, _Column("timestampType", ("int",)))
"""Those that are looked at with ``preserveOffsets``."""


def check_columns(
    columns: Sequence[tuple[str, str]], *, topic_given: bool, keeps_offsets: bool = False
) -> None:
    """Refuse rows that cannot become records; the first problem found is told.

    Args:
        columns: the name of each column, and Spark's name of its type.
        topic_given: the option ``topic`` is set; a column ``topic`` is then not looked at.
        keeps_offsets: the option ``preserveOffsets`` is true; else the columns ``offset`` and
            ``timestampType`` are not looked at.

    Raises:
        RowError: naming a column that is there twice, or the type found and those allowed.
    """
    known = _COLUMNS + _KEPT if keeps_offsets else _COLUMNS
    looked_at = [column for column in known if not (column is _TOPIC and topic_given)]
    names = [name for name, _ in columns]
    for column in looked_at:
        if names.count(column.name) > 1:  # which of them is meant?
            raise RowError(
                f"there is more than one column {column.name!r}: rename or drop all but one"
            )
    types = dict(columns)
    for column in looked_at:
        found = types.get(column.name)
        if found is None:
            _require(column)
        elif found not in column.types:
            raise RowError(
                f"column {column.name!r} has the type {found}, but must be "
                f"{' or '.join(column.types)}"
            )


def _require(column: _Column) -> None:
    if column is _TOPIC:
        raise RowError(
            "no topic to write to: set the option 'topic', or add a column 'topic' of type string"
        )
    if column is _OFFSET:
        raise RowError(
            "there is no column 'offset' of type bigint, whose offsets preserveOffsets=true is to "
            "keep"
        )
    if column.name == "value":
        raise RowError(
            "there is no column 'value', which must be string or binary (column names are "
            "case-sensitive)"
        )


# ----------------------------------------------------------------------------------------------

_TICKS_PER_MS: Final = {"us": 1000, "ns": 1_000_000}
_MS_PER_TICK: Final = {"s": 1000, "ms": 1}
_LAST_MS: Final = 2**63 - 1
_FEW_BYTES: Final = 128 << 10
_SPARK_NAMES: Final = {
    pa.string().id: "string",
    pa.large_string().id: "string",
    pa.binary().id: "binary",
    pa.large_binary().id: "binary",
    pa.int32().id: "int",
    pa.int64().id: "bigint",
}


@dataclass(frozen=True)
class Rows:
    """The rows of one Arrow batch, ready to be encoded."""

    topic: pa.Array | None
    partition: pa.Array | None
    key: pa.Array | None
    value: pa.Array
    records: RecordColumns
    stamps: Integers | None = None
    """The append time of each row that is to keep one, in ms, and -1 of the others; int64[n]. None
    where the topic's setting decides."""

    @classmethod
    def of(
        cls, batch: pa.RecordBatch, *, now_ms: int, topic_given: bool, keeps_offsets: bool = False
    ) -> Self:
        """Take the columns of a batch; rows without a timestamp get ``now_ms``.

        Raises:
            RowError: a column of a wrong type, none of a needed name, or two; a timestamp that no
                record can have; a header without a key; an offset to keep that is null.
        """
        check_columns(
            [(field.name, spark_type_name(field.type)) for field in batch.schema],
            topic_given=topic_given,
            keeps_offsets=keeps_offsets,
        )
        found = dict(zip(batch.schema.names, batch.columns, strict=True))
        timestamps = _timestamps(found.get("timestamp"), batch.num_rows, now_ms)
        key, value = found.get("key"), found["value"]
        records = RecordColumns.from_arrow(
            timestamps=timestamps,
            value=value,
            key=key,
            headers=found.get("headers"),
            offsets=_offsets(found["offset"]) if keeps_offsets else None,
        )
        return cls(
            topic=None if topic_given else found["topic"],
            partition=found.get("partition"),
            key=key,
            value=value,
            records=records,
            stamps=_stamps(found.get("timestampType"), timestamps) if keeps_offsets else None,
        )

    def __len__(self) -> int:
        return self.records.length

    @cached_property
    def sizes(self) -> Integers:
        """About how many bytes each row takes as a record; int64[n], computed when asked for."""
        records = self.records
        sizes = record_sizes((records.key, records.value), records.length)
        if len(records.header_starts):
            for column in (records.header_keys, records.header_values):
                if len(column.offsets):
                    sizes += np.diff(column.offsets[records.header_starts])
        return sizes

    @cached_property
    def largest(self) -> int:
        """No row takes more bytes; where all rows take few, it is what they take together."""
        if len(self.records.header_starts):
            return int(self.sizes.max(initial=0))
        return RECORD_OVERHEAD + _longest(self.records.key) + _longest(self.records.value)


def spark_type_name(kind: pa.DataType) -> str:
    """Return the name that Spark has for an Arrow type, or Arrow's own where it has none."""
    name = _SPARK_NAMES.get(kind.id)
    if name is not None:
        return name
    if pa.types.is_timestamp(kind):
        return "timestamp"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{spark_type_name(kind.value_type)}>"
    if pa.types.is_struct(kind):
        fields = (f"{field.name}:{spark_type_name(field.type)}" for field in kind)
        return f"struct<{','.join(fields)}>"
    return str(kind)


def _longest(column: BinaryColumn) -> int:
    """Return the bytes of the longest value, or of all where they are few."""
    if not len(column.offsets):
        return 0
    whole = int(column.offsets[-1] - column.offsets[0])
    return whole if whole <= _FEW_BYTES else int(np.diff(column.offsets).max(initial=0))


def _offsets(column: pa.Array) -> Integers:
    if column.null_count:
        row = int(np.flatnonzero(np.asarray(column.is_null()))[0])
        raise RowError(f"row {row} has null in column 'offset', and preserveOffsets is true")
    return np.asarray(column)


def _stamps(types: pa.Array | None, timestamps: Integers) -> Integers | None:
    """Return the timestamps of rows that have LogAppendTime, and -1 for the others."""
    if types is None:
        return None
    appended = np.asarray(pc.fill_null(types, -1)) == TimestampType.LOG_APPEND_TIME
    return np.where(appended, timestamps, NO_TIMESTAMP)


def _timestamps(column: pa.Array | None, length: int, now_ms: int) -> Integers:
    """Return int64[length] in ms; µs and ns are rounded down, as Spark does."""
    if column is None:
        return np.full(length, now_ms, np.int64)
    ticks = np.asarray(pc.fill_null(column.cast(pa.int64()), 0))
    if pa.types.is_timestamp(column.type):
        unit = column.type.unit
        factor = _MS_PER_TICK.get(unit, 1)
        latest = _LAST_MS // factor
        beyond = np.flatnonzero((ticks > latest) | (ticks < -latest))
        if len(beyond):
            raise RowError(f"row {beyond[0]} has a timestamp that ms in 64 bits cannot hold")
        ticks = ticks * factor // _TICKS_PER_MS.get(unit, 1)
    missing = np.asarray(column.is_null())
    return np.where(missing, now_ms, ticks)
