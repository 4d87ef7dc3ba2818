"""Look for the newest records of keys, in one partition or in all of a topic. Knows no Spark task.

The partition of a key is the one that Kafka's producers and the sink choose by its hash.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from kafkalog.errors import OptionError, UnknownTopicOrPartitionError
from kafkalog.model import many, said_there
from kafkalog.streaming.log.log_dir import LogDirs
from kafkalog.streaming.lookup.key_search import find_key
from kafkalog.streaming.lookup.latest import plan_latest, read_latest
from kafkalog.streaming.lookup.ordered_rows import OrderedRows
from kafkalog.streaming.options.declaring import warn_ignored
from kafkalog.streaming.records.murmur2 import murmur2
from kafkalog.streaming.source.loss import with_remedy
from kafkalog.streaming.source.read_options import ReadOptions
from kafkalog.streaming.source.schema import RowSchema
from kafkalog.streaming.store.folders.deleted import committed_partitions, partition_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kafkalog.streaming.lookup.latest import LatestSplit
    from kafkalog.streaming.lookup.wanted_keys import Keys, KeySpan

__all__ = ["AsOf", "look_up", "look_up_span", "partition_to_search", "read_keys", "with_ms"]

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
    if isinstance(keys, frozenset) and len(keys) == 1 and options.on_corrupt_record == "fail":
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
