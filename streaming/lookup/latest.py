"""``view=latest``: the newest row of each key and partition.

A partition is read from its end to its start, a piece at a time. The first row of a key is its
newest, and only keys are remembered. So rows come newest first, and nothing waits for the end.
"""

from __future__ import annotations

import itertools
import logging
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kafkalog.errors import UnknownTopicOrPartitionError
from kafkalog.files.paths import as_path
from kafkalog.files.system import once_per_process, system
from kafkalog.streaming.log.read.salvage import Salvage
from kafkalog.streaming.log.read.slice_reader import (
    FIRST_PIECE,
    PIECE,
    NarrowedDecoder,
    open_planned,
    pieces_backwards,
)
from kafkalog.streaming.log.segments import LogSegments
from kafkalog.streaming.lookup.seen_keys import SeenKeys, SpilledKeys, share_of, wanted_keys
from kafkalog.streaming.records.columns import RecordDecoder
from kafkalog.streaming.records.row_buffers import FoundRecords, RowBuffers
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.loss import LossPolicy, with_remedy
from kafkalog.streaming.source.planner import LogSplit
from kafkalog.streaming.source.reading import RecordRows, SplitReader, columns_of, naming_overflow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from kafkalog.streaming.log.read.salvage import Place
    from kafkalog.streaming.log.read.slice_reader import Decoder, SegmentSlice
    from kafkalog.streaming.lookup.seen_keys import KeyRange, Keys, WantedKeys
    from kafkalog.streaming.options.read_options import ReadOptions
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers
    from kafkalog.streaming.records.batch import BatchTable
    from kafkalog.streaming.source.planner import Selection
    from kafkalog.streaming.source.schema import RowSchema


__all__ = [
    "KEPT_BYTES",
    "ChosenRows",
    "LatestSplit",
    "NewestRows",
    "plan_latest",
    "read_latest",
    "refuse_if_compacted",
]


# ----------------------------------------------------------------------------------------------
# The newest rows of keys, from pieces of a log that are read from the end of the log on.
#
# A piece is read forward as any other, and its records are kept where they lie, decompressed.
# Then they are looked at from the last one on. What is the first of its key is copied to Arrow
# columns. So a log is decompressed once, and rows that are not the newest are never copied.
#
# A piece that decompresses to more than :data:`KEPT_BYTES` is not kept. The rest of it is only
# looked through, and it is read again in smaller pieces, down to one batch.


KEPT_BYTES: Final = 32 << 20
"""Decompressed bytes of a piece, unless it is a single batch."""

_BYTES_PER_ROW: Final = 72


class NewestRows:
    """Takes batches as a decoder of slices does, and then gives the newest rows of a piece.

    Not shared between threads. ``keyless`` counts the records without a key.
    """

    def __init__(
        self,
        seen: SeenKeys,
        spilled: SpilledKeys,
        buffers: RowBuffers,
        *,
        tombstones: bool,
        max_decompressed_bytes: int,
        wanted: WantedKeys | None = None,
    ) -> None:
        """Prepare.

        Args:
            seen: the keys of the records after the first piece.
            spilled: takes records with keys that ``seen`` has no room for.
            buffers: take the rows; those of an output batch that is not full stay there.
            tombstones: whether rows whose value is null are given too.
            max_decompressed_bytes: bound on what one batch may decompress to.
            wanted: the keys to look for; None for all.
        """
        self._seen = seen
        self._spilled = spilled
        self._buffers = buffers
        self._tombstones = tombstones
        self._wanted = wanted
        self._kept = _KeptRecords()
        self._decoder = RecordDecoder(
            max_decompressed_bytes=max_decompressed_bytes, taker=self._kept
        )
        self._fed: list[BatchTable] = []
        self._too_much = 0
        self.keyless = 0

    def feed(
        self,
        data: Bytes,
        table: BatchTable,
        *,
        file_position: int,
        path: str,
        start_offset: int,
        end_offset: int,
    ) -> Iterator[pa.RecordBatch]:
        """Keep the records of the next batches of a piece; gives nothing."""
        self._fed.append(table)
        if self._too_much:
            return
        self._kept.is_single = sum(map(len, self._fed)) == 1
        try:
            yield from self._decoder.feed(
                data,
                table,
                file_position=file_position,
                path=path,
                start_offset=start_offset,
                end_offset=end_offset,
            )
        except _TooMuchError:
            self._kept.clear()
            self._too_much = sum(int(fed.size.sum()) for fed in self._fed)

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Give nothing: a piece has ended when :meth:`take` is called."""
        return iter(())

    def smaller(self, piece: SegmentSlice) -> list[SegmentSlice]:
        """Return in which pieces the one that was read is to be read again; none if it was kept."""
        fed, most = self._fed, self._too_much // 2
        self._fed, self._too_much = [], 0
        return _cut(piece, fed, most) if most else []

    def take(self) -> Iterator[pa.RecordBatch]:
        """Yield output batches that are full of newest rows of the piece that was read."""
        for found in reversed(self._kept.take_all()):
            self.keyless += int((found.key_lengths < 0).sum())
            rows = self._newest(found)
            if not self._tombstones:
                rows = rows.take(np.flatnonzero(rows.value_lengths >= 0))
            if len(rows.offsets):
                yield from self._buffers.append(rows)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the output batch that is not full, if there are any."""
        if self._buffers.rows:
            yield self._buffers.take()

    def _newest(self, found: FoundRecords) -> FoundRecords:
        keys = (found.source, found.key_starts, found.key_lengths)
        hashes = self._seen.hashes(*keys)
        if self._wanted is not None:
            hashes = np.where(self._wanted.mask(found, hashes), hashes, -1)
        newest = self._seen.add(*keys, found.offsets, hashes)
        if self._seen.left:
            self._spilled.add(found, hashes, self._seen.unknown(*keys, hashes))
        return self.pick(found.take(np.flatnonzero(newest)))

    def pick(self, newest: FoundRecords) -> FoundRecords:
        """Leave of the newest records of their keys those that are looked for."""
        return newest if self._wanted is None else self._wanted.pick(newest)


