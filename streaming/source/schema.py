"""What a row of the source is: its columns for Spark and Arrow, and the option ``view``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, Self

import pyarrow as pa

from kafkalog.errors import OptionError
from kafkalog.files.paths import as_path
from kafkalog.streaming.coordinator.view_schemas import (
    METADATA_VIEW_SCHEMA,
    OFFSETS_VIEW_SCHEMA,
    REMOTE_VIEW_SCHEMA,
    TRANSACTIONS_VIEW_SCHEMA,
)
from kafkalog.streaming.records.batch_rows import BATCH_ROW_SCHEMA, BatchDescriber
from kafkalog.streaming.source.arguments import names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pyspark.sql.types import DataType, StructField, StructType

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.decoding.registry import SchemaText
    from kafkalog.streaming.log.read.slice_reader import Decoder
    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.source.planner import LogSplit

__all__ = [
    "DecodedSide",
    "ReadRows",
    "RowMaker",
    "RowSchema",
    "check_view_schema",
    "decoded_schema",
    "rows_of_snapshot",
    "source_schema",
    "view_arrow_schema",
    "view_rows",
    "view_schema",
    "wanted_types",
]


# ----------------------------------------------------------------------------------------------
# The rows of the source: once as Spark knows them, once as Arrow.
#
# The columns are those of Spark's Kafka source. A schema given by the user selects some of them,
# in any order and any case of the names, and may read ``key`` and ``value`` as ``STRING``, and
# ``timestamp`` as ``BIGINT``: a column that it leaves out is never built.
#
# ``STRING`` means what ``CAST(value AS STRING)`` means in Spark: the bytes as they are. Spark
# does not validate UTF-8 in that cast, and neither does this: bytes that are no UTF-8 stay what
# they are.
#
# ``BIGINT`` is the timestamp in ms as it is stored, all 64 bits of it: Spark's ``TIMESTAMP`` has
# µs, and cannot hold each of them.


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
class DecodedSide:
    """How the key or the value is decoded: ``side`` says which, ``kind`` is the column's type."""

    side: str
    format: str
    schema: SchemaText
    message: str | None
    context: str
    kind: pa.DataType

    @property
    def fields(self) -> dict[str, pa.DataType]:
        """The columns, by their names."""
        return {
            f"{self.side}Decoded": self.kind,
            f"{self.side}SchemaId": pa.int32(),
            f"{self.side}Error": pa.string(),
        }


@dataclass(frozen=True, slots=True)
class RowSchema:
    """Which columns the rows have, in which order, and how key and value are shown.

    ``columns`` are the names of this module's columns; ``fields`` the names and nullability that
    the user's schema gives them; ``strings`` those of the columns that are to be ``STRING``; and
    with ``has_ms`` timestamps are ``BIGINT``, in ms. ``decoded`` says of which columns others are
    made, which come under the names that it gives them.
    """

    columns: tuple[str, ...]
    names: tuple[str, ...]
    nullable: tuple[bool, ...]
    strings: frozenset[str]
    has_ms: bool = False
    decoded: tuple[DecodedSide, ...] = ()

    @classmethod
    def named(
        cls,
        columns: Sequence[str] = (),
        *,
        strings: Collection[str] = (),
        include_headers: bool = False,
        decoded: tuple[DecodedSide, ...] = (),
    ) -> RowSchema:
        """Choose columns by their exact names; default: all, ``headers`` only if included.

        Raises:
            OptionError: a column that the source does not have.
        """
        with_headers = include_headers or "headers" in columns
        offered = [name for name in _NAMES if with_headers or name != "headers"]
        offered += [name for side in decoded for name in side.fields]
        for name in (*columns, *strings):
            if name not in offered:
                raise OptionError(f"no column {name!r}, expected some of {', '.join(offered)}")
        chosen = tuple(columns or offered)
        nullable = (True,) * len(chosen)
        readable = frozenset(strings) & _READABLE_AS_STRING
        return cls(chosen, chosen, nullable, readable, decoded=decoded)

    @classmethod
    def of(cls, schema: StructType, decoded: tuple[DecodedSide, ...] = ()) -> RowSchema:
        """Check the schema that Spark asks for, which may be the user's.

        Raises:
            OptionError: a column that the source does not have, another type than it has, one
                twice, one that may be null declared NOT NULL, or no column at all.
        """
        if not schema.fields:
            raise OptionError(f"the schema has no columns; choose some of: {_offered()}")
        made = _decoded_columns(decoded)
        columns = tuple(_column_of(field, made) for field in schema.fields)
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
            decoded=decoded,
        )

    @property
    def stored(self) -> RowSchema:
        """The columns that are read for these: without the decoded ones, with what they need."""
        if not self.decoded:
            return self
        made = {name: side.side for side in self.decoded for name in side.fields}
        kept = [each for each in zip(self.columns, self.names, strict=True) if each[0] not in made]
        kept += [(side.side, side.side) for side in self.decoded if side.side not in self.columns]
        columns, names = zip(*kept, strict=True)
        nullable = (True,) * len(columns)
        return RowSchema(columns, names, nullable, self.strings, self.has_ms)

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
        for side in self.decoded:
            kinds |= side.fields
        return pa.schema(
            [
                pa.field(name, kinds[column], nullable)
                for column, name, nullable in zip(
                    self.columns, self.names, self.nullable, strict=True
                )
            ]
        )


