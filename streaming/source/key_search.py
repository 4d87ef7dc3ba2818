"""The newest record of one key, looked for from the end of its partition backwards."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kafkalog.streaming.log.read.slices import FIRST_PIECE, PIECE, pieces_backwards
from kafkalog.streaming.records.columns import RecordDecoder
from kafkalog.streaming.records.row_buffers import Columns
from kafkalog.streaming.source.damage import naming_way_out
from kafkalog.streaming.source.key_hashes import KeyHashes, hash_of
from kafkalog.streaming.source.latest import refuse_if_compacted
from kafkalog.streaming.source.reading import RecordRows, SplitReader, columns_of, naming_overflow

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkalog.streaming.log.read.slices import SegmentSlice
    from kafkalog.streaming.schema import RowSchema
    from kafkalog.streaming.source.latest import LatestSplit
    from kafkalog.streaming.source.read_options import ReadOptions

__all__ = ["find_key"]


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
        with naming_way_out(self._options), naming_overflow():
            for piece in pieces_backwards(whole, FIRST_PIECE, PIECE):
                for place in self._hashes.of(piece).places_of(self._hashed, piece):
                    # a record may be of an aborted transaction, or have another key of that hash
                    for batch in self._reader.read(place):
                        if batch.column("key")[0].as_py() == self._key:
                            return batch
        return None
