"""Look for the newest records of keys, from the end of a partition backwards."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from kafkalog.errors import CorruptRecordError, OptionError, UnknownTopicOrPartitionError
from kafkalog.files.system import remembered, system
from kafkalog.files.watch import is_settled, stamp_of
from kafkalog.model import many, said_there
from kafkalog.streaming.log.read.slice_reader import (
    FIRST_PIECE,
    PIECE,
    open_planned,
    pieces_backwards,
)
from kafkalog.streaming.lookup.block_cache import block_cache
from kafkalog.streaming.lookup.key_kernels import hash_keys
from kafkalog.streaming.lookup.latest import plan_latest, read_latest, refuse_if_compacted
from kafkalog.streaming.lookup.ordered_rows import OrderedRows
from kafkalog.streaming.options.declaring import warn_ignored
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.records.columns import RecordDecoder
from kafkalog.streaming.records.murmur2_kernels import murmur2
from kafkalog.streaming.records.row_buffers import Columns
from kafkalog.streaming.source.loss import with_remedy
from kafkalog.streaming.source.reading import RecordRows, SplitReader, columns_of, naming_overflow
from kafkalog.streaming.source.schema import RowSchema
from kafkalog.streaming.store.log_dirs import LogDirs, committed_partitions, partition_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from kafkalog.files.watch import Stamp
    from kafkalog.streaming.log.read.slice_reader import Decoder, SegmentSlice
    from kafkalog.streaming.lookup.latest import LatestSplit
    from kafkalog.streaming.lookup.seen_keys import Keys, KeySpan
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers
    from kafkalog.streaming.records.batch import BatchTable
    from kafkalog.streaming.records.row_buffers import FoundRecords

    Read = Callable[[SegmentSlice, Decoder], Iterator[pa.RecordBatch]]

__all__ = [
    "AsOf",
    "KeyHashes",
    "PieceHashes",
    "find_key",
    "hash_of",
    "look_up",
    "look_up_span",
    "partition_to_search",
    "read_keys",
    "with_ms",
]


# ----------------------------------------------------------------------------------------------
# The hashed keys of pieces of a log: what look-ups keep in the process' cache.
#
# A piece costs 8 bytes for each record and 40 for each batch there, a small part of what it is
# decompressed. A hash only says where a key may lie. The record is then read from its file.
#
# A piece is known by its file's device and inode, by positions and by offsets. That does not tell
# a file that was truncated and appended to, nor one that got the inode of a deleted one. So a
# piece is believed if the file has not changed at all since it was read: size and times are the
# same, and lie so far back that a change would show. Otherwise its batches are compared with
# those in the file, by positions, offsets and checksums, which costs a read and no decompression.


_SEEDS: Final = 1 << 62
_LOW: Final = 0xFFFFFFFF
_MOST: Final = 2**31 - 1
_POSITION, _SIZE, _BASE, _LAST, _CRC, _FIELDS = range(6)
_OVERHEAD: Final = 1000
"""About the bytes of a key, an entry and their arrays, beside what the arrays hold."""


class _Seed:
    """Of the hashes of this process; nobody can write keys that all have the same one."""

    def __init__(self) -> None:
        self.value = system.random_id().int % _SEEDS


def hash_of(key: bytes) -> int:
    """Return the hash of a key in this process, 32 bits."""
    source = np.frombuffer(key + b"\0", np.uint8)
    one = np.zeros(1, np.int64)
    return int(_hashes(source, one, one + len(key))[0])


def _hashes(source: Bytes, starts: Integers, lengths: Integers) -> NDArray[np.uint32]:
    hashes = np.empty(len(starts), np.int64)
    if hash_keys(source, starts, lengths, remembered(_Seed).value, hashes):
        raise AssertionError("a key was found outside of its bytes")
    return (hashes & _LOW).astype(np.uint32)


class PieceHashes(NamedTuple):
    """What is known of the records of a piece, and of its batches, in order."""

    hashes: NDArray[np.uint32]
    """Of the key of each record; without a key it is no hash in particular."""
    offsets: NDArray[Any]
    """Of each record, from the segment's base offset; int64 where brokers before 2.0 let it span
    more than an int32 holds."""
    batches: Integers
    """int64[n, 5]: position, size, base offset, last offset and checksum."""
    stamp: Stamp | None
    """Of the file as it was read; None if it may have changed meanwhile."""

    @property
    def charge(self) -> int:
        """Bytes in memory."""
        return _OVERHEAD + sum(part.nbytes for part in self[:3])

    def places_of(self, hashed: int, piece: SegmentSlice) -> Iterator[SegmentSlice]:
        """Give the records whose key has a hash, each as a slice, newest first."""
        rows = np.flatnonzero(self.hashes == hashed)[::-1]
        for offset in (self.offsets[rows].astype(np.int64) + piece.base_offset).tolist():
            slot = int(np.searchsorted(self.batches[:, _LAST], offset))
            start = int(self.batches[slot, _POSITION])
            yield piece._replace(
                start_position=start,
                end_position=start + int(self.batches[slot, _SIZE]),
                start_offset=offset,
                end_offset=offset + 1,
            )


class KeyHashes:
    """Gives the hashed keys of pieces, from the cache where it has them. For one look-up."""

    def __init__(self, read: Read, hashed: int, capacity: int, max_decompressed_bytes: int) -> None:
        """Prepare.

        Args:
            read: reads a piece with a decoder.
            hashed: the hash that is looked for.
            capacity: bytes that the cache may keep; 0 not to use it.
            max_decompressed_bytes: bound on what one batch may decompress to.
        """
        self._read = read
        self._hashed = hashed
        self._limit = max_decompressed_bytes
        self._cache = block_cache()
        # Half of it: what a search keeps of a long log does not push out what it began with.
        self._room = capacity // 2
        if capacity:
            self._cache.resize(capacity)

    def of(self, piece: SegmentSlice) -> PieceHashes:
        """Return the hashed keys of a piece; of one that is not kept, those that are looked for."""
        if not self._room or piece.size > 2 * PIECE:
            return self._read_piece(piece, None, self._hashed)
        stamp = _stamp_of(piece)  # before reading: what changes after it shows in the next one
        with self._cache.found(piece) as known:
            if known is not None and stamp is not None and known.stamp == stamp:
                return _as_known(known)
            if known is not None and _is_as_before(piece, known):
                return self._keep(piece, known._replace(stamp=stamp))
        return self._keep(piece, self._read_piece(piece, stamp, None))

    def _keep(self, piece: SegmentSlice, found: PieceHashes) -> PieceHashes:
        if found.charge <= self._room:
            self._room -= found.charge
            self._cache.release(self._cache.insert(piece, found, found.charge))
        return found

    def _read_piece(
        self, piece: SegmentSlice, stamp: Stamp | None, only: int | None
    ) -> PieceHashes:
        noted = _Noted(piece.base_offset, only, self._limit)
        for _ in self._read(piece, noted):
            raise AssertionError("what only notes gives no rows")
        return noted.found(stamp)


def _as_known(known: object) -> PieceHashes:
    assert isinstance(known, PieceHashes)  # noqa: S101 - a mistake of ours, not of a user's
    return known


class _Noted:
    """Notes batches and hashed keys as a decoder of slices; ``only`` is the hash to note."""

    rows = 0

    def __init__(self, base_offset: int, only: int | None, max_decompressed_bytes: int) -> None:
        self._base_offset = base_offset
        self._only = only
        self._decoder = RecordDecoder(max_decompressed_bytes=max_decompressed_bytes, taker=self)
        self._hashes = [np.empty(0, np.uint32)]
        self._offsets: list[NDArray[Any]] = [np.empty(0, np.int32)]
        self._batches = [np.empty((0, _FIELDS), np.int64)]

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
        """Note batches, and what is in them; gives nothing."""
        self._batches.append(_facts_of(table))
        return self._decoder.feed(
            data,
            table,
            file_position=file_position,
            path=path,
            start_offset=start_offset,
            end_offset=end_offset,
        )

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Give nothing."""
        return iter(())

    def append(self, found: FoundRecords) -> Iterator[pa.RecordBatch]:
        """Note records."""
        hashes = _hashes(found.source, found.key_starts, found.key_lengths)
        offsets = found.offsets - self._base_offset
        if not (offsets > _MOST).any():
            offsets = offsets.astype(np.int32)
        if self._only is not None:
            wanted = hashes == self._only
            hashes, offsets = hashes[wanted], offsets[wanted]
        self._hashes.append(hashes)
        self._offsets.append(offsets)
        return iter(())

    def take(self) -> pa.RecordBatch:
        raise AssertionError("what only notes gives no rows")

    def found(self, stamp: Stamp | None) -> PieceHashes:
        """Return what was noted."""
        return PieceHashes(
            np.concatenate(self._hashes),
            np.concatenate(self._offsets),
            np.concatenate(self._batches),
            stamp,
        )