def _decoded_columns(decoded: tuple[DecodedSide, ...]) -> dict[str, DataType]:
    """Return the columns that are made of keys and values, as Spark knows them."""
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415 - rows do without

    return {
        name: from_arrow_type(kind, prefer_timestamp_ntz=True)
        for side in decoded
        for name, kind in side.fields.items()
    }


def decoded_schema(decoded: tuple[DecodedSide, ...]) -> list[StructField]:
    """Return the columns that are made of keys and values, as Spark knows them."""
    from pyspark.sql.types import StructField  # noqa: PLC0415

    return [StructField(name, kind) for name, kind in _decoded_columns(decoded).items()]


def wanted_types(schema: StructType) -> dict[str, DataType]:
    """Return the types that a schema of Spark's gives decoded columns, by the columns' names."""
    names = {"keydecoded": "keyDecoded", "valuedecoded": "valueDecoded"}
    return {
        names[field.name.lower()]: field.dataType
        for field in schema.fields
        if field.name.lower() in names
    }


def _column_of(field: StructField, decoded: Mapping[str, DataType]) -> str:
    by_key = {name.lower(): name for name in (*_NAMES, *decoded)}
    column = by_key.get(field.name.lower())
    if column is None:
        raise OptionError(
            f"the schema has column {field.name!r}, which the source does not have; "
            f"choose some of: {_offered()}"
        )
    if column in decoded:
        _check_decoded(field, decoded[column])
        return column
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


def _check_decoded(field: StructField, kind: DataType) -> None:
    if field.dataType != kind:
        raise OptionError(
            f"the schema gives column {field.name!r} type {field.dataType.simpleString()}, but "
            f"its values are decoded as {kind.simpleString()}: leave the schema out, or let "
            "schema.value or schema.key choose the one that gives this type"
        )
    if not field.nullable:
        raise OptionError(
            f"the schema declares column {field.name!r} NOT NULL, but what cannot be decoded is "
            "null; leave NOT NULL out"
        )


def _accepts(column: str, kind: DataType) -> bool:
    from pyspark.sql.types import LongType, StringType  # noqa: PLC0415

    also = {"string": StringType(), "bigint": LongType()}.get(_ALSO.get(column, ""))
    return kind in (_columns()[column], also)


def _kinds_of(column: str) -> str:
    kind = _columns()[column].simpleString()
    return f"{kind} or {_ALSO[column]}" if column in _ALSO else kind


def _offered() -> str:
    return ", ".join(f"{name} {_kinds_of(name)}" for name in _NAMES)


# ----------------------------------------------------------------------------------------------
# What a row can be instead of a record: the option ``view``.
#
# A view has columns of its own, always all of them: a schema given by the user selects from
# records.


_SNAPSHOT_ROWS: Final = 10_000
_BATCHES_SCHEMA: Final = pa.schema(
    [pa.field("topic", pa.string()), pa.field("partition", pa.int32()), *BATCH_ROW_SCHEMA]
)

_SCHEMAS: Final = {
    "batches": _BATCHES_SCHEMA,
    "offsets": OFFSETS_VIEW_SCHEMA,
    "transactions": TRANSACTIONS_VIEW_SCHEMA,
    "metadata": METADATA_VIEW_SCHEMA,
    "remote": REMOTE_VIEW_SCHEMA,
}