class _TooMuchError(Exception):
    """A piece is too large to be kept."""


class _KeptRecords:
    """Keeps what a decoder finds, where it lies."""

    rows = 0

    def __init__(self) -> None:
        self._found: list[FoundRecords] = []
        self._bytes = 0
        self.is_single = False

    def append(self, found: FoundRecords) -> Iterator[pa.RecordBatch]:
        """Keep records.

        Raises:
            _TooMuchError: they are too many, and not of a single batch.
        """
        if not self._found or self._found[-1].source is not found.source:
            self._bytes += len(found.source)
        self._bytes += len(found.offsets) * _BYTES_PER_ROW
        if self._bytes > KEPT_BYTES and not self.is_single:
            raise _TooMuchError
        columns: Any = (column.copy() for column in found[1:])
        self._found.append(FoundRecords(found.source, *columns))
        return iter(())

    def take(self) -> pa.RecordBatch:
        raise AssertionError("kept records are no output batch")

    def take_all(self) -> list[FoundRecords]:
        """Return what was kept, in order, and start over."""
        found = self._found
        self.clear()
        return found

    def clear(self) -> None:
        self._found, self._bytes = [], 0


def _cut(piece: SegmentSlice, fed: list[BatchTable], most: int) -> list[SegmentSlice]:
    """Cut a piece between batches into pieces of at most ``most`` bytes or one batch."""
    pieces: list[SegmentSlice] = []
    rest, size, next_offset = piece, 0, piece.start_offset
    batches = (zip(t.position, t.last_offset, t.size, strict=True) for t in fed)
    for position, last, length in itertools.chain.from_iterable(batches):
        if size and size + int(length) > most:
            pieces.append(rest._replace(end_offset=next_offset, end_position=int(position)))
            rest = rest._replace(start_offset=next_offset, start_position=int(position))
            size = 0
        size += int(length)
        next_offset = int(last) + 1
    return [*pieces, rest]


# ----------------------------------------------------------------------------------------------
# Rows of records whose offsets are known: what was spilled, and is read from the log at last.


class ChosenRows:
    """Takes the chosen rows of what ``decoder`` is fed, which passes over batches without any.

    ``offsets`` are those that are chosen of what is fed next, ascending, int64[n]. ``found`` counts
    the rows. Not shared between threads.
    """

    rows = 0

    def __init__(
        self,
        buffers: RowBuffers,
        pick: Callable[[FoundRecords], FoundRecords],
        *,
        max_decompressed_bytes: int,
    ) -> None:
        """Prepare.

        Args:
            buffers: take the rows; those of an output batch that is not full stay there.
            pick: leaves of chosen records those that are wanted.
            max_decompressed_bytes: bound on what one batch may decompress to.
        """
        self._buffers = buffers
        self._pick = pick
        every = RecordDecoder(max_decompressed_bytes=max_decompressed_bytes, taker=self)
        self.decoder = NarrowedDecoder(every, self._chosen)
        self.offsets: Integers = np.empty(0, np.int64)
        self.found = 0

    def _chosen(self, table: BatchTable) -> BatchTable:
        """Return the batches that have chosen offsets."""
        # the first offset of a compressed message set is not known, and counts as -1
        first = np.searchsorted(self.offsets, table.base_offset)
        return table[first < np.searchsorted(self.offsets, table.last_offset, side="right")]

    def append(self, found: FoundRecords) -> Iterator[pa.RecordBatch]:
        """Take the chosen ones of the records that the decoder has found."""
        places = np.searchsorted(self.offsets, found.offsets)
        places[places == len(self.offsets)] = 0
        rows = found.take(np.flatnonzero(self.offsets[places] == found.offsets))
        self.found += len(rows.offsets)
        rows = self._pick(rows)
        if len(rows.offsets):
            yield from self._buffers.append(rows)

    def take(self) -> pa.RecordBatch:
        """Give nothing: what was chosen lies in ``buffers``."""
        raise AssertionError("chosen rows lie in the buffers")


