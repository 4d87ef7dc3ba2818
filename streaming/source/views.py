"""What a row can be instead of a record: the option ``view``.

A view has columns of its own, always all of them: a schema given by the user selects from records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, Self

import pyarrow as pa

from kafkalog.errors import OptionError
from kafkalog.streaming.coordinator.view_schemas import (
    OFFSETS_VIEW_SCHEMA,
    TRANSACTIONS_VIEW_SCHEMA,
)
from kafkalog.streaming.records.batch_rows import BATCH_ROW_SCHEMA, BatchDescriber
from kafkalog.streaming.source.arguments import names
from kafkalog.streaming.source.schema import RowSchema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import StructType

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.read.slice_reader import Decoder
    from kafkalog.streaming.source.read_options import ReadOptions


__all__ = [
    "ReadRows",
    "RowMaker",
    "check_view_schema",
    "view_arrow_schema",
    "view_rows",
    "view_schema",
]

_BATCHES_SCHEMA: Final = pa.schema(
    [pa.field("topic", pa.string()), pa.field("partition", pa.int32()), *BATCH_ROW_SCHEMA]
)

_SCHEMAS: Final = {
    "batches": _BATCHES_SCHEMA,
    "offsets": OFFSETS_VIEW_SCHEMA,
    "transactions": TRANSACTIONS_VIEW_SCHEMA,
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
    ``OFFSETS_VIEW_SCHEMA``, ``transactions`` those of ``TRANSACTIONS_VIEW_SCHEMA``.
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


def view_rows(options: ReadOptions, topic_partition: TopicPartition) -> RowMaker:
    """Make what makes the rows of the view that a query asks for."""
    if options.shows_batches:
        return _BatchRows(options, topic_partition)
    return _DecodedRows(options, topic_partition)


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
    def __init__(self, options: ReadOptions, topic_partition: TopicPartition) -> None:
        from kafkalog.streaming.coordinator import views as coordinator_views  # noqa: PLC0415
        from kafkalog.streaming.records.columns import Columns, RecordDecoder  # noqa: PLC0415

        self.decoder = RecordDecoder(
            Columns.KEY | Columns.VALUE | Columns.OFFSET | Columns.TIMESTAMP,
            max_decompressed_bytes=options.max_decompressed_bytes,
            null_bad_timestamps=options.on_timestamp_overflow == "null",
        )
        self._partition = pa.scalar(topic_partition.partition, pa.int32())
        self._decode = {
            "offsets": coordinator_views.decode_offsets_batch,
            "transactions": coordinator_views.decode_transactions_batch,
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
    def of(cls, options: ReadOptions, columns: Sequence[str], strings: Sequence[str]) -> Self:
        """Choose columns; without names all of them.

        Raises:
            OptionError: a column that is not there, or a column of a view that is to be a string.
        """
        columns, strings = names("columns", columns), names("strings", strings)
        if not options.has_view:
            named = RowSchema.named(
                columns, strings=strings, include_headers=options.include_headers
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
        return RowSchema.named((*read.columns, "offset"), strings=read.strings)