def _facts_of(table: BatchTable) -> Integers:
    fields = (table.position, table.size, table.base_offset, table.last_offset, table.crc)
    return np.stack(fields, axis=1)


def _stamp_of(piece: SegmentSlice) -> Stamp | None:
    """Return the stamp of a piece's file; None if its next change might not show."""
    stamp = stamp_of(piece.path)
    return stamp if stamp is not None and is_settled(stamp) else None


def _is_as_before(piece: SegmentSlice, known: PieceHashes) -> bool:
    """Return whether the file has the very batches of a piece that it had."""
    try:
        segment = open_planned(piece)
        if segment is None:
            return False
        with segment:
            chunks = segment.chunks(piece.start_position, piece.end_position)
            tables = [_facts_of(chunk.table) for chunk in chunks]
    except CorruptRecordError:  # whoever reads it says so
        return False
    if not tables:
        return False
    now = np.concatenate(tables)
    first = int(np.searchsorted(now[:, _LAST], piece.start_offset))
    end = int(np.searchsorted(now[:, _LAST], piece.end_offset - 1)) + 1
    now = now[first:end]
    return np.array_equal(now[now[:, _BASE] < piece.end_offset], known.batches)


# ----------------------------------------------------------------------------------------------
# The newest record of one key, looked for from the end of its partition backwards.


