"""The source as Spark sees it: readers of batch and streaming queries."""

from __future__ import annotations

import kafkalog.streaming.records  # noqa: F401 - first: it says which package is missing

# isort: split
import logging
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from kafkalog.files.deferred_signals import shielded_step
from kafkalog.files.system import once_per_process
from kafkalog.model import EVERYTHING, MAX_OFFSET
from kafkalog.streaming.options.bridge import crosses_border
from kafkalog.streaming.options.declaring import warn_ignored
from kafkalog.streaming.source.loss import with_remedy
from kafkalog.streaming.source.offsets import from_json, to_json
from kafkalog.streaming.source.planner import thin_split
from kafkalog.streaming.spark.versions import (
    HAS_ADMISSION_CONTROL,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
    warn_of_single_batch,
)
from kafkalog.streaming.spark.worker import (
    end_if_spark_has_gone,
    freeze_planner,
    show_log_lines,
    task_of_spark,
    uncollected,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.source.offsets import OffsetJson, PartitionOffsets
    from kafkalog.streaming.source.planner import LogSplit, Selection
    from kafkalog.streaming.source.schema import RowSchema


__all__ = [
    "Control",
    "LatestPushdownReader",
    "LatestReader",
    "LogBatchReader",
    "LogStreamReader",
    "PositionWriter",
    "PushdownReader",
    "RefusedStreamReader",
    "splits_of",
]


# ----------------------------------------------------------------------------------------------
# Readers of batch queries as Spark sees them: plain, with filters, ``view=latest``.


# ----------------------------------------------------------------------------------------------
# The batch source as Spark sees it. Bounds are resolved when a query is planned.


def splits_of(partition: InputPartition | None) -> Iterable[Any]:
    """Return what one task is to read.

    Spark has a stand-in for an empty list of partitions: None (4.0), or one that holds None.
    """
    return (partition and partition.value) or ()


class LogBatchReader(DataSourceReader):
    """Plans in the driver, reads splits in tasks; holds only what both need."""

    def __init__(self, options: ReadOptions, rows: RowSchema | None) -> None:
        self._options = options
        self._rows = rows

    @crosses_border
    def partitions(self) -> list[InputPartition]:
        """Resolve the bounds as of now, cut what lies between, and give each task its splits."""
        return self._plan()

    def _plan(self, selection: Selection | None = None) -> list[InputPartition]:
        from kafkalog.streaming.source.batch_plan import pack_batch, plan_batch  # noqa: PLC0415
        from kafkalog.streaming.source.loss import with_remedy  # noqa: PLC0415

        warn_ignored(self._options.ignored)
        with with_remedy(self._options):
            splits = plan_batch(self._options, selection)
        freeze_planner()
        if self._options.cuts_by_offsets:
            return [InputPartition((split,)) for split in splits]
        return [InputPartition(pack) for pack in pack_batch(splits, self._options.split_bytes)]

    @crosses_border
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the splits of one task."""
        from kafkalog.streaming.source.decoded import read_task  # noqa: PLC0415

        with task_of_spark():
            yield from read_task(splits_of(partition), self._options, self._rows)


# ----------------------------------------------------------------------------------------------
# ``view=latest`` as Spark sees it.


_LOGGER: Final = logging.getLogger("kafkalog.source")


class LatestReader(LogBatchReader):
    """Gives each task whole partitions, or a share of the keys of one."""

    def __init__(self, options: ReadOptions, rows: RowSchema) -> None:
        super().__init__(options, rows)
        self._latest_rows = rows
        self._keys: frozenset[bytes] | None = None

    def _plan(self, selection: Selection | None = None) -> list[InputPartition]:
        from kafkalog.streaming.lookup.latest import plan_latest  # noqa: PLC0415
        from kafkalog.streaming.source.batch_plan import pack_batch  # noqa: PLC0415
        from kafkalog.streaming.source.loss import with_remedy  # noqa: PLC0415

        warn_ignored(self._options.ignored)
        with with_remedy(self._options):
            splits = plan_latest(self._options, selection)
        freeze_planner()
        if self._options.min_partitions is not None:
            return [InputPartition((split,)) for split in splits]
        return [InputPartition(pack) for pack in pack_batch(splits)]

    @crosses_border
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the newest rows of the partitions of one task."""
        from kafkalog.streaming.lookup.block_cache import block_cache  # noqa: PLC0415
        from kafkalog.streaming.lookup.lookup import read_keys  # noqa: PLC0415

        with task_of_spark():
            for split in splits_of(partition):
                yield from read_keys(split, self._options, self._latest_rows, self._keys)
            if self._keys is not None:
                _LOGGER.info("the cache of this process: %s", block_cache().stats())


# ----------------------------------------------------------------------------------------------
# The batch source for ``filterPushdown``: filters of the query decide what is read.
#
# Spark refuses a reader with a method ``pushFilters`` while its setting
# ``spark.sql.python.filterPushdown.enabled`` is off, as it is by default. So this is a class of
# its own. Spark 4.0 has no filters at all: what knows their classes is imported by who gets some.
#
# Spark keeps the plan of the last filters with the loaded table, for all of its uses
# (``PythonDataSourceV2.setReadInfo``), and asks nothing for a scan without filters. So the plan
# of one query is taken for another's. Nothing here shows it: all that can be done is to warn
# beforehand.


class PushdownReader(LogBatchReader):
    """Plans what the filters leave; tasks leave out batches that cannot hold a wanted timestamp."""

    def __init__(self, options: ReadOptions, rows: RowSchema) -> None:
        super().__init__(options, rows)
        from kafkalog.streaming.source.filters import FilteredSelection  # noqa: PLC0415

        self._names = dict(zip(rows.names, rows.columns, strict=True))
        self._selection = FilteredSelection()

    @crosses_border
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take filters into account, and return those that Spark has to apply."""
        return [entry for entry in filters if not self._selection.add(entry, self._names)]

    @crosses_border
    def partitions(self) -> list[InputPartition]:
        """Cut what may hold rows of the selection into splits."""
        _warn_of_other_uses()
        return self._plan(self._selection)

    @crosses_border
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the splits of one task."""
        times = self._selection.timestamps
        if times != EVERYTHING:
            splits = (thin_split(split, times) for split in splits_of(partition))
            partition = InputPartition(splits)
        yield from super().read(partition)


class LatestPushdownReader(LatestReader):
    """Reads only partitions that filters leave, and looks only for the keys that they name.

    Only filters that hold for all rows of a key, or for none, may be applied before its newest row
    is chosen: those on ``key``, ``topic`` and ``partition``. Spark applies all others.
    """

    def __init__(self, options: ReadOptions, rows: RowSchema) -> None:
        super().__init__(options, rows)
        from kafkalog.streaming.source.filters import FilteredSelection  # noqa: PLC0415

        names = zip(rows.names, rows.columns, strict=True)
        self._names = {
            name: column for name, column in names if column in {"key", "topic", "partition"}
        }
        self._selection = FilteredSelection()

    @crosses_border
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        """Take filters into account, and return those that Spark has to apply."""
        return [entry for entry in filters if not self._add(entry)]

    def _add(self, entry: Filter) -> bool:
        from kafkalog.streaming.source.filters import wanted_keys  # noqa: PLC0415

        attribute: tuple[str, ...] = getattr(entry, "attribute", ())
        if len(attribute) == 1 and self._names.get(attribute[0]) == "key":
            keys = wanted_keys(entry)
            if keys is not None:
                self._keys = keys if self._keys is None else self._keys & keys
            return False
        return self._selection.add(entry, self._names)

    @crosses_border
    def partitions(self) -> list[InputPartition]:
        """Plan the partitions that the filters leave."""
        _warn_of_other_uses()
        return self._plan(self._selection)


@once_per_process
def _warn_of_other_uses() -> None:
    """Say once per process what Spark makes of filters."""
    _LOGGER.warning(
        "filterPushdown: Spark keeps what the filters of this query leave with the loaded "
        "DataFrame or view; another use of it, or a second one in the same query, may get that "
        "instead of its own rows. Load again for each query, and name the load once in it."
    )


# ----------------------------------------------------------------------------------------------
# The streaming source as Spark sees it: a thin layer over ``source/stream_control``.
#
# What it knows of the logs it keeps from call to call. So calls that change that do their work in
# shielded threads, and an interrupt leaves nothing half changed.


# ----------------------------------------------------------------------------------------------
# What stands for a streaming reader that cannot be made, and says why when it is asked.


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises the reason at the first call, which comes at once.

    If ``streamReader`` itself raised, Spark's ``python_streaming_source_runner`` would stop a
    reader that it has not got. The last line that the user sees would be an error about a variable.
    """

    def __init__(self, reason: Exception) -> None:
        self._reason = reason

    def prepareForTriggerAvailableNow(self) -> NoReturn:  # noqa: N802
        """Raise the reason."""
        raise self._reason

    def getDefaultReadLimit(self) -> NoReturn:  # noqa: N802
        """Raise the reason."""
        raise self._reason

    def initialOffset(self) -> NoReturn:  # noqa: N802
        """Raise the reason."""
        raise self._reason

    def latestOffset(self, *asked: object) -> NoReturn:  # noqa: ARG002, N802
        """Raise the reason."""
        raise self._reason

    def partitions(self, start: OffsetJson, end: OffsetJson) -> NoReturn:  # noqa: ARG002
        """Raise the reason."""
        raise self._reason

    def read(self, partition: InputPartition) -> NoReturn:  # noqa: ARG002
        """Raise the reason."""
        raise self._reason


# ----------------------------------------------------------------------------------------------


class Control(Protocol):
    """Knows the offsets of a query: :class:`~.stream_control.StreamControl`, or a group's member.

    What its methods are for is said there.
    """

    latest: PartitionOffsets

    def initial(self) -> PartitionOffsets:
        """Return where a query without a checkpoint starts."""

    def freeze_targets(self) -> None:
        """Read only what is there at the first look."""

    def next_end(self, start: PartitionOffsets, *, take_all: bool) -> PartitionOffsets:
        """Return the end of the next batch."""

    def plan(self, start: PartitionOffsets, end: PartitionOffsets) -> list[LogSplit]:
        """Cut a batch into splits."""

    def batch_ran(self) -> None:
        """Take note that the query has run a batch."""

    def stop(self) -> None:
        """End what runs beside the calls."""


class PositionWriter(Protocol):
    """Keeps, elsewhere than in the checkpoint, how far a query has come."""

    def try_to_commit(self, positions: Mapping[TopicPartition, int]) -> None:
        """Write the next offsets to read; a failure is a warning, and does not fail the query."""

    def try_to_keep(self, positions: Mapping[TopicPartition, int]) -> None:
        """Write them now and then, as long as they stay as they are."""


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One instance answers for the offsets of a query, unpickled copies of another read splits."""

    def __init__(
        self,
        options: ReadOptions,
        rows: RowSchema | None,
        make_position_writer: Callable[[ReadOptions], PositionWriter] | None = None,
        make_control: Callable[[ReadOptions], Control] | None = None,
    ) -> None:
        options.refuse_for_streaming()
        self._options = options
        self._rows = rows
        self._control: Control | None = None
        self._make_control = make_control
        self._make_position_writer = make_position_writer
        self._positions: PositionWriter | None = None
        self._last: tuple[OffsetJson, PartitionOffsets] = ({}, {})
        self._position: OffsetJson | None = None
        """Where the next micro-batch starts, for a Spark that does not say it."""

    @property
    def control(self) -> Control:
        """What knows the offsets; made when first asked for, so that it never goes to a task."""
        if self._control is None:
            show_log_lines()
            warn_ignored(self._options.ignored)
            if not HAS_ADMISSION_CONTROL:
                warn_of_single_batch(self._options.names_held_back())
            self._control = (self._make_control or _alone)(self._options)
            if self._make_position_writer is not None:
                self._positions = self._make_position_writer(self._options)
        return self._control

    @crosses_border
    @shielded_step
    def initialOffset(self) -> OffsetJson:  # noqa: N802
        """Return where a query without a checkpoint starts."""
        with with_remedy(self._options):
            return self._to_json(self.control.initial())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return a limit that tells the triggers apart: only ``Once`` asks for all available.

        The options limit a batch. The value that is returned here is not looked at.
        """
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadMaxRows(MAX_OFFSET)

    @crosses_border
    @shielded_step
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to the ends that the first look finds, and then end."""
        self.control.freeze_targets()

    @crosses_border
    @shielded_step
    def latestOffset(  # noqa: N802
        self, start: OffsetJson | None = None, limit: ReadLimit | None = None
    ) -> OffsetJson:
        """Return the end of the next batch.

        A Spark without admission control says neither where it starts nor how much it may take: it
        starts where the last one ended, or where a query without a checkpoint does.
        """
        take_all = isinstance(limit, ReadAllAvailable)
        with with_remedy(self._options):
            start = self._position if start is None else start
            begin = self.control.initial() if start is None else self._from_json(start)
            end = self.control.next_end(begin, take_all=take_all)
        if self._positions is not None and end == begin:  # no batch follows, which would write them
            self._positions.try_to_keep(begin)
        return self._to_json(end)

    @crosses_border
    def reportLatestOffset(self) -> OffsetJson | None:  # noqa: N802
        """Return the ends as of the last look, for the query's progress."""
        return self._to_json(self.control.latest) or None

    @crosses_border
    @shielded_step
    def partitions(self, start: OffsetJson, end: OffsetJson) -> Sequence[InputPartition]:
        """Cut a batch into splits; a task gets one, or several of few bytes.

        A Spark without admission control begins a restart by asking for an empty range, which lies
        where the last batch that it planned ends.
        """
        is_restart, self._position = self._position is None and start == end, end
        if is_restart and not HAS_ADMISSION_CONTROL:
            return []
        with with_remedy(self._options):
            splits = self.control.plan(self._from_json(start), self._from_json(end))
        from kafkalog.streaming.source.batch_plan import pack_micro_batch  # noqa: PLC0415

        if self._options.cuts_by_offsets:
            return [InputPartition((split,)) for split in splits]
        return [InputPartition(p) for p in pack_micro_batch(splits, self._options.split_bytes)]

    @crosses_border
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the splits of one task."""
        from kafkalog.streaming.source.decoded import read_task  # noqa: PLC0415

        with task_of_spark():
            yield from read_task(partition.value, self._options, self._rows)

    @crosses_border
    @shielded_step
    def commit(self, end: OffsetJson) -> None:
        """Write the positions of the query's group, if asked to; Spark keeps the offsets."""
        self.control.batch_ran()
        if self._positions is not None:
            self._positions.try_to_commit(self._from_json(end))

    def stop(self) -> None:
        """Stop the group member's heartbeats; if Spark has closed its pipe, end the process."""
        if self._control is not None:
            self._control.stop()
        end_if_spark_has_gone()

    def _from_json(self, found: OffsetJson) -> PartitionOffsets:
        """Parse offsets; an idle query comes with the same ones again and again."""
        if found != self._last[0]:
            offsets = from_json(found)
            self._last = (to_json(offsets), offsets)  # in our order, whoever wrote the text
        return self._last[1]

    def _to_json(self, offsets: PartitionOffsets) -> OffsetJson:
        if offsets != self._last[1]:
            self._last = (to_json(offsets), offsets)
        return self._last[0]


def _alone(options: ReadOptions) -> Control:
    """Make what knows the offsets of a query that is in no group."""
    with uncollected():
        from kafkalog.streaming.source.stream_control import StreamControl  # noqa: PLC0415

    return StreamControl(options, reads_at_once=not HAS_ADMISSION_CONTROL)
