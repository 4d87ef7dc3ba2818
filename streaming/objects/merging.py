"""Merge what commits have left in pieces: into segments, and into objects that partitions share.

A partition whose tail fills a segment gets one, by the rules by which a local log rolls
(:mod:`~kafkalog.streaming.log.growth`). Partitions that come to less have their small
extents put together, those of many partitions in one object, sorted by partition.

Nobody waits for a merge. Its object has a name of its own, and readers see it once a commit names
it. If its sources have changed by then, or the process is killed, no commit does, and the sweep
deletes it. Bytes and offsets stay the same. So whatever was planned before can be read from the old
objects, until they are swept, and after that from the new ones.

How small extents are chosen: from the first one on that is not larger than all newer ones together,
if eight or more are left. So what a byte lies in doubles each time that it is written again, and a
partition has some thirty extents at most. Inline batches older than a day are merged in any case:
else no commit above the oldest of them could be deleted.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.checkpoints.bucket_state import (
    BucketCommit,
    Extent,
    SealedIndexes,
    data_name,
    find_range,
    number_of_commit,
    object_path,
    segment_name,
)
from kafkalog.errors import DataLossError, KafkaLogError
from kafkalog.files.system import system
from kafkalog.model import ALL_TOPICS, TopicPartition, TopicSelection
from kafkalog.streaming.log.files import LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX
from kafkalog.streaming.log.growth import (
    ADOPTED_BYTES,
    ADOPTED_SHARE,
    SegmentPlanning,
    SegmentState,
    roll_jitter_ms,
)
from kafkalog.streaming.log.indexes import OFFSET_ENTRY, TIME_ENTRY, known_entries
from kafkalog.streaming.objects.bucket_log import Proposal, is_void
from kafkalog.streaming.objects.numbered_extents import gone_error, number_batches
from kafkalog.streaming.objects.sweeping import first_inline, first_young
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.records.batch import scan_batches
from kafkalog.streaming.records.batch_layout import HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from kafkalog.checkpoints.bucket_state import BucketState, ExtentKey
    from kafkalog.files.objects import Objects
    from kafkalog.streaming.log.growth import SegmentAppend
    from kafkalog.streaming.objects.bucket_store import BucketRoot
    from kafkalog.streaming.records.batch import BatchTable

__all__ = [
    "ExtentReader",
    "Merged",
    "merge",
    "put_segment",
    "replacement",
    "sealed_indexes",
    "segment_pieces",
]

_DAY_MS: Final = 86_400_000
_LEAST_EXTENTS: Final = 8
"""Fewer small extents of a partition are left as they are."""
_SHARED_BYTES: Final = 32 << 20
"""What a shared object holds, more or less; an extent of that size stays until its segment."""
_ONE_RANGE_BYTES: Final = 8 << 20
_GAP_BYTES: Final = 64 << 10
_AT_A_TIME: Final = 4
_AHEAD_BYTES: Final = _AT_A_TIME * _ONE_RANGE_BYTES
"""How many bytes are asked for before they are needed."""
_MAX_RELATIVE_OFFSET: Final = 2**31 - 1

_LOGGER: Final = logging.getLogger("kafkalog.sink")


@dataclass(slots=True)
class Merged:
    """What was merged: sealed segments, shared objects, their bytes; ``problems`` say what not."""

    segments: int = 0
    objects: int = 0
    extents: int = 0
    """How many extents have become fewer."""
    bytes: int = 0
    problems: list[str] = field(default_factory=list)


class _Place(NamedTuple):
    """A partition: its topic's id, and what it is called."""

    topic_id: str
    where: TopicPartition

    @property
    def key(self) -> ExtentKey:
        return self.topic_id, self.where.partition


class _Run(NamedTuple):
    """Neighbouring extents of a partition that are to become one."""

    place: _Place
    extents: tuple[Extent, ...]

    @property
    def size(self) -> int:
        return sum(extent.size for extent in self.extents)


def merge(
    root: BucketRoot,
    *,
    topics: TopicSelection = ALL_TOPICS,
    config: Mapping[str, str] | None = None,
) -> Merged:
    """Merge what pays of topics; from any number of places at once.

    ``config``: settings by Kafka's names, for what was not given to the topics themselves.

    Raises:
        LogDirectoryError, CheckpointError: the log cannot be read. What is merged stays merged.
    """
    done = Merged()
    root.open_store().committed()  # else a log would be made where there is none
    merging = _Merging(root, config or {}, done)
    for place in merging.places(topics):
        try:
            while merging.seal_next(place):
                pass
        except (KafkaLogError, OSError) as error:
            done.problems.append(f"{place.where} was not merged: {error}")
    for runs in _grouped(merging.small_runs(topics)):
        try:
            merging.share(runs)
        except (KafkaLogError, OSError) as error:
            names = ", ".join(str(run.place.where) for run in islice(runs, 10))
            done.problems.append(f"{names} were not merged: {error}")
    return done


