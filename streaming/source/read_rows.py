"""What the rows of a reader outside Spark are: records, or those of a view, and which columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from kafkalog.errors import OptionError
from kafkalog.streaming.arguments import names
from kafkalog.streaming.schema import RowSchema
from kafkalog.streaming.source.views import view_arrow_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from kafkalog.streaming.source.read_options import ReadOptions

__all__ = ["ReadRows"]


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
