"""Records that somebody asks for: which ones, read once or as they come."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kafkalog.errors import OptionError, UnknownTopicOrPartitionError
from kafkalog.files.parallel import available_cores
from kafkalog.files.system import system
from kafkalog.jobs.inspection.log_dirs import ends_of, partitions_of, unknown_partition
from kafkalog.model import EVERYTHING, Intervals, TopicPartition, TopicSelection
from kafkalog.streaming.log.read.slice_reader import NarrowedDecoder
from kafkalog.streaming.options.declaring import warn_ignored
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source.batch_plan import pack_splits, plan_batch
from kafkalog.streaming.source.loss import with_remedy
from kafkalog.streaming.source.planner import Selection, thin_split
from kafkalog.streaming.source.reading import read_split
from kafkalog.streaming.source.schema import RowSchema
from kafkalog.streaming.source.stream_control import new_splits
from kafkalog.streaming.store.log_dirs import LogDirs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from kafkalog.streaming.log.read.slice_reader import Decoder
    from kafkalog.streaming.source.planner import LogSplit


__all__ = [
    "HeaderFilter",
    "RecordFilter",
    "RecordReader",
    "Search",
    "of_producers",
    "offsets_before_end",
    "producers_of_transaction",
    "read_in_threads",
]


# ----------------------------------------------------------------------------------------------
# Which records a person asks for, and what of it decides already what is read.
#
# Partitions, offsets and times reach the plan: whole partitions, segments and batches are not
# read. The batches of other producers are not decoded. Keys, headers, expressions and exact times
# are looked at record by record, in Arrow.


@dataclass(frozen=True, slots=True)
class HeaderFilter:
    """A header that a record must have; with any value if ``value`` is None."""

    key: str
    value: bytes | None = None

    @classmethod
    def of(cls, word: str) -> HeaderFilter:
        """Read ``NAME`` or ``NAME=VALUE``."""
        key, separator, value = word.partition("=")
        if not key:
            raise OptionError(f"--header is {word!r}, expected NAME or NAME=VALUE")
        return cls(key, value.encode("utf-8", "surrogateescape") if separator else None)


@dataclass(frozen=True, slots=True)
class Search:
    """A regular expression (RE2's) or a text to look for in some of ``key`` and ``value``."""

    text: str
    columns: tuple[str, ...]
    is_fixed: bool = False
    ignore_case: bool = False

    def check(self) -> None:
        """Try the expression.

        Raises:
            OptionError: it is none.
        """
        try:
            self._matches(pa.array([b""], pa.binary()))
        except pa.ArrowInvalid as error:
            reason = str(error).partition(":")[2].strip() or str(error)
            raise OptionError(f"--regex {self.text!r} is no regular expression: {reason}") from None

    def found(self, batch: pa.RecordBatch) -> pa.Array:
        """Return bool[n]: which records have it. It runs beside other threads."""
        found = [pc.fill_null(self._matches(batch.column(name)), False) for name in self.columns]
        return found[0] if len(found) == 1 else pc.or_(*found)

    def _matches(self, column: pa.Array) -> pa.Array:
        matches = pc.match_substring if self.is_fixed else pc.match_substring_regex
        return matches(column, pattern=self.text, ignore_case=self.ignore_case)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFilter:
    """Records that have all that is given; times are ms, ends exclusive."""

    partition: int | None = None
    start: int = 0
    end: int | None = None
    since: int | None = None
    until: int | None = None
    key: bytes | None = None
    headers: tuple[HeaderFilter, ...] = ()
    producers: frozenset[int] | None = None
    search: Search | None = None

    @property
    def selection(self) -> Selection:
        """What of it a plan can use."""
        partitions = EVERYTHING if self.partition is None else Intervals.of([self.partition])
        return Selection(
            partitions=partitions,
            offsets=Intervals.between(self.start, self.end),
            timestamps=Intervals.between(self.since, self.until),
        )

    def bounds(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the options of the source that say which partitions are read."""
        if self.partition is None:
            return {"subscribe": ",".join(topics)}
        return {"assign": json.dumps({topic: [self.partition] for topic in topics})}

    def starting(self, group: str | None, *, follow: bool) -> dict[str, str]:
        """Return the options of the source that say where reading starts.

        Raises:
            OptionError: more than one start is given.
        """
        if group is not None:
            if self.start:
                raise OptionError("give --group or --start, not both")
            return {"startingOffsets": f"group:{group}"}
        if follow and self.since is not None:
            return {
                "startingTimestamp": str(self.since),
                "startingOffsetsByTimestampStrategy": "latest",
            }
        return {"startingOffsets": "earliest"}

    def of_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records of a batch with all columns that are wanted."""
        if self.start and batch.num_rows:
            batch = batch.filter(pc.greater_equal(batch.column("offset"), self.start))
        batch = self._in_time(batch)
        if self.key is not None and batch.num_rows:
            batch = batch.filter(pc.equal(batch.column("key"), pa.scalar(self.key, pa.binary())))
        if self.search is not None and batch.num_rows:
            batch = batch.filter(self.search.found(batch))
        if self.headers and batch.num_rows:
            rows = batch.column("headers").to_pylist()
            batch = batch.filter(pa.array([self._has_headers(row) for row in rows]))
        return batch

    def _in_time(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if (self.since is None and self.until is None) or not batch.num_rows:
            return batch
        micros = batch.column("timestamp").cast(pa.int64())
        inside = pc.is_valid(micros)
        if self.since is not None:
            inside = pc.and_(inside, pc.greater_equal(micros, self.since * 1000))
        if self.until is not None:
            inside = pc.and_(inside, pc.less(micros, self.until * 1000))
        return batch.filter(inside)

    def _has_headers(self, headers: list[dict[str, Any]] | None) -> bool:
        return all(
            any(
                each["key"] == wanted.key and wanted.value in {None, each["value"]}
                for each in headers or ()
            )
            for wanted in self.headers
        )


def of_producers(decoder: Decoder, producers: frozenset[int]) -> Decoder:
    """Return a decoder that passes over the batches of other producers."""
    ids = np.array(sorted(producers), np.int64)
    return NarrowedDecoder(decoder, lambda table: table[np.isin(table.producer_id, ids)])


# ----------------------------------------------------------------------------------------------
# Read the records that somebody asks for: once, or as they come.


_TRANSACTIONS: Final = "__transaction_state"
_SAID_ALREADY: Final = {"assign", "subscribe", "subscribepattern"}


@dataclass(frozen=True, slots=True)
class RecordReader:
    """Reads all columns of records of some topics. Threads may share it."""

    options: ReadOptions
    wanted: RecordFilter
    rows: RowSchema

    @classmethod
    def of(
        cls, given: Mapping[str, str], topics: Sequence[str], wanted: RecordFilter
    ) -> RecordReader:
        """Check what is given: options of the source, with ``path``.

        Raises:
            OptionError: options that cannot be used.
            UnknownTopicOrPartitionError: the partition that is wanted is not there.
        """
        for name in given:
            if name.lower() in _SAID_ALREADY:
                raise OptionError(f"option {name!r} cannot be set: --topic says what is read")
        bounds = {**wanted.bounds(topics), "onTimestampOverflow": "null"}
        options = ReadOptions.parse({**bounds, **given})
        options.refuse_decoding()
        warn_ignored(options.ignored)
        number = wanted.partition
        if number is not None:
            there = LogDirs(options.paths).partitions()
            for topic in topics:
                if (topic, number) not in there:
                    raise unknown_partition(TopicPartition(topic, number), options.paths, there)
        return cls(options, wanted, RowSchema.named(include_headers=True))

    def splits(self) -> list[LogSplit]:
        """Plan what may hold records that are wanted, as of now."""
        with with_remedy(self.options):
            return plan_batch(self.options, self.wanted.selection)

    def new_splits(self) -> Iterator[LogSplit]:
        """Plan what is there and what comes later, for ever."""
        return new_splits(self.options, None)

    def read_all(
        self, told: Callable[[int, int], object] = lambda _done, _size: None
    ) -> Iterator[pa.RecordBatch]:
        """Read all that is wanted as of now in threads, in order: partitions, then offsets.

        ``told`` is called with the bytes that are done, and with those of all.
        """
        yield from read_in_threads(self.splits(), self.read, told)

    def read(self, split: LogSplit) -> Iterator[pa.RecordBatch]:
        """Read the records of a split that are wanted; batches without any are left out."""
        producers = self.wanted.producers
        narrowed = None
        if producers is not None:
            narrowed = partial(of_producers, producers=producers)
        thinned = thin_split(split, self.wanted.selection.timestamps)
        for batch in read_split(thinned, self.options, self.rows, narrowed):
            found = self.wanted.of_batch(batch)
            if found.num_rows:
                yield found


def offsets_before_end(
    paths: Sequence[str], topics: Sequence[str], partition: int | None, count: int
) -> dict[str, str]:
    """Return the option that lets reading begin ``count`` offsets before each partition's end.

    Raises:
        UnknownTopicOrPartitionError: there is no such topic, or partition.
    """
    starts: dict[str, dict[str, int]] = {}
    wanted = TopicSelection(tuple(topics))
    there = partitions_of(paths, wanted)
    watch = ends_of(paths, wanted, partition)
    for key, end in watch.look().offsets.items():
        if key in there:
            start = max(watch.log_start(key), end - count)
            starts.setdefault(key.topic, {})[str(key.partition)] = start
    return {"startingOffsets": json.dumps(starts)} if starts else {}


_READ_TOGETHER_BYTES: Final = 256 << 10

_T = TypeVar("_T")


def read_in_threads(
    given: Iterable[LogSplit],
    read: Callable[[LogSplit], Iterable[_T]],
    told: Callable[[int, int], object] = lambda _done, _size: None,
) -> Iterator[_T]:
    """Read splits in threads, a few ahead, and return what comes of each in order.

    Small ones are read together: a thread for each costs more than what it reads.
    ``told`` is called with the bytes that are done, and with those of all.
    """
    splits = deque(pack_splits([*given], _READ_TOGETHER_BYTES))
    size, done = sum(split.size for pack in splits for split in pack), 0
    told(done, size)

    def read_all(pack: Iterable[LogSplit]) -> list[_T]:
        return [batch for split in pack for batch in read(split)]

    cores = available_cores()
    running: deque[tuple[int, Future[list[_T]]]] = deque()
    with system.pool(cores, "kafkalog-read") as pool:
        try:
            while splits or running:
                while splits and len(running) < 2 * cores:
                    pack = splits.popleft()
                    pack_size = sum(split.size for split in pack)
                    running.append((pack_size, pool.submit(read_all, pack)))
                pack_size, future = running.popleft()
                yield from future.result()
                done += pack_size
                told(done, size)
        finally:
            for _, future in running:
                future.cancel()


def producers_of_transaction(path: str, transactional_id: str) -> frozenset[int]:
    """Return the ids of the producers that a transactional id has had, as far as it is known.

    Raises:
        UnknownTopicOrPartitionError: nothing in ``__transaction_state`` speaks of it.
    """
    options = ReadOptions.parse({"path": path, "subscribe": _TRANSACTIONS, "view": "transactions"})
    found: set[int] = set()
    with with_remedy(options):
        splits = plan_batch(options)
    for split in splits:
        for batch in read_split(split, options, None):
            for row in batch.select(["transactionalId", "producerId"]).to_pylist():
                if row["transactionalId"] == transactional_id and row["producerId"] is not None:
                    found.add(row["producerId"])
    if not found:
        raise UnknownTopicOrPartitionError(
            f"{_TRANSACTIONS} in {path} says nothing of transactional id {transactional_id!r}"
        )
    return frozenset(found)
