"""The rows of the source: once as Spark knows them, once as Arrow.

The columns are those of Spark's Kafka source. A schema given by the user selects some of them, in
any order and any case of the names, and may read ``key`` and ``value`` as ``STRING``; a column that
it leaves out is never built.

``STRING`` means what ``CAST(value AS STRING)`` means in Spark: the bytes as they are. Spark does
not validate UTF-8 in that cast, and neither does this: bytes that are no UTF-8 stay what they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kafkalog.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RowSchema", "source_schema"]

_HEADERS: Final = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)

_COLUMNS: Final[dict[str, DataType]] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": _HEADERS,
}
_READABLE_AS_STRING: Final = frozenset({"key", "value"})
_NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestampType"})


def source_schema(*, include_headers: bool) -> StructType:
    """Return the schema of Spark's Kafka source; ``headers`` only on request, as there."""
    return StructType(
        [
            StructField(name, kind)
            for name, kind in _COLUMNS.items()
            if include_headers or name != "headers"
        ]
    )


@dataclass(frozen=True, slots=True)
class RowSchema:
    """Which columns the rows have, in which order, and how key and value are shown.

    ``columns`` are the names of this module's columns; ``fields`` the names and nullability that
    the user's schema gives them; ``strings`` those of the columns that are to be ``STRING``.
    """

    columns: tuple[str, ...]
    names: tuple[str, ...]
    nullable: tuple[bool, ...]
    strings: frozenset[str]

    @classmethod
    def of(cls, schema: StructType) -> RowSchema:
        """Check the schema that Spark asks for, which may be the user's.

        Raises:
            OptionError: a column that the source does not have, another type than it has, one
                twice, one that may be null declared NOT NULL, or no column at all.
        """
        if not schema.fields:
            raise OptionError(f"the schema has no columns; choose some of: {_offered()}")
        columns = tuple(_column_of(field) for field in schema.fields)
        for column in columns:
            if columns.count(column) > 1:
                raise OptionError(f"the schema has column {column!r} twice")
        return cls(
            columns=columns,
            names=tuple(schema.fieldNames()),
            nullable=tuple(field.nullable for field in schema.fields),
            strings=frozenset(
                column
                for column, field in zip(columns, schema.fields, strict=True)
                if column in _READABLE_AS_STRING and isinstance(field.dataType, StringType)
            ),
        )

    def to_arrow(self) -> pa.Schema:
        """Return the Arrow schema of the rows, which is compared by Spark field by field."""
        import pyarrow as pa  # noqa: PLC0415 - not at import: planning processes do without

        header = pa.struct([("key", pa.string()), ("value", pa.binary())])
        kinds = {
            "key": pa.binary(),
            "value": pa.binary(),
            "topic": pa.string(),
            "partition": pa.int32(),
            "offset": pa.int64(),
            "timestamp": pa.timestamp("us", tz="UTC"),
            "timestampType": pa.int32(),
            "headers": pa.list_(header),
        } | dict.fromkeys(self.strings, pa.string())
        return pa.schema(
            [
                pa.field(name, kinds[column], nullable)
                for column, name, nullable in zip(
                    self.columns, self.names, self.nullable, strict=True
                )
            ]
        )


def _column_of(field: StructField) -> str:
    by_key = {name.lower(): name for name in _COLUMNS}
    column = by_key.get(field.name.lower())
    if column is None:
        raise OptionError(
            f"the schema has column {field.name!r}, which the source does not have; "
            f"choose some of: {_offered()}"
        )
    if not _accepts(column, field.dataType):
        if field.dataType.simpleString() == _COLUMNS[column].simpleString():
            raise OptionError(
                f"the schema declares parts of column {field.name!r} NOT NULL; leave NOT NULL out"
            )
        raise OptionError(
            f"the schema gives column {field.name!r} type {field.dataType.simpleString()}, "
            f"but it can be read as {_kinds_of(column)}"
        )
    if not field.nullable and column not in _NEVER_NULL:
        raise OptionError(
            f"the schema declares column {field.name!r} NOT NULL, but a record's {column} may be "
            "null; leave NOT NULL out"
        )
    return column


def _accepts(column: str, kind: DataType) -> bool:
    if column in _READABLE_AS_STRING and kind == StringType():
        return True
    return kind == _COLUMNS[column]


def _kinds_of(column: str) -> str:
    kind = _COLUMNS[column].simpleString()
    return f"{kind} or string" if column in _READABLE_AS_STRING else kind


def _offered() -> str:
    return ", ".join(f"{name} {_kinds_of(name)}" for name in _COLUMNS)
