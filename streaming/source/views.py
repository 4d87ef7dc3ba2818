"""What a row can be instead of a record: the option ``view``.

A view has columns of its own, always all of them: a schema given by the user selects from records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import pyarrow as pa

from kafkalog.errors import OptionError
from kafkalog.streaming.coordinator.view_schemas import (
    OFFSETS_VIEW_SCHEMA,
    TRANSACTIONS_VIEW_SCHEMA,
)
from kafkalog.streaming.records.batch_rows import BATCH_ROW_SCHEMA, BatchDescriber

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.read.slice_reader import Decoder
    from kafkalog.streaming.source.read_options import ReadOptions

__all__ = ["RowMaker", "check_view_schema", "view_arrow_schema", "view_rows", "view_schema"]

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