class RowMaker(Protocol):
    """How one split's rows come about: what ``decoder`` gives, brought into their final form."""

    @property
    def decoder(self) -> Decoder:
        """What the batches of the split are fed to."""
        ...

    def rows_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Make the rows of what the decoder gave."""
        ...


def view_arrow_schema(options: ReadOptions) -> pa.Schema:
    """Return the columns of the view that a query asks for, as Arrow knows them."""
    return _SCHEMAS[options.view]


def view_schema(options: ReadOptions) -> StructType:
    """Return the columns of the view that a query asks for.

    ``batches`` has ``topic``, ``partition`` and those of ``BATCH_ROW_SCHEMA``, ``offsets`` those of
    ``OFFSETS_VIEW_SCHEMA``, and so do the other views of internal topics.
    """
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - rows do without

    return from_arrow_schema(_SCHEMAS[options.view])


def check_view_schema(options: ReadOptions, schema: StructType) -> None:
    """Refuse a schema of the user's.

    Raises:
        OptionError: it is not the view's own.
    """
    expected = view_schema(options)
    if schema != expected:
        raise OptionError(
            f"view={options.view} gives columns of its own and takes no schema; leave .schema(...) "
            f"out and select some of: {', '.join(expected.fieldNames())}"
        )


def view_rows(options: ReadOptions, split: LogSplit) -> RowMaker:
    """Make what makes the rows of a split of the view that a query asks for."""
    if options.shows_batches:
        return _BatchRows(options, split.topic_partition)
    return _DecodedRows(options, split)


def rows_of_snapshot(options: ReadOptions, split: LogSplit) -> Iterator[pa.RecordBatch]:
    """Give the rows of the snapshot that the log of a cluster's metadata goes on from.

    They belong to the split that begins where the log does; there are none without a snapshot.

    Raises:
        KafkaLogError: it cannot be read.
    """
    if options.view != "metadata" or not split.slices:
        return
    from kafkalog.streaming.coordinator.cluster_metadata import read_snapshot  # noqa: PLC0415
    from kafkalog.streaming.coordinator.views import decode_metadata_values  # noqa: PLC0415
    from kafkalog.streaming.log.partition_log import PartitionLog  # noqa: PLC0415

    folder, start = as_path(split.slices[0].path).parent, split.slices[0].start_offset
    with PartitionLog(folder, split.topic_partition) as log:
        if start > log.log_start_offset:
            return
    found = read_snapshot(folder, start)
    if found is not None:
        name, values = found
        for first in range(0, len(values), _SNAPSHOT_ROWS):
            rows = values[first : first + _SNAPSHOT_ROWS]
            yield decode_metadata_values(rows, name, _names_of_topics(split))


def _names_of_topics(split: LogSplit) -> dict[str, str]:
    """Return the names of topics by their ids, also of those that were removed."""
    from kafkalog.streaming.coordinator.cluster_metadata import TopicNames  # noqa: PLC0415

    return TopicNames.of(as_path(split.slices[0].path).parent.parent)


class _BatchRows:
    def __init__(self, options: ReadOptions, topic_partition: TopicPartition) -> None:
        self.decoder = BatchDescriber(max_decompressed_bytes=options.max_decompressed_bytes)
        self._topic_partition = topic_partition

    def rows_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        topic, partition = self._topic_partition
        shared = [
            pa.repeat(topic, batch.num_rows),
            pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows),
        ]
        return pa.RecordBatch.from_arrays([*shared, *batch.columns], schema=_BATCHES_SCHEMA)


class _DecodedRows:
    def __init__(self, options: ReadOptions, split: LogSplit) -> None:
        from kafkalog.streaming.coordinator import views as coordinator_views  # noqa: PLC0415
        from kafkalog.streaming.records.columns import Columns, RecordDecoder  # noqa: PLC0415

        self.decoder = RecordDecoder(
            Columns.KEY | Columns.VALUE | Columns.OFFSET | Columns.TIMESTAMP,
            max_decompressed_bytes=options.max_decompressed_bytes,
            null_bad_timestamps=options.on_timestamp_overflow == "null",
        )
        self._partition = pa.scalar(split.topic_partition.partition, pa.int32())
        names = _names_of_topics(split) if options.view == "metadata" and split.slices else {}
        self._decode = {
            "offsets": coordinator_views.decode_offsets_batch,
            "transactions": coordinator_views.decode_transactions_batch,
            "metadata": lambda batch: coordinator_views.decode_metadata_batch(batch, names),
            "remote": coordinator_views.decode_remote_batch,
        }[options.view]

    def rows_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        partitions = pa.repeat(self._partition, batch.num_rows)
        return self._decode(batch.append_column("partition", partitions))


# ----------------------------------------------------------------------------------------------
# What the rows of a reader outside Spark are: records, or those of a view, and which columns.


@dataclass(frozen=True, slots=True)
class ReadRows:
    """The schema of the rows; ``of_records`` is None where a view makes them."""

    schema: pa.Schema
    of_records: RowSchema | None

    @classmethod
    def of(
        cls,
        options: ReadOptions,
        columns: Sequence[str],
        strings: Sequence[str],
        decoded: tuple[DecodedSide, ...] = (),
    ) -> Self:
        """Choose columns; without names all of them, and those that are decoded.

        Raises:
            OptionError: a column that is not there, or a column of a view that is to be a string.
        """
        columns, strings = names("columns", columns), names("strings", strings)
        if not options.has_view:
            named = RowSchema.named(
                columns,
                strings=strings,
                include_headers=options.include_headers,
                decoded=decoded,
            )
            return cls(named.to_arrow(), named)
        schema = view_arrow_schema(options)
        if strings:
            raise OptionError(f"strings is for records: view={options.view} has columns of its own")
        for name in columns:
            if name not in schema.names:
                offered = ", ".join(schema.names)
                raise OptionError(f"view={options.view} has no column {name!r}, but {offered}")
        if columns:
            import pyarrow as pa  # noqa: PLC0415 - at import nothing needs it

            schema = pa.schema([schema.field(name) for name in columns])
        return cls(schema, None)

    def chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns that were asked for."""
        if batch.num_columns == len(self.schema):
            return batch
        return batch.select(self.schema.names)

    def with_offset(self) -> RowSchema | None:
        """Return how to read records so that their offsets are known; None where a view is read."""
        read = self.of_records
        if read is None or "offset" in read.columns:
            return read
        return RowSchema.named(
            (*read.columns, "offset"), strings=read.strings, decoded=read.decoded
        )