def find_key(
    split: LatestSplit, options: ReadOptions, rows: RowSchema, key: bytes
) -> pa.RecordBatch | None:
    """Find the newest row of a key as ``read_latest`` does, with the help of the process' cache.

    Damage is not left out: what is read must be whole.

    Raises:
        DataLossError, CorruptRecordError, TimestampOutOfRangeError: as ``read_latest``.
    """
    search = _KeySearch(split, options, rows, key)
    found, seen = None, split.slices
    for slot in reversed(range(len(split.slices))):
        found = search.find_in(split.slices[slot])
        if found is not None:
            seen = split.slices[slot:]
            break
    refuse_if_compacted(replace(split, slices=seen), options)
    if found is None or not (options.tombstones or found.column("value").null_count == 0):
        return None
    return search.maker.rows_of(found)


class _KeySearch:
    def __init__(
        self, split: LatestSplit, options: ReadOptions, rows: RowSchema, key: bytes
    ) -> None:
        self._key = key
        self._hashed = hash_of(key)
        self._options = options
        limit = options.max_decompressed_bytes
        self._decoder = RecordDecoder(
            columns_of(rows) | Columns.KEY | Columns.VALUE,
            max_decompressed_bytes=limit,
            null_bad_timestamps=options.on_timestamp_overflow == "null",
        )
        self._reader = SplitReader.of(split, options, self._decoder, None)
        # what a query does without must not be taken for what was there
        capacity = options.cache_memory if options.fail_on_data_loss else 0
        every = replace(self._reader, committed_only=False)
        self._hashes = KeyHashes(
            lambda piece, decoder: replace(every, decoder=decoder).read(piece),
            *(self._hashed, capacity, limit),
        )
        self.maker = RecordRows(rows, split.topic_partition, self._decoder)

    def find_in(self, whole: SegmentSlice) -> pa.RecordBatch | None:
        """Return the newest record of the key in a segment, decoded; None without one."""
        with with_remedy(self._options), naming_overflow():
            for piece in pieces_backwards(whole, FIRST_PIECE, PIECE):
                for place in self._hashes.of(piece).places_of(self._hashed, piece):
                    # a record may be of an aborted transaction, or have another key of that hash
                    for batch in self._reader.read(place):
                        if batch.column("key")[0].as_py() == self._key:
                            return batch
        return None


