"""The data source ``kafkalog``: it hands out readers and writers.

Six kinds of process import this module, most of them only to pickle it: what does the work is
imported where it is needed.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pyspark.sql.datasource import CaseInsensitiveDict, DataSource

from kafkalog.errors import KafkaLogError
from kafkalog.files.storage import with_secrets
from kafkalog.streaming.options.bridge import crosses_border, without_history
from kafkalog.streaming.spark.versions import HAS_FILTER_PUSHDOWN, arrow_type, warn_of_no_pushdown
from kafkalog.streaming.spark.worker import freeze_planner, show_warnings, uncollected

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from kafkalog.streaming.consumer.query_member import JoinedControl
    from kafkalog.streaming.groups.administration import GroupWriter
    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.source.schema import RowSchema

__all__ = ["KafkaLogDataSource"]


class KafkaLogDataSource(DataSource):
    """Reads and writes Kafka log directories.

    Name: ``kafkalog``

    A schema given with ``.schema(...)`` selects columns:
    :mod:`kafkalog.streaming.source.schema`.
    """

    def __getstate__(self) -> dict[str, object]:
        """Let Spark pickle options without the secrets in them."""
        return {"options": CaseInsensitiveDict(with_secrets(self.options))}

    @classmethod
    def name(cls) -> str:
        """Return the short name of the format."""
        return "kafkalog"

    @crosses_border
    def schema(self) -> StructType:
        """Return the columns of Spark's Kafka source, or of a view, after checking the options.

        Raises:
            OptionError: an option that no query over the source can use as given.
        """
        from kafkalog.streaming.options.read_options import ReadOptions  # noqa: PLC0415
        from kafkalog.streaming.source.schema import source_schema  # noqa: PLC0415
        from kafkalog.streaming.source.subscription import Subscription  # noqa: PLC0415

        show_warnings()
        options = ReadOptions.parse(self.options)
        Subscription.of(options)
        freeze_planner()
        if options.has_view:
            from kafkalog.streaming.source.schema import view_schema  # noqa: PLC0415

            return view_schema(options)
        schema = source_schema(include_headers=options.include_headers)
        if options.decodes:
            from kafkalog.streaming.source.decoded import choose_sides  # noqa: PLC0415
            from kafkalog.streaming.source.schema import decoded_schema  # noqa: PLC0415

            for field in decoded_schema(choose_sides(options)):
                schema = schema.add(field)
        return schema

    @crosses_border
    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader of a batch query."""
        from kafkalog.streaming.options.read_options import ReadOptions  # noqa: PLC0415
        from kafkalog.streaming.spark.readers import LogBatchReader  # noqa: PLC0415

        show_warnings()
        options = ReadOptions.parse(self.options)
        rows = _wanted_rows(options, schema)
        if options.shows_latest:
            options.refuse_for_latest()
        if rows is None:
            return LogBatchReader(options, rows)
        if options.filter_pushdown:
            if HAS_FILTER_PUSHDOWN:
                return _pushdown_reader(options, rows)
            warn_of_no_pushdown()
        if options.shows_latest:
            from kafkalog.streaming.spark.readers import LatestReader  # noqa: PLC0415

            return LatestReader(options, rows)
        return LogBatchReader(options, rows)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Make the reader of a streaming query, or one that says why there is none."""
        with uncollected():
            from kafkalog.streaming.options.read_options import ReadOptions  # noqa: PLC0415
            from kafkalog.streaming.spark.readers import LogStreamReader  # noqa: PLC0415

        try:
            options = ReadOptions.parse(self.options)
            rows = _wanted_rows(options, schema)
            if options.join_group:
                return _joining_reader(options, rows, with_secrets(self.options))
            writes_positions = _group_writer if options.commit_group_offsets else None
            return LogStreamReader(options, rows, writes_positions)
        except KafkaLogError as error:
            from kafkalog.streaming.spark.readers import (  # noqa: PLC0415
                RefusedStreamReader,
            )

            return RefusedStreamReader(without_history(error))

    @crosses_border
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Make the writer of a batch query."""
        from kafkalog.streaming.spark.writers import make_batch_writer  # noqa: PLC0415

        show_warnings()
        return make_batch_writer(self.options, schema, overwrite)

    @crosses_border
    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Make the writer of one micro-batch of a streaming query."""
        from kafkalog.streaming.spark.writers import make_stream_writer  # noqa: PLC0415

        show_warnings()
        return make_stream_writer(self.options, schema, overwrite)


def _pushdown_reader(options: ReadOptions, rows: RowSchema) -> DataSourceReader:
    """Make the reader that lets filters decide what is read."""
    from kafkalog.streaming.spark import readers as pushdown_reader  # noqa: PLC0415

    if options.shows_latest:
        return pushdown_reader.LatestPushdownReader(options, rows)
    return pushdown_reader.PushdownReader(options, rows)


def _joining_reader(
    options: ReadOptions, rows: RowSchema | None, given: dict[str, str]
) -> DataSourceStreamReader:
    """Make the reader of a query that is to join a group; it joins at Spark's first question."""
    from kafkalog.streaming.consumer.query_member import (  # noqa: PLC0415
        member_options,
        without_member_options,
    )
    from kafkalog.streaming.spark.readers import LogStreamReader  # noqa: PLC0415

    member_options(given)
    options = without_member_options(options)
    return LogStreamReader(options, rows, make_control=functools.partial(_join, given))


def _join(given: dict[str, str], options: ReadOptions) -> JoinedControl:
    """Make what knows the offsets of a query that is a member of a group."""
    with uncollected():
        from kafkalog.streaming.consumer.query_member import JoinedControl  # noqa: PLC0415

    return JoinedControl(options, given)


def _group_writer(options: ReadOptions) -> GroupWriter:
    """Make what writes a streaming query's positions; checks that it may."""
    from kafkalog.streaming.groups.administration import GroupWriter  # noqa: PLC0415

    return GroupWriter(options.paths, options.group_id or "")


def _wanted_rows(options: ReadOptions, schema: StructType) -> RowSchema | None:
    """Check the schema that Spark asks for; a view has one of its own, and None stands for it."""
    if options.has_view:
        from kafkalog.streaming.source.schema import check_view_schema  # noqa: PLC0415

        check_view_schema(options, schema)
        return None
    from kafkalog.streaming.source.schema import RowSchema  # noqa: PLC0415

    if options.decodes:
        from kafkalog.streaming.source.decoded import choose_sides  # noqa: PLC0415
        from kafkalog.streaming.source.schema import wanted_types  # noqa: PLC0415

        wanted = {name: arrow_type(kind) for name, kind in wanted_types(schema).items()}
        return RowSchema.of(schema, choose_sides(options, wanted))
    return RowSchema.of(schema)