# ----------------------------------------------------------------------------------------------

_LOGGER: Final = logging.getLogger("kafkalog.source")

_UNCUT: Final = 1 << 62
_ROWS: Final = 8192
_BATCH_BYTES: Final = 1 << 20
_SEEDS: Final = 1 << 62
_SPILL_PART: Final = 4
"""Of ``table.memory`` one part in four is for keys on their way to disk, once there are any."""


@dataclass(frozen=True, slots=True)
class LatestSplit(LogSplit):
    """A whole partition, and which share of its keys a task looks at."""

    seed: int = 0
    share: int = 0
    shares: int = 1


def plan_latest(options: ReadOptions, selection: Selection | None = None) -> list[LatestSplit]:
    """Return a split for each partition, or several, each with a share of its keys.

    Raises:
        OptionError, DataLossError, UnknownTopicOrPartitionError: as ``plan_batch``.
    """
    options.refuse_for_latest()
    found = plan_batch(replace(options, split_bytes=_UNCUT, min_partitions=None), selection)
    whole: list[LogSplit] = []
    for _, parts in itertools.groupby(found, lambda split: split.topic_partition):
        first, *more = parts
        slices = (*first.slices, *(piece for part in more for piece in part.slices))
        whole.append(replace(first, slices=slices))
    shares = max(1, -(-(options.min_partitions or 1) // max(1, len(whole))))
    seed = system.random_id().int % _SEEDS
    return [
        LatestSplit(
            split.topic_partition,
            split.slices,
            split.topic_id,
            seed=seed,
            share=share,
            shares=shares,
        )
        for split in whole
        for share in range(shares)
    ]


def read_latest(
    split: LatestSplit,
    options: ReadOptions,
    rows: RowSchema,
    keys: Keys | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read the newest rows of a split's keys, newest first, as batches of the schema ``rows``.

    With ``keys`` only theirs. If they are named, no further than to the oldest of them.

    Raises:
        DataLossError, CorruptRecordError, TimestampOutOfRangeError: as ``read_split``. A
            DataLossError also if the log was compacted meanwhile so that rows may be gone.
    """
    buffers = RowBuffers(
        *(columns_of(rows), _ROWS, _BATCH_BYTES),
        null_bad_timestamps=options.on_timestamp_overflow == "null",
    )
    damage = _Damage(split, options)
    wanted = share_of(split.share, split.shares)
    with closing(SpilledKeys(wanted, options.table_memory // _SPILL_PART)) as spilled:
        reader = _Reader(split, options, buffers, wanted, keys, damage, spilled)
        maker = RecordRows(rows, split.topic_partition, reader.newest)
        with naming_overflow():
            for batch in reader.batches():
                yield maker.rows_of(batch)
    damage.report()
    refuse_if_compacted(split, options)


class _Reader:
    """Reads a split from its end to its start; once more, if there were too many keys."""

    def __init__(
        self,
        split: LatestSplit,
        options: ReadOptions,
        buffers: RowBuffers,
        share: KeyRange,
        keys: Keys | None,
        damage: _Damage,
        spilled: SpilledKeys,
    ) -> None:
        self._split = split
        self._damage = damage
        self._options = options
        self._buffers = buffers
        self._spilled = spilled
        self._wanted = None if keys is None else wanted_keys(keys, split.seed)
        memory = options.table_memory - options.table_memory // _SPILL_PART
        seen = SeenKeys(share, split.seed, memory, gives_up=False)
        self._seen = seen
        self.newest = NewestRows(
            *(seen, spilled, buffers),
            tombstones=options.tombstones,
            max_decompressed_bytes=options.max_decompressed_bytes,
            wanted=self._wanted,
        )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the newest rows, as the decoder gives them."""
        for piece in self._pieces():
            yield from self._read(piece)
            if self._wanted is not None and self._wanted.all_found:
                break
        if self._spilled:
            yield from self._read_spilled()
        yield from self.newest.rest()
        if self._split.share == 0 and self._wanted is None and self.newest.keyless:
            _LOGGER.warning(
                "%s: left out %d records without a key: view=latest gives a row for each key",
                self._split.topic_partition,
                self.newest.keyless,
            )

    def _pieces(self) -> Iterator[SegmentSlice]:
        """Cut the slices into pieces, the last one first."""
        smallest = PIECE if self._wanted is None else FIRST_PIECE
        for whole in reversed(self._split.slices):
            yield from pieces_backwards(whole, smallest, PIECE)

    def _read(self, piece: SegmentSlice) -> Iterator[pa.RecordBatch]:
        yield from self._decode(piece, self.newest)
        smaller = self.newest.smaller(piece)
        if not smaller:
            yield from self.newest.take()
        for part in reversed(smaller):
            yield from self._read(part)

    def _read_spilled(self) -> Iterator[pa.RecordBatch]:
        """Read the rows of the keys that were too many, where they are known to lie."""
        options = self._options
        self._seen.forget()
        _say_that_it_spills(options.table_memory)
        offsets = self._spilled.newest(
            self._split.seed, options.table_memory, tombstones=options.tombstones
        )
        chosen = ChosenRows(
            *(self._buffers, self.newest.pick),
            max_decompressed_bytes=options.max_decompressed_bytes,
        )
        for piece in self._pieces():
            chosen.offsets = offsets.take(piece.start_offset)
            if len(chosen.offsets):
                yield from self._decode(piece, chosen.decoder)
        if chosen.found < offsets.taken:
            LossPolicy(fail=options.fail_on_data_loss).range_not_readable(
                self._split.topic_partition,
                self._split.slices[0].start_offset,
                self._split.slices[-1].end_offset,
                f"{offsets.taken - chosen.found} of their newest records were there at first, and "
                "gone when they were read, as after a compaction; read again",
            )

    def _decode(self, piece: SegmentSlice, decoder: Decoder) -> Iterator[pa.RecordBatch]:
        with self._damage.salvage() as salvage, with_remedy(self._options):
            reader = SplitReader.of(self._split, self._options, decoder, salvage)
            yield from reader.read(piece)


class _Damage:
    """What is left out of a split with ``onCorruptRecord=skip``: said once, however often read."""

    def __init__(self, split: LatestSplit, options: ReadOptions) -> None:
        self._options = options
        self._topic_partition = split.topic_partition if split.share == 0 else None
        self._known: set[Place] = set()
        self._all = Salvage(self._topic_partition, check_records=False)

    @contextmanager
    def salvage(self) -> Iterator[Salvage | None]:
        """Give what one piece is read with: one for all of them would take them for neighbours."""
        if self._options.on_corrupt_record == "fail":
            yield None
            return
        one = Salvage(
            self._topic_partition,
            max_decompressed_bytes=self._options.max_decompressed_bytes,
            known=self._known,
        )
        yield one
        self._all.places += one.places
        self._all.bytes += one.bytes

    def report(self) -> None:
        """Say in one line how much was left out, if anything was."""
        self._all.report()


def refuse_if_compacted(split: LatestSplit, options: ReadOptions) -> None:
    """Refuse a split if compaction has removed rows of it for newer ones that are not read.

    A cleaner removes a row if there is a newer one of its key. If the newer one lies below the
    split's end, it was read instead. If it lies above, the key has no row at all. A cleaner never
    reads the active segment: if the end lies in that, no row was removed for one above it.
    """
    end = split.slices[-1].end_offset
    for piece in split.slices:
        segment = open_planned(piece)
        if segment is not None:
            segment.close()
            continue
        try:
            segments = LogSegments.of(as_path(piece.path).parent)
        except UnknownTopicOrPartitionError:  # moved, with all that is in it
            return
        if segments and segments[0].base_offset <= piece.start_offset < end:
            if segments[-1].base_offset <= end:
                return
            LossPolicy(fail=options.fail_on_data_loss).range_not_readable(
                split.topic_partition,
                piece.start_offset,
                end,
                "they were compacted while they were read, and so by newer records than those; "
                "keys that have one may have no row; read again",
            )
            return


@once_per_process
def _say_that_it_spills(memory: int) -> None:
    """Say once per process that keys go to disk."""
    _LOGGER.warning(
        "view=latest: the keys of a partition need more than %d bytes of table.memory, so that "
        "they are written to Spark's local directory, and a part of the log is read twice; raise "
        "table.memory to avoid it",
        memory,
    )
