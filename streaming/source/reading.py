"""Read the slices of one split into Arrow batches of the wanted columns."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.checkpoints.topic_ids import is_changed_id
from kafkalog.errors import (
    DataLossError,
    KafkaLogError,
    LogDirectoryError,
    OffsetOutOfRangeError,
    TimestampOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from kafkalog.streaming.log.read.slice_reader import read_slice
from kafkalog.streaming.records.columns import (
    DEFAULT_MAX_BATCH_BYTES,
    DEFAULT_MAX_ROWS,
    Columns,
    RecordDecoder,
)
from kafkalog.streaming.source.loss import LossPolicy, with_remedy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.history import LastBatch
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.log.read.salvage import Salvage
    from kafkalog.streaming.log.read.slice_reader import Decoder, SegmentSlice
    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.records.row_buffers import Assemble
    from kafkalog.streaming.source.planner import LogSplit
    from kafkalog.streaming.source.schema import RowMaker, RowSchema

__all__ = [
    "LARGE_BATCHES",
    "BatchSize",
    "RecordRows",
    "SplitReader",
    "columns_of",
    "join_batches",
    "naming_overflow",
    "read_split",
]


_LOGGER: Final = logging.getLogger("kafkalog.source")


class BatchSize(NamedTuple):
    """The most rows, and bytes of keys, values and headers, of an Arrow batch."""

    rows: int = DEFAULT_MAX_ROWS
    size: int = DEFAULT_MAX_BATCH_BYTES


LARGE_BATCHES: Final = BatchSize(32_768, 4 << 20)
"""For programs: what is done for each batch is done less often. Spark's pipe likes them smaller."""

_TASK_BATCHES: Final = BatchSize()

_DECODED = {
    "key": Columns.KEY,
    "value": Columns.VALUE,
    "offset": Columns.OFFSET,
    "timestamp": Columns.TIMESTAMP,
    "timestampType": Columns.TIMESTAMP_TYPE,
    "headers": Columns.HEADERS,
}


def read_split(
    split: LogSplit,
    options: ReadOptions,
    rows: RowSchema | None,
    narrowed: Callable[[Decoder], Decoder] | None = None,
    size: BatchSize = _TASK_BATCHES,
) -> Iterator[pa.RecordBatch]:
    """Read one split in offset order, as batches of the schema ``rows``.

    ``rows`` has no decoded columns: see :func:`~.decoded.read_task`. Without it there are those of
    the view that the options ask for. ``narrowed`` may make a decoder of the decoder that passes
    over record batches. ``size`` is that of batches of records.

    Raises:
        DataLossError: offsets of the split have gone since it was planned, and the query fails
            then.
        CorruptRecordError: bytes of the split that are no valid batch, and the query fails then.
        TimestampOutOfRangeError: a timestamp that Spark cannot hold, unless null is wanted for it.
    """
    maker = _row_maker(split, options, rows, size)
    salvage = _salvage(options, split.topic_partition)
    decoder = maker.decoder if narrowed is None else narrowed(maker.decoder)
    reader = SplitReader.of(split, options, decoder, salvage)
    if rows is None:
        from kafkalog.streaming.source.schema import rows_of_snapshot  # noqa: PLC0415

        yield from rows_of_snapshot(options, split)
    for planned in split.slices:
        with naming_overflow(), with_remedy(options):
            for batch in reader.read(planned):
                yield maker.rows_of(batch)
    if salvage is not None:
        salvage.report()


_SMALL_ROWS: Final = 1024
_SMALL_BYTES: Final = 64 << 10
_JOINED_BATCHES: Final = 256
_JOINED_BYTES: Final = 1 << 20