class _Merging:
    def __init__(self, root: BucketRoot, config: Mapping[str, str], done: Merged) -> None:
        self._root = root
        self._config = config
        self._done = done
        self._parsed: tuple[Mapping[str, str], LogConfig] = {}, LogConfig.of_topic({})
        with root.writing() as log:
            log.follow()
            self._objects, self._log_id = log.objects, log.state.log_id
            oldest = first_inline(log.state)
            self._young = oldest
            if oldest <= log.state.number:
                self._young = first_young(log, _DAY_MS, oldest - 1)

    def places(self, topics: TopicSelection) -> list[_Place]:
        """Return the partitions whose tail fills a segment, in an order of chance.

        Others who merge at the same time begin elsewhere.
        """
        with self._root.writing() as log:
            found = [each for each in _places(log.state, topics) if self._fills(log.state, each)]
        return sorted(found, key=lambda _: system.random_id().int)

    def _fills(self, state: BucketState, place: _Place) -> bool:
        config = self._settings(state, place)
        return _fills_segment(_tail(state, place), config, place.where)

    def _settings(self, state: BucketState, place: _Place) -> LogConfig:
        given = {**self._config, **state.topics[place.topic_id].settings}
        if self._parsed[0] != given:  # a topic has many partitions
            self._parsed = given, LogConfig.of_topic(given)
        return self._parsed[1]

    # Segments

    def seal_next(self, place: _Place) -> bool:
        """Merge the beginning of a tail into a segment; tell whether there may be another one."""
        with self._root.writing() as log:
            state = log.follow()
            if place.topic_id not in state.topics or not self._fills(state, place):
                return False
            tail, config = _tail(state, place), self._settings(state, place)
            newest = state.number
        reader = ExtentReader(self._objects, self._log_id)
        folder = f"{place.topic_id}/{place.where}"
        name = segment_name(folder, tail[0].base_offset, newest, system.random_id().hex)
        while True:
            stream = _SegmentStream(reader, place.where, config, tail)
            try:
                self._objects.put_pieces(object_path(self._log_id, name, LOG), stream.pieces)
                break
            except _NotFilledError:
                return False
            except _LargeBatchError as error:  # segment.bytes was more when it was appended
                config = replace(config, segment_bytes=error.size)
        for suffix, content in stream.indexes():
            self._objects.put(object_path(self._log_id, name, suffix), content)
        new = stream.extents(name)
        if not self._commit({place.key: (stream.taken, new)}):
            return False
        self._done.segments += 1
        self._done.bytes += new[0].size
        return True

    def _commit(self, changes: Mapping[ExtentKey, tuple[Sequence[Extent], list[Extent]]]) -> bool:
        """Put extents in the place of others, where those are as they were; tell if any was."""
        applied: dict[ExtentKey, list[Extent]] = {}

        def propose(state: BucketState) -> Proposal | None:
            applied.clear()
            for key, (old, new) in changes.items():
                if replacement(state, key, old):
                    applied[key] = new
            if not applied:
                return None
            return Proposal(BucketCommit(replaced=dict(applied)), is_known_again=True)

        with self._root.writing() as log:
            committed = log.commit(propose)
        if committed is None:
            return False
        for key, new in applied.items():
            self._done.extents += len(changes[key][0]) - len(new)
        return True

    # Shared objects

    def small_runs(self, topics: TopicSelection) -> list[_Run]:
        """Return what is to be put together: a run of each partition, then second ones."""
        with self._root.writing() as log:
            state = log.state
            found = [
                (turn, _Run(place, tuple(some)))
                for place in sorted(_places(state, topics))
                for turn, some in enumerate(_small_extents(_tail(state, place), self._young))
            ]
        return [run for _, run in sorted(found, key=lambda each: each[0])]

    def share(self, runs: Sequence[_Run]) -> None:
        """Put some runs into one object, and let it take the place of their extents."""
        with self._root.writing() as log:
            newest = log.state.number
        data = ExtentReader(self._objects, self._log_id).read_all(
            [extent for run in runs for extent in run.extents]
        )
        name = data_name(newest, system.random_id().hex)
        content = bytearray()
        changes: dict[ExtentKey, tuple[Sequence[Extent], list[Extent]]] = {}
        for run in runs:
            changes[run.place.key] = (run.extents, [_joined(run.extents, name, len(content))])
            for extent in run.extents:
                content += data[extent.object, extent.position]
        self._objects.put(object_path(self._log_id, name), bytes(content))
        if self._commit(changes):
            self._done.objects += 1
            self._done.bytes += len(content)