# ----------------------------------------------------------------------------------------------
# Look for the newest records of keys, in one partition or in all of a topic. Knows no Spark task.
#
# The partition of a key is the one that Kafka's producers and the sink choose by its hash.


_HASH: Final = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class AsOf:
    """Which records count: those below an offset, or before the first with a timestamp (ms)."""

    offset: int | None = None
    timestamp: int | None = None

    def __post_init__(self) -> None:
        offset: object = self.offset  # who calls from Python may give anything
        if offset is not None and not (isinstance(offset, Integral) and int(offset) >= 0):
            raise OptionError(f"as_of_offset is {self.offset!r}, expected an offset, 0 or more")


def look_up(
    given: Mapping[str, str],
    topic: str,
    keys: Keys,
    *,
    partition: int | None,
    as_of: AsOf,
) -> Iterator[pa.RecordBatch]:
    """Read the newest records of keys, from the ends of their partitions backwards.

    Args:
        given: options of the source, with ``path``.
        topic: of this topic.
        keys: those of named keys end the search when all of them are found.
        partition: the one to look in, which is there; None for all.
        as_of: the newest at that time; of an offset only with a partition.

    Yields:
        record batches with all columns of records, ``headers`` too; ``timestamp`` is int64 of ms.

    Raises:
        OptionError: options that cannot be used.
        UnknownTopicOrPartitionError: the topic is not there.
        KafkaLogError: directories or logs that cannot be read.
    """
    return _look_up(_options(given, topic, partition, as_of), keys)


def look_up_span(
    given: Mapping[str, str],
    topic: str,
    span: KeySpan,
    *,
    partition: int | None,
    as_of: AsOf,
) -> Iterator[pa.RecordBatch]:
    """Read the newest records of the keys between two, by their keys and then by partition.

    Half of ``table.memory`` is for telling which records are the newest, and half for their order.
    What does not fit goes to a file without a name, in Spark's local directory or where temporary
    files lie. Arguments, batches and errors as of :func:`look_up`, and:

    Raises:
        SpillError: that file cannot be written or read.
    """
    options = _options(given, topic, partition, as_of)
    part = options.table_memory // 2
    with closing(OrderedRows(part)) as ordered:
        for batch in _look_up(replace(options, table_memory=part), span):
            ordered.add(batch)
        yield from ordered.take()


def _options(
    given: Mapping[str, str], topic: str, partition: int | None, as_of: AsOf
) -> ReadOptions:
    options = ReadOptions.parse({**given, **_bounds(topic, partition, as_of)})
    options.refuse_decoding()
    warn_ignored(options.ignored)
    return options


def _look_up(options: ReadOptions, keys: Keys) -> Iterator[pa.RecordBatch]:
    rows = RowSchema.named(include_headers=True)
    with with_remedy(options):
        splits = plan_latest(options)
    for split in splits:
        for batch in read_keys(split, options, rows, keys):
            yield with_ms(batch)


