"""The rows of the source: once as Spark knows them, once as Arrow.

The columns are those of Spark's Kafka source. A schema given by the user selects some of them, in
any order and any case of the names, and may read ``key`` and ``value`` as ``STRING``, and
``timestamp`` as ``BIGINT``: a column that it leaves out is never built.

``STRING`` means what ``CAST(value AS STRING)`` means in Spark: the bytes as they are. Spark does
not validate UTF-8 in that cast, and neither does this: bytes that are no UTF-8 stay what they are.

``BIGINT`` is the timestamp in ms as it is stored, all 64 bits of it: Spark's ``TIMESTAMP`` has µs,
and cannot hold each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafkalog.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import pyarrow as pa
    from pyspark.sql.types import DataType, StructField, StructType

__all__ = ["RowSchema", "source_schema"]

_NAMES: Final = (
    *("key", "value", "topic", "partition"),
    *("offset", "timestamp", "timestampType", "headers"),
)
_READABLE_AS_STRING: Final = frozenset({"key", "value"})
_ALSO: Final = {"key": "string", "value": "string", "timestamp": "bigint"}
"""What a column may be read as, beside the type that Spark's Kafka source has."""
_NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestampType"})


def _columns() -> dict[str, DataType]:
    """Return the columns as Spark knows them."""
    from pyspark.sql import types  # noqa: PLC0415 - not at import: a look-up does without

    text, data, number = types.StringType(), types.BinaryType(), types.IntegerType()
    header = [types.StructField("key", text), types.StructField("value", data)]
    headers = types.ArrayType(types.StructType(header))
    kinds = (data, data, text, number, types.LongType(), types.TimestampType(), number, headers)
    return dict(zip(_NAMES, kinds, strict=True))


def source_schema(*, include_headers: bool) -> StructType:
    """Return the schema of Spark's Kafka source; ``headers`` only on request, as there."""
    from pyspark.sql.types import StructField, StructType  # noqa: PLC0415

    return StructType(
        [
            StructField(name, kind)
            for name, kind in _columns().items()
            if include_headers or name != "headers"
        ]
    )


@dataclass(frozen=True, slots=True)
class RowSchema:
    """Which columns the rows have, in which order, and how key and value are shown.

    ``columns`` are the names of this module's columns; ``fields`` the names and nullability that
    the user's schema gives them; ``strings`` those of the columns that are to be ``STRING``; and
    with ``has_ms`` timestamps are ``BIGINT``, in ms.
    """

    columns: tuple[str, ...]
    names: tuple[str, ...]
    nullable: tuple[bool, ...]
    strings: frozenset[str]
    has_ms: bool = False

    @classmethod
    def named(
        cls,
        columns: Sequence[str] = (),
        *,
        strings: Collection[str] = (),
        include_headers: bool = False,
    ) -> RowSchema:
        """Choose columns by their exact names; default: all, ``headers`` only if included.

        Raises:
            OptionError: a column that the source does not have.
        """
        with_headers = include_headers or "headers" in columns
        offered = [name for name in _NAMES if with_headers or name != "headers"]
        for name in (*columns, *strings):
            if name not in offered:
                raise OptionError(f"no column {name!r}, expected some of {', '.join(offered)}")
        chosen = tuple(columns or offered)
        nullable = (True,) * len(chosen)
        return cls(chosen, chosen, nullable, frozenset(strings) & _READABLE_AS_STRING)

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
                if column in _READABLE_AS_STRING and field.dataType.typeName() == "string"
            ),
            has_ms=any(
                column == "timestamp" and field.dataType.simpleString() == "bigint"
                for column, field in zip(columns, schema.fields, strict=True)
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
            "timestamp": pa.int64() if self.has_ms else pa.timestamp("us", tz="UTC"),
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
    by_key = {name.lower(): name for name in _NAMES}
    column = by_key.get(field.name.lower())
    if column is None:
        raise OptionError(
            f"the schema has column {field.name!r}, which the source does not have; "
            f"choose some of: {_offered()}"
        )
    if not _accepts(column, field.dataType):
        if field.dataType.simpleString() == _columns()[column].simpleString():
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
    from pyspark.sql.types import LongType, StringType  # noqa: PLC0415

    also = {"string": StringType(), "bigint": LongType()}.get(_ALSO.get(column, ""))
    return kind in (_columns()[column], also)


def _kinds_of(column: str) -> str:
    kind = _columns()[column].simpleString()
    return f"{kind} or {_ALSO[column]}" if column in _ALSO else kind


def _offered() -> str:
    return ", ".join(f"{name} {_kinds_of(name)}" for name in _NAMES)