def _places(state: BucketState, topics: TopicSelection) -> Iterator[_Place]:
    for key, known in state.topics.items():
        if known.name in topics:
            for number in known.partitions:
                yield _Place(key, TopicPartition(known.name, number))


def _tail(state: BucketState, place: _Place) -> list[Extent]:
    """Return the extents of a partition that lie behind its sealed segments."""
    extents = state.extents.get(place.key, [])
    first = len(extents)
    while first and extents[first - 1].sealed is None:
        first -= 1
    return extents[first:]


def replacement(state: BucketState, key: ExtentKey, old: Sequence[Extent]) -> bool:
    """Whether a partition still has just these extents, one after the other."""
    known = state.extents.get(key, [])
    found = find_range(known, old[0].base_offset, old[-1].end_offset) if old else None
    return found is not None and known[found[0] : found[1]] == list(old)


def _fills_segment(tail: Sequence[Extent], config: LogConfig, where: TopicPartition) -> bool:
    """Whether a local log would have rolled somewhere in these extents, as far as they tell.

    By the number of entries in an index it may have: its batches tell.
    """
    if not tail:
        return False
    first, size = tail[0], sum(extent.size for extent in tail)
    adopted = max(ADOPTED_BYTES, config.segment_bytes // ADOPTED_SHARE)
    most_ms = config.max_segment_ms - roll_jitter_ms(where, first.base_offset, config)
    latest = max(extent.max_timestamp for extent in tail)
    most_entries = config.segment_index_bytes // TIME_ENTRY.itemsize - 1
    return (
        size > config.segment_bytes
        or any(extent.alone and extent.size >= adopted for extent in tail[1:])
        or (first.max_timestamp >= 0 and latest - first.max_timestamp > most_ms)
        or tail[-1].end_offset - first.base_offset > _MAX_RELATIVE_OFFSET
        or size // max(config.index_interval_bytes, HEADER_SIZE) >= most_entries
    )


def _small_extents(tail: Sequence[Extent], young: int) -> list[list[Extent]]:
    """Return the runs of a tail that are to become one extent each.

    ``young``: the first commit of which inline batches may stay where they are.
    """
    found: list[list[Extent]] = []
    stretch: list[Extent] = []
    for extent in [*tail, None]:
        if extent is not None and not _stays(extent) and _continues(stretch, extent):
            stretch.append(extent)
            continue
        found += _chosen(stretch, young)
        stretch = [] if extent is None or _stays(extent) else [extent]
    return found


def _stays(extent: Extent) -> bool:
    """Whether an extent is left for its segment; a local log may adopt a run that lies alone."""
    return extent.size >= _SHARED_BYTES or (extent.alone and extent.size >= ADOPTED_BYTES)


def _continues(stretch: Sequence[Extent], extent: Extent) -> bool:
    if not stretch:
        return True
    last = stretch[-1]
    is_alike = (last.leader_epoch, last.has_offsets) == (extent.leader_epoch, extent.has_offsets)
    return is_alike and extent.end_offset - stretch[0].base_offset <= _MAX_RELATIVE_OFFSET


def _chosen(stretch: list[Extent], young: int) -> list[list[Extent]]:
    """Choose the newest extents of a stretch, and before them what is old and inline."""
    newer, first = sum(extent.size for extent in stretch), len(stretch)
    for slot, extent in enumerate(stretch):
        newer -= extent.size
        if extent.size <= newer:
            first = slot
            break
    some = stretch[first:] if len(stretch) - first >= _LEAST_EXTENTS else []
    rest = stretch[:first] if some else stretch
    old = [slot for slot, extent in enumerate(rest) if _is_old(extent, young)]
    runs = [rest[old[0] : old[-1] + 1]] if old else []
    return [run for run in (*runs, some) if run]


def _is_old(extent: Extent, young: int) -> bool:
    folder, _, name = extent.object.rpartition("/")
    number = number_of_commit(name) if folder == "commits" else None
    return number is not None and number < young


def _grouped(runs: Sequence[_Run]) -> Iterator[list[_Run]]:
    """Yield the runs of one object each; of a partition it has one."""
    group: list[_Run] = []
    size = 0
    for run in runs:
        is_next_turn = bool(group) and run.place <= group[-1].place
        if group and (is_next_turn or size + run.size > _SHARED_BYTES):
            yield group
            group, size = [], 0
        group.append(run)
        size += run.size
    if group:
        yield group


def _joined(extents: Sequence[Extent], name: str, position: int) -> Extent:
    first = extents[0]
    return Extent(
        name,
        position,
        sum(extent.size for extent in extents),
        first.base_offset,
        extents[-1].end_offset - first.base_offset,
        max(extent.max_timestamp for extent in extents),
        first.leader_epoch,
        has_offsets=first.has_offsets,
    )


# ----------------------------------------------------------------------------------------------
# Bytes.


class ExtentReader:
    """Reads extents: those beside each other in one request, a few requests at a time."""

    def __init__(self, objects: Objects, log_id: str) -> None:
        self._objects = objects
        self._log_id = log_id
        self._seen_s = system.time_ns() / 1e9
        """By when the log was seen to have the extents."""

    def read_all(self, extents: Sequence[Extent]) -> dict[tuple[str, int], bytes]:
        """Return the batches of extents by object and position, once they were looked at."""
        ordered = sorted(extents, key=lambda each: (each.object, each.position))
        found = {}
        for some, parts in self._fetched(ordered):
            for extent, data in zip(some, parts, strict=True):
                self._numbered(extent, data)
                found[extent.object, extent.position] = data
        return found

    def in_order(self, extents: Sequence[Extent]) -> Iterator[tuple[Extent, bytes]]:
        """Yield the batches of extents with their offsets, in their order."""
        for some, parts in self._fetched(extents):
            for extent in some:
                yield extent, self._numbered(extent, parts.pop(0))

    def _numbered(self, extent: Extent, data: bytes) -> bytes:
        return bytes(number_batches(data, extent, self._name(extent)))

    def _name(self, extent: Extent) -> str:
        return f"{self._objects.root}/{object_path(self._log_id, extent.object)}"

    def _fetched(self, extents: Sequence[Extent]) -> Iterator[tuple[list[Extent], list[bytes]]]:
        """Yield extents with their bytes, of which so many come ahead; a large one comes alone."""
        waiting = deque((some, sum(extent.size for extent in some)) for some in _ranges(extents))
        coming: deque[tuple[list[Extent], int, Future[list[bytes]]]] = deque()
        pool = system.pool(_AT_A_TIME, "kafkalog-merge")
        ahead = 0
        try:
            while waiting or coming:
                while waiting and (not coming or ahead + waiting[0][1] <= _AHEAD_BYTES):
                    some, size = waiting.popleft()
                    coming.append((some, size, pool.submit(self._fetch, some)))
                    ahead += size
                some, size, fetched = coming.popleft()
                ahead -= size
                parts = fetched.result()
                del fetched  # who gets the parts may take them out
                yield some, parts
        finally:
            pool.shutdown()

    def _fetch(self, some: list[Extent]) -> list[bytes]:
        first = some[0].position
        size = some[-1].position + some[-1].size - first
        data = self._objects.get_range(object_path(self._log_id, some[0].object), first, size)
        if data is None or is_void(self._objects, self._log_id, some[0].object, self._seen_s):
            raise gone_error(some[0], self._name(some[0]))
        return [bytes(data[e.position - first : e.position - first + e.size]) for e in some]


def _ranges(extents: Sequence[Extent]) -> Iterator[list[Extent]]:
    some: list[Extent] = []
    for extent in extents:
        if some and not _is_near(some, extent):
            yield some
            some = []
        some.append(extent)
    if some:
        yield some


def _is_near(some: Sequence[Extent], extent: Extent) -> bool:
    end = some[-1].position + some[-1].size
    size = extent.position + extent.size - some[0].position
    is_same = extent.object == some[0].object and end <= extent.position <= end + _GAP_BYTES
    return is_same and size <= _ONE_RANGE_BYTES


class _NotFilledError(Exception):
    """The tail does not fill a segment after all: nothing is put."""


class _LargeBatchError(Exception):
    """A batch is larger than a segment may be."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class _SegmentStream:
    """The first segment that a tail fills, while it is written; known once it is complete."""

    def __init__(
        self,
        reader: ExtentReader,
        where: TopicPartition,
        config: LogConfig,
        tail: Sequence[Extent],
    ) -> None:
        self._reader = reader
        self._where = where
        self._config = config
        self._tail = tail
        self.taken: list[Extent] = []
        """The extents that it is made of; of the last one perhaps a part."""
        self._rest: list[Extent] = []
        self._end_offset = 0
        self._max_timestamp = -1
        self._segment: SegmentAppend | None = None

    def pieces(self) -> Iterator[bytes]:
        """Yield its bytes.

        Raises:
            _NotFilledError: no batch of the tail begins another one.
            _LargeBatchError: a batch would not fit the largest segment.
        """
        now_ms = system.time_ns() // 1_000_000
        planning = SegmentPlanning(self._where, self._config, now_ms)
        planning.begin(SegmentState.empty(self._tail[0].base_offset, now_ms), creates=True)
        self.taken, self._rest, self._max_timestamp = [], [], -1
        for run, (extent, data) in enumerate(self._reader.in_order(self._tail)):
            table = scan_batches(np.frombuffer(data, np.uint8)).table
            if (largest := int(table.size.max())) > self._config.segment_bytes:
                raise _LargeBatchError(largest)
            if not (extent.alone and planning.adopt(run, table)):
                planning.append(run, table)
            if not planning.sealed:
                self.taken.append(extent)
                self._max_timestamp = max(self._max_timestamp, extent.max_timestamp)
                yield data
                continue
            self._segment = planning.sealed[0]
            size = sum(part.size for part in self._segment.parts if part.run == run)
            self._end_offset = self.taken[-1].end_offset if self.taken else extent.base_offset
            if size:
                self._cut(extent, table, size)
                yield data[:size]
            return
        raise _NotFilledError

    def _cut(self, extent: Extent, table: BatchTable, size: int) -> None:
        """Take the first batches of an extent; the others stay where they are."""
        rows = int(np.searchsorted(table.end_position, size, side="right"))
        self._end_offset = int(table.last_offset[rows - 1]) + 1
        self._max_timestamp = max(self._max_timestamp, int(table.max_timestamp[:rows].max()))
        self.taken.append(extent)
        if rows == len(table):
            return
        base = int(table.base_offset[rows])
        rest = extent._replace(
            position=extent.position + size,
            size=extent.size - size,
            base_offset=base,
            records=extent.end_offset - base,
            max_timestamp=int(table.max_timestamp[rows:].max()),
            alone=False,
        )
        self._rest = [rest]

    def indexes(self) -> Iterator[tuple[str, bytes]]:
        """Yield its indexes, as a local log has them."""
        assert self._segment is not None  # noqa: S101 - its bytes were put
        yield OFFSET_INDEX, self._segment.index_entries
        yield TIME_INDEX, self._segment.time_index_entries

    def extents(self, name: str) -> list[Extent]:
        """Return what takes the place of the extents: itself, and what is left of the last one."""
        assert self._segment is not None  # noqa: S101 - its bytes were put
        base = self._segment.base_offset
        indexes = sealed_indexes(self._segment.index_entries, self._segment.time_index_entries)
        sealed = Extent(
            name,
            0,
            self._segment.size,
            base,
            self._end_offset - base,
            self._max_timestamp,
            self._tail[0].leader_epoch,
            sealed=indexes,
        )
        return [sealed, *self._rest]


def sealed_indexes(offsets: bytes, times: bytes, txn_bytes: int = 0) -> SealedIndexes:
    """Return what the state keeps of the indexes of a segment."""
    return SealedIndexes(
        len(offsets),
        len(times),
        txn_bytes,
        known_entries(offsets, OFFSET_ENTRY.itemsize),
        known_entries(times, TIME_ENTRY.itemsize),
    )


def segment_pieces(
    objects: Objects, log_id: str, extent: Extent
) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the files of a sealed segment by their suffixes, with their bytes in pieces."""
    sealed = extent.sealed
    assert sealed is not None  # noqa: S101 - who calls it has looked
    sizes = (extent.size, sealed.offset_bytes, sealed.time_bytes, sealed.txn_bytes)
    for suffix, size in zip((LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX), sizes, strict=True):
        if size or suffix != TXN_INDEX:
            yield suffix, _ranges_of(objects, object_path(log_id, extent.object, suffix), size)


def _ranges_of(objects: Objects, path: str, size: int) -> Iterator[bytes]:
    for position in range(0, size, _ONE_RANGE_BYTES):
        data = objects.get_range(path, position, min(_ONE_RANGE_BYTES, size - position))
        if data is None:
            raise DataLossError(f"{objects.root}/{path} is gone, which the log names, or named")
        yield bytes(data)


def put_segment(root: BucketRoot, name: str, files: Sequence[Path]) -> None:
    """Put the files of a segment under its name, some of their bytes at a time."""
    with root.writing() as log:
        objects, log_id = log.objects, log.state.log_id
    for file in files:
        objects.put_pieces(object_path(log_id, name, file.suffix), partial(_pieces_of, file))


def _pieces_of(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while piece := opened.read(_ONE_RANGE_BYTES):
            yield piece