def read_keys(
    split: LatestSplit, options: ReadOptions, rows: RowSchema, keys: Keys | None
) -> Iterator[pa.RecordBatch]:
    """Read the newest rows of some keys as ``read_latest`` does; a single one is searched for."""
    if rows.decoded:
        from kafkalog.streaming.source.decoded import decode_batches  # noqa: PLC0415

        yield from decode_batches(read_keys(split, options, rows.stored, keys), rows, options)
    elif isinstance(keys, frozenset) and len(keys) == 1 and options.on_corrupt_record == "fail":
        (key,) = keys
        found = None if split.share else find_key(split, options, rows, key)
        yield from () if found is None else (found,)
    else:
        yield from read_latest(split, options, rows, keys)


def _bounds(topic: str, partition: int | None, as_of: AsOf) -> dict[str, str]:
    if as_of.offset is not None and as_of.timestamp is not None:
        raise OptionError("give an offset or a timestamp as of which to look, not both")
    bounds = {"view": "latest", "includeHeaders": "true"}
    if partition is None:
        bounds["subscribe"] = topic
    else:
        bounds["assign"] = json.dumps({topic: [partition]})
    if as_of.timestamp is not None:
        bounds["endingTimestamp"] = str(as_of.timestamp)
    if as_of.offset is not None:
        if partition is None:
            raise OptionError("an offset as of which to look needs a partition")
        bounds["endingOffsets"] = json.dumps({topic: {str(partition): as_of.offset}})
    return bounds


def with_ms(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Give timestamps as numbers: Python has no time for some of them."""
    place = batch.schema.get_field_index("timestamp")
    column = batch.column(place)
    is_null, micros = column.buffers()
    millis = np.frombuffer(micros, np.int64) // 1000
    # pa.array would import pandas, to look at what it was given
    buffers = [is_null, pa.py_buffer(millis)]
    numbers = pa.Array.from_buffers(pa.int64(), len(column), buffers, offset=column.offset)
    return batch.set_column(place, "timestamp", numbers)


def partition_to_search(
    given: Mapping[str, str], topic: str, key: bytes, partition: int | None = None
) -> int:
    """Return the partition that was asked for, or else the one that a producer chooses for a key.

    ``given`` as in :func:`look_up`.

    Raises:
        OptionError: options that cannot be used.
        UnknownTopicOrPartitionError: the topic or partition is not there, or not all of the topic's
            partitions, so that their number is not known.
    """
    paths = ReadOptions.parse({**given, "subscribe": topic, "view": "latest"}).paths
    found = committed_partitions(LogDirs(paths))
    there = {key.partition for key in found if key.topic == topic}
    where = ", ".join(map(str, paths))
    if partition is not None:
        if partition not in there:
            raise UnknownTopicOrPartitionError(
                f"{topic}-{partition} is not in {where}. {said_there(topic, found)}"
            )
        return partition
    if not there:
        raise UnknownTopicOrPartitionError(
            f"no partition of topic {topic} is in {where}. {said_there(topic, found)}"
        )
    count = partition_count(LogDirs(paths), topic, found)
    if count is None:
        raise UnknownTopicOrPartitionError(
            f"{where} has {many(len(there), 'partition')} of topic {topic}, up to "
            f"{topic}-{max(there)}: the partition of a key is not known without all of them; name "
            "the partition to look in, or look in all"
        )
    chosen = _partition_of(key, count)
    if chosen not in there:
        raise UnknownTopicOrPartitionError(
            f"the key lies in {topic}-{chosen}, as topic {topic} has {many(count, 'partition')}, "
            f"and {where} does not hold that one. {said_there(topic, found)}"
        )
    return chosen


def _partition_of(key: bytes, count: int) -> int:
    """Return the partition that a producer chooses for a key."""
    ends = pa.py_buffer(np.array([0, len(key)], np.int32))
    column = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(key)])
    return (int(murmur2(column)[0]) & _HASH) % count
