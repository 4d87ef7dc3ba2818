"""Read the records that somebody asks for: once, or as they come."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from kafkalog.errors import OptionError, UnknownTopicOrPartitionError
from kafkalog.files.parallel import available_cores
from kafkalog.files.system import system
from kafkalog.jobs.cli.emptiness import unknown_partition
from kafkalog.jobs.records.wanted import RecordsWanted, of_producers
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.log_dir import LogDirs
from kafkalog.streaming.options import warn_ignored
from kafkalog.streaming.schema import RowSchema
from kafkalog.streaming.source.damage import naming_way_out
from kafkalog.streaming.source.new_splits import new_splits
from kafkalog.streaming.source.plan.batch_plan import plan_batch
from kafkalog.streaming.source.plan.pruning import thin_split
from kafkalog.streaming.source.read_options import ReadOptions
from kafkalog.streaming.source.reading import read_split

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    import pyarrow as pa

    from kafkalog.streaming.source.plan.planner import LogSplit

__all__ = ["RecordReader", "producers_of_transaction", "read_in_threads"]

_TRANSACTIONS: Final = "__transaction_state"
_SAID_ALREADY: Final = {"assign", "subscribe", "subscribepattern"}


@dataclass(frozen=True, slots=True)
class RecordReader:
    """Reads all columns of records of some topics. Threads may share it."""

    options: ReadOptions
    wanted: RecordsWanted
    rows: RowSchema

    @classmethod
    def of(
        cls, given: Mapping[str, str], topics: Sequence[str], wanted: RecordsWanted
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
        with naming_way_out(self.options):
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


def read_in_threads(
    given: Iterable[LogSplit],
    read: Callable[[LogSplit], Iterable[pa.RecordBatch]],
    told: Callable[[int, int], object] = lambda _done, _size: None,
) -> Iterator[pa.RecordBatch]:
    """Read splits in threads, a few ahead, and return their batches in order.

    ``told`` is called with the bytes that are done, and with those of all.
    """
    splits = deque(given)
    size, done = sum(split.size for split in splits), 0
    told(done, size)
    cores = available_cores()
    running: deque[tuple[int, Future[list[pa.RecordBatch]]]] = deque()
    with system.pool(cores, "kafkalog-read") as pool:
        try:
            while splits or running:
                while splits and len(running) < 2 * cores:
                    split = splits.popleft()
                    running.append((split.size, pool.submit(lambda each: [*read(each)], split)))
                split_size, future = running.popleft()
                yield from future.result()
                done += split_size
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
    with naming_way_out(options):
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