def join_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches of one schema that follow each other.

    A batch takes 12 KiB, whatever it holds: what is read of 10,000 partitions or segments of a few
    records would be little else. What came before an error comes before it.
    """
    small: list[pa.RecordBatch] = []
    size = 0
    try:
        for batch in batches:
            held = batch.nbytes if batch.num_rows < _SMALL_ROWS else _SMALL_BYTES
            is_small = held < _SMALL_BYTES
            if is_small:
                small.append(batch)
                size += held
            is_full = len(small) == _JOINED_BATCHES or size >= _JOINED_BYTES
            if small and (is_full or not is_small):
                yield pa.concat_batches(small)
                small, size = [], 0
            if not is_small:
                yield batch
    except KafkaLogError:
        if small:
            yield pa.concat_batches(small)
        raise
    if small:
        yield pa.concat_batches(small)


@contextmanager
def naming_overflow() -> Iterator[None]:
    """Let an error about a timestamp that Spark cannot hold say which option helps."""
    try:
        yield
    except TimestampOutOfRangeError as error:
        raise TimestampOutOfRangeError(
            f"[KAFKA_MALFORMED_RECORD_TIMESTAMP] {error}; to show null instead, set "
            "onTimestampOverflow to null"
        ) from error


def _row_maker(
    split: LogSplit,
    options: ReadOptions,
    rows: RowSchema | None,
    size: BatchSize,
) -> RowMaker:
    if rows is not None:
        finished = _FinishedRows(rows, split.topic_partition)
        return _DecodedRows(_decoder(options, rows, size, finished.assemble))
    # not at import, here and below: a worker's first rows need not wait for them
    from kafkalog.streaming.source.schema import view_rows  # noqa: PLC0415

    return view_rows(options, split)


def columns_of(rows: RowSchema) -> Columns:
    """Return what has to be decoded for some rows."""
    columns = Columns(0)
    for name in rows.columns:
        columns |= _DECODED.get(name, Columns(0))
    if rows.has_ms:
        columns = columns & ~Columns.TIMESTAMP | Columns.TIMESTAMP_MS
    return columns or Columns.OFFSET  # a batch without a column would have no length


def _decoder(
    options: ReadOptions,
    rows: RowSchema,
    size: BatchSize = _TASK_BATCHES,
    assemble: Assemble | None = None,
) -> RecordDecoder:
    return RecordDecoder(
        columns_of(rows),
        max_rows=size.rows,
        max_batch_bytes=size.size,
        max_decompressed_bytes=options.max_decompressed_bytes,
        null_bad_timestamps=options.on_timestamp_overflow == "null",
        assemble=assemble,
    )


def _salvage(options: ReadOptions, topic_partition: TopicPartition) -> Salvage | None:
    """Make what leaves out damage, if the query wants that; view=batches shows what it can."""
    if options.on_corrupt_record == "fail":
        return None
    from kafkalog.streaming.log.read.salvage import Salvage  # noqa: PLC0415

    return Salvage(
        topic_partition,
        check_records=not options.shows_batches,
        max_decompressed_bytes=options.max_decompressed_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitReader:
    """Reads slices; what has gone meanwhile goes to ``policy``, and the rest is read."""

    topic_partition: TopicPartition
    decoder: Decoder
    paths: tuple[str, ...]
    policy: LossPolicy
    committed_only: bool
    salvage: Salvage | None
    topic_id: str | None
    history: tuple[int, LastBatch] | None = None
    validated: set[Path] = field(default_factory=set)
    """Folders whose history was found to be the one that the reader continues."""
    failed: set[Path] = field(default_factory=set)
    """Log directories of replicas that could not be read."""

    @classmethod
    def of(
        cls, split: LogSplit, options: ReadOptions, decoder: Decoder, salvage: Salvage | None
    ) -> SplitReader:
        """Make what reads the slices of a split, as its query wants it."""
        return cls(
            topic_partition=split.topic_partition,
            decoder=decoder,
            paths=options.paths,
            policy=LossPolicy(fail=options.fail_on_data_loss),
            committed_only=options.committed_only,
            salvage=salvage,
            topic_id=split.topic_id,
            history=split.history,
        )

    def read(self, planned: SegmentSlice) -> Iterator[pa.RecordBatch]:
        """Read a slice; what has to be said of the rest is raised where it lies."""
        try:
            yield from self._read_planned(planned)
        except OffsetOutOfRangeError as error:
            end = planned.end_offset
            log_start = end if error.log_start_offset < 0 else min(error.log_start_offset, end)
            self._lost(error.offset, log_start, error)
            if log_start < end:
                yield from self.read(planned._replace(start_offset=log_start))
        except UnknownTopicOrPartitionError as error:
            rest = planned._replace(start_offset=max(error.offset, planned.start_offset))
            yield from self._read_elsewhere(rest, error)
        except DataLossError as error:
            self._lost(planned.start_offset, planned.end_offset, error)

    def _read_planned(self, planned: SegmentSlice) -> Iterator[pa.RecordBatch]:
        def elsewhere(offset: int, error: Exception) -> Iterator[pa.RecordBatch] | None:
            return self._of_another_replica(planned, offset, error)

        folder = planned.folder
        try:
            self._check_topic(folder)
            self._check_history(folder)
        except (KafkaLogError, OSError) as error:
            rest = elsewhere(planned.start_offset, error)
            if rest is None:
                raise
        else:
            rest = read_slice(
                self.topic_partition,
                planned,
                self.decoder,
                committed_only=self.committed_only,
                salvage=self.salvage,
                elsewhere=elsewhere,
                folder=folder,
            )
        yield from rest

    def _of_another_replica(
        self, planned: SegmentSlice, offset: int, error: Exception
    ) -> Iterator[pa.RecordBatch] | None:
        """Read the rest of a slice from another replica in sync; None if there is none.

        What was merged in an object store since it was planned is planned again.
        """
        from kafkalog.streaming.objects.bucket_store import ObjectReplacedError  # noqa: PLC0415
        from kafkalog.streaming.store.log_dirs import LogDirs  # noqa: PLC0415

        log_dirs = LogDirs(self.paths)
        if isinstance(error, ObjectReplacedError):
            again = log_dirs.partitions().get(self.topic_partition)
            if again is None:
                return None
            start = max(offset, planned.start_offset)
            pieces = _pieces_of(again, start, planned.end_offset)
            return (batch for piece in pieces for batch in self._read_planned(piece))
        folder = planned.folder
        self.failed.add(folder.parent)
        if not all(log_dirs.avoid(each) for each in self.failed):
            return None
        start = max(offset, planned.start_offset)
        try:
            found = log_dirs.partitions().get(self.topic_partition)
            if found is None or found.log_dir in self.failed:
                return None
            pieces = _pieces_of(found, start, planned.end_offset)
        except (KafkaLogError, OSError):
            return None
        _LOGGER.warning(
            "%s is read from %s: %s cannot be read: %s",
            self.topic_partition,
            found.log_dir,
            folder.parent,
            error,
        )
        return (batch for piece in pieces for batch in self._read_planned(piece))

    def _read_elsewhere(
        self, rest: SegmentSlice, error: UnknownTopicOrPartitionError
    ) -> Iterator[pa.RecordBatch]:
        """Read on where a broker has moved the log to, if it lives in another directory now."""
        try:
            pieces = self._find_elsewhere(rest)
        except OffsetOutOfRangeError as out_of_range:
            end = min(out_of_range.log_start_offset, rest.end_offset)
            self._lost(rest.start_offset, end, out_of_range)
            if end < rest.end_offset:
                yield from self._read_elsewhere(rest._replace(start_offset=end), error)
            return
        if pieces is None:
            self._lost(rest.start_offset, rest.end_offset, error)
        for piece in pieces or []:
            yield from self.read(piece)

    def _find_elsewhere(self, rest: SegmentSlice) -> list[SegmentSlice] | None:
        from kafkalog.streaming.store.log_dirs import LogDirs  # noqa: PLC0415

        try:
            found = LogDirs(self.paths).partitions().get(self.topic_partition)
        except LogDirectoryError:  # gone with all that is around it
            return None
        if found is None or found.path == rest.folder:
            return None
        try:
            return _pieces_of(found, rest.start_offset, rest.end_offset)
        except UnknownTopicOrPartitionError:
            return None

    def _check_topic(self, folder: Path) -> None:
        """Refuse to read the offsets of another topic of the same name."""
        if self.topic_id is None:
            return
        found = read_topic_id(folder)
        topic = self.topic_partition.topic
        if (
            found is not None
            and found != self.topic_id
            and not is_changed_id(folder.parent, topic, self.topic_id, found)
        ):
            raise UnknownTopicOrPartitionError(
                f"{folder} belongs to another topic of that name now (topic id {found}, planned "
                f"was {self.topic_id})"
            )

    def _check_history(self, folder: Path) -> None:
        """Refuse a log that was cut, and written again, since the batch was planned."""
        if self.history is None or not isinstance(folder, Path) or folder in self.validated:
            return
        from kafkalog.streaming.log.history import find_divergence  # noqa: PLC0415
        from kafkalog.streaming.log.partition_log import PartitionLog  # noqa: PLC0415

        with PartitionLog(folder, self.topic_partition) as log:
            found = find_divergence(log, *self.history)
        if found is not None:
            raise DataLossError(
                f"{folder} has another history than the one that was read, since this batch was "
                f"planned: {self.topic_partition} at {found}"
            )
        self.validated.add(folder)

    def _lost(self, start: int, end: int, error: KafkaLogError) -> None:
        self.policy.range_not_readable(self.topic_partition, start, end, str(error))


def _pieces_of(found: PartitionDirectory, start: int, end: int) -> list[SegmentSlice]:
    from kafkalog.streaming.log.partition_log import PartitionLog  # noqa: PLC0415

    with PartitionLog(found.path, found.topic_partition, replica=found.stamp) as log:
        return log.slices(start, end)


class _FinishedRows:
    """Puts decoded columns into the order and types of the rows, and adds what a split shares.

    Topic and partition are the same in every row: their arrays are made once, for the longest batch
    so far, and sliced.
    """

    def __init__(self, rows: RowSchema, topic_partition: TopicPartition) -> None:
        self.schema = rows.to_arrow()
        self._rows = rows
        self._topic_partition = topic_partition
        self._shares = not {"topic", "partition"}.isdisjoint(rows.columns)
        self._shared: dict[str, pa.Array] = {}
        self._shared_length = -1

    def assemble(self, length: int, decoded: Mapping[str, pa.Array]) -> pa.RecordBatch:
        """Return the rows of decoded columns; nothing that was decoded is copied."""
        if length > self._shared_length and self._shares:
            self._share(length)
        columns = [self._column(name, length, decoded) for name in self._rows.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _column(self, name: str, length: int, decoded: Mapping[str, pa.Array]) -> pa.Array:
        shared = self._shared.get(name)
        if shared is not None:
            return shared if length == self._shared_length else shared.slice(0, length)
        column = decoded["timestampMs" if name == "timestamp" and self._rows.has_ms else name]
        # the same bytes under another type: no validation, as in Spark's own cast
        return column.view(pa.string()) if name in self._rows.strings else column

    def _share(self, length: int) -> None:
        topic, partition = self._topic_partition
        name = topic.encode()
        ends = np.arange(length + 1, dtype=np.int32) * np.int32(len(name))
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(name * length)]
        # pa.array would import pandas, for a quarter of a second, to look at what it was given
        numbers = pa.py_buffer(np.full(length, partition, dtype=np.int32))
        self._shared = {
            "topic": pa.Array.from_buffers(pa.string(), length, buffers),
            "partition": pa.Array.from_buffers(pa.int32(), length, [None, numbers]),
        }
        self._shared_length = length


class _DecodedRows(NamedTuple):
    """What a decoder gives that assembles the rows itself."""

    decoder: Decoder

    def rows_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch as it is."""
        return batch


class RecordRows:
    """Makes rows of what a decoder gives that knows nothing of their form."""

    def __init__(self, rows: RowSchema, topic_partition: TopicPartition, decoder: Decoder) -> None:
        self.decoder = decoder
        self._finished = _FinishedRows(rows, topic_partition)

    def rows_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a decoded batch; nothing that was decoded is copied."""
        if batch.schema == self._finished.schema:
            return batch
        decoded = dict(zip(batch.schema.names, batch.columns, strict=True))
        return self._finished.assemble(batch.num_rows, decoded)
