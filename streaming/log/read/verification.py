"""Verify a segment: every batch, and every index entry against the batches.

Readers verify what an index entry leads them to, and scan where it misleads them. Here everything
is looked at, and everything is reported that would cost a reader a scan or an error.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.errors import CorruptIndexError, CorruptRecordError, KafkaLogError
from kafkalog.files.open_file import open_file
from kafkalog.model import MAX_OFFSET
from kafkalog.streaming.log.files import OFFSET_INDEX, TIME_INDEX
from kafkalog.streaming.log.indexes import REBUILD, OffsetIndex, TimeIndex
from kafkalog.streaming.log.segment import Chunk, first_offsets, misplaced
from kafkalog.streaming.log.valid_batches import ValidBatches, ends_in_zeros
from kafkalog.streaming.records import decode_kernels as kernels
from kafkalog.streaming.records.batch import invalid_checksums, scan_batches
from kafkalog.streaming.records.batch_layout import DELETE_HORIZON_MASK, HEADER_SIZE, MAGIC
from kafkalog.streaming.records.columns import (
    FAULTS,
    BatchGroups,
    Columns,
    RecordDecoder,
    sections_of,
)
from kafkalog.streaming.records.compression import DEFAULT_LIMIT, Codec
from kafkalog.streaming.records.jit.kernel import as_python, count_in_python, kernels_pay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from kafkalog.streaming.log.segment import LogSegment
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers
    from kafkalog.streaming.records.batch import BatchTable

__all__ = ["RecordCheck", "SegmentCheck", "check_segment", "check_segments"]

_FEW_BYTES: Final = 500
"""Of records that are walked over in Python, before a kernel is loaded for more."""

_NAMED: Final = 5
"""Batches of a segment that are named: where one client wrote them, all of its may be alike."""


class SegmentCheck(NamedTuple):
    """What a check of a segment came to; batches and bytes are those of its valid batches.

    ``is_broken`` says that batches are wrong, and not only what an index says of them. ``headers``
    are problems, too: of batches whose headers disagree with their records, which are read.
    """

    problems: list[str]
    batches: int
    bytes: int
    is_broken: bool = False
    headers: tuple[str, ...] = ()


def check_segment(
    segment: LogSegment, next_base_offset: int | None, *, records: RecordCheck | None = None
) -> SegmentCheck:
    """Say what is wrong with a segment; ``next_base_offset`` is that of the one after it.

    Only with ``records``, which checks of many segments may share, are records decoded, and held
    against the headers of their batches.
    Bytes that are no valid batch end the check: what follows them is not looked at. Zeros up to the
    end of the file are right if no offsets are missing after them: a broker preallocates its active
    segment, and a copy of a running broker's log has it so.

    Raises:
        FileNotFoundError: the segment is gone.
    """
    problems: list[str] = []
    with segment:
        checks = [
            check
            for kind in (_OffsetCheck, _TimeCheck)
            if (check := _opened(kind, segment, problems)) is not None
        ]
        valid, batches = ValidBatches(segment), 0
        if records is not None:
            records.begin(segment.place())
        for chunk in valid.chunks():
            batches += len(chunk.table)
            for check in checks:
                check.compare(chunk.table)
            if records is not None:
                records.compare(chunk)
        next_offset, size, broken = valid.end
        is_whole = next_base_offset in {None, next_offset}
        if broken is not None and not (is_whole and ends_in_zeros(segment, size)):
            found = SegmentCheck([str(broken)], batches, size, is_broken=True)
            return found if records is None else records.added_to(found)
    overlap = _overlap(segment, next_base_offset, next_offset)
    problems += overlap
    problems += [problem for check in checks if (problem := check.problem(next_offset)) is not None]
    found = SegmentCheck(problems, batches, size, is_broken=bool(overlap))
    return found if records is None else records.added_to(found)


def check_segments(
    segments: Iterable[tuple[LogSegment, LogSegment | None]],
    check_alone: Callable[[LogSegment, LogSegment | None], SegmentCheck],
    records: RecordCheck,
) -> Iterator[tuple[LogSegment, SegmentCheck]]:
    """Check the segments of logs in their order, each of which comes with its follower.

    The last one of a log comes with None, and the next log begins after it. Small segments are
    checked many at a time, which costs a tenth. Where anything is odd about one of them, each is
    checked by ``check_alone``, which says what.
    """
    run: list[_SmallSegment] = []
    for segment, follower in segments:
        small = _read_small(segment, follower)
        if small is not None:
            run.append(small)
        if small is None or len(run) == _RUN_SEGMENTS:
            yield from _check_run(run, check_alone, records)
            run = []
        if small is None:
            yield segment, check_alone(segment, follower)
    yield from _check_run(run, check_alone, records)


def _check_run(
    run: Sequence[_SmallSegment],
    check_alone: Callable[[LogSegment, LogSegment | None], SegmentCheck],
    records: RecordCheck,
) -> Iterator[tuple[LogSegment, SegmentCheck]]:
    counts = _count_sound_batches(run, records) if len(run) > 1 else None
    for number, small in enumerate(run):
        if counts is None:
            yield small.segment, check_alone(small.segment, small.follower)
        else:
            yield small.segment, SegmentCheck([], counts[number], len(small.log))


def _overlap(segment: LogSegment, next_base_offset: int | None, next_offset: int) -> list[str]:
    if next_base_offset is None or next_offset <= next_base_offset:
        return []
    text = f"{segment.path} ends at offset {next_offset}, but the next segment begins at "
    return [f"{text}{next_base_offset}"]


# ----------------------------------------------------------------------------------------------
# Hold headers against records.
#
# Old clients and brokers wrote headers that say otherwise than their records. Readers go by the
# records; seeks by time and retention go by the header. A count that is wrong is refused (Kafka
# ``DefaultRecordBatch.RecordIterator``). A cleaner takes records out and keeps the last offset, so
# a header may reach further than the records do, if some are missing.


class RecordCheck:
    """Decodes each batch of a segment once, in pieces of bounded size; one segment at a time.

    What it decodes into costs more than a small segment: it is kept for the next one.
    """

    def __init__(self) -> None:
        self._groups = BatchGroups(DEFAULT_LIMIT, are_kept=False)
        self._decoder = RecordDecoder(Columns.OFFSET | Columns.TIMESTAMP_MS, check_crcs=False)
        self.begin(Path())

    def begin(self, path: Path | str) -> None:
        """Turn to the segment of another file, of which nothing was found yet."""
        self._path = path
        self._broken = _Named("more batches that cannot be read")
        self._odd = _Named("more batches with such headers")
        self._found: list[tuple[int, _Named, str]] = []

    def added_to(self, found: SegmentCheck) -> SegmentCheck:
        """Return what was found before, and what is wrong with records."""
        broken, odd = self._broken.texts(), tuple(self._odd.texts())
        is_broken = found.is_broken or bool(broken)
        problems = [*found.problems, *broken]
        return found._replace(problems=problems, is_broken=is_broken, headers=odd)

    @property
    def has_found_nothing(self) -> bool:
        """Whether nothing is wrong with the records that it was given since it began."""
        return not self._broken.texts() and not self._odd.texts()

    def compare(self, chunk: Chunk) -> None:
        """Check whole batches."""
        table = chunk.table
        is_new = table.magic == MAGIC
        is_plain = is_new & (table.codec == Codec.NONE)
        if not is_new.all():
            self._decode_messages(chunk, table[~is_new])
        if is_plain.any():
            plain = table[is_plain]
            starts = plain.position - chunk.file_position + HEADER_SIZE
            self._measure(plain, chunk.data, starts, plain.end_position - chunk.file_position)
        if (is_packed := is_new & ~is_plain).any():
            self._decompress(chunk, table[is_packed])
        for _, named, text in sorted(self._found, key=lambda each: each[0]):
            named.add(text)
        self._found.clear()

    def _decode_messages(self, chunk: Chunk, table: BatchTable) -> None:
        """Decode messages of magic 0 and 1; a compressed one of magic 1 tells its latest time."""
        while len(table):
            damaged = len(table)
            largest = np.full(len(table), np.iinfo(np.int64).min)
            try:
                for rows in self._decoder.decode(
                    chunk.data, table, file_position=chunk.file_position, path=str(self._path)
                ):
                    offsets, times = (
                        rows.column(name).to_numpy() for name in ("offset", "timestampMs")
                    )
                    np.maximum.at(largest, np.searchsorted(table.last_offset, offsets), times)
            except CorruptRecordError as error:
                self._found.append((error.position, self._broken, str(error)))
                damaged = int(np.searchsorted(table.position, error.position))
            late = (table.magic == 1) & (table.max_timestamp < largest)
            for row in np.flatnonzero(late[:damaged]).tolist():
                self._note_odd(table, row, _late_text(table, row, largest))
            table = table[damaged + 1 :]

    def _decompress(self, chunk: Chunk, table: BatchTable) -> None:
        while len(table):
            done = 0
            starts = table.position - chunk.file_position + HEADER_SIZE
            try:
                for source, ends in self._groups.groups(
                    chunk.data, starts, table.size - HEADER_SIZE, table.codec
                ):
                    group = table[done : done + len(ends)]
                    self._measure(group, source, np.concatenate(([0], ends[:-1])), ends)
                    done += len(ends)
            except CorruptRecordError as error:
                self._note_broken(table, done, str(error))
                table = table[done + 1 :]
            else:
                return

    def _measure(self, table: BatchTable, source: Bytes, starts: Integers, ends: Integers) -> None:
        """Check batches of magic 2 whose records lie in ``source[starts[i]:ends[i]]``."""
        measures = np.empty((len(table), kernels.MEASURES), np.int64)
        measure, size = kernels.measure_records, int((ends - starts).sum())
        if size <= _FEW_BYTES and not kernels_pay():
            measure = as_python(measure)
            count_in_python(size)  # a byte of records for a batch: little more is done so
        measure(source, sections_of(table, starts, ends), measures)
        faults, records = measures[:, kernels.FAULT], measures[:, kernels.RECORDS]
        is_sound = faults == kernels.DONE
        if is_sound.all() and (records == table.count).all():  # as nearly always
            self._compare_ends(table, measures)
            return
        for row in np.flatnonzero(~is_sound).tolist():
            text = f"{FAULTS[int(faults[row])]} (record {records[row]} of it)"
            self._note_broken(table, row, text)
        for row in np.flatnonzero(is_sound & (records != table.count)).tolist():
            text = f"its header says {table.count[row]} records, and it holds {records[row]}"
            self._note_broken(table, row, text)
        self._compare_ends(table[is_sound], measures[is_sound])

    def _compare_ends(self, table: BatchTable, measures: Integers) -> None:
        """Compare the last offsets and the timestamps of batches whose records could be walked."""
        _, records, last_delta, largest, has_base = measures.T
        last_offset = table.base_offset + last_delta
        has_all = records == last_delta + 1
        has_times = (records > 0) & ~table.is_log_append_time
        has_horizon = table.attributes & DELETE_HORIZON_MASK != 0
        last = last_offset > table.last_offset
        base = has_times & has_all & (has_base == 0) & ~has_horizon
        most = has_times & (
            (table.max_timestamp < largest) | has_all & (table.max_timestamp > largest)
        )
        odd = last | base | most
        for row in np.flatnonzero(odd).tolist() if odd.any() else ():
            texts = []
            if last[row]:
                texts.append(
                    f"last offset {table.last_offset[row]}, and its records end at "
                    f"{last_offset[row]}"
                )
            if base[row]:
                texts.append(f"base timestamp {table.base_timestamp[row]}, which no record has")
            if most[row]:
                texts.append(_late_text(table, row, largest))
            self._note_odd(table, row, "; ".join(texts))

    def _note_broken(self, table: BatchTable, row: int, text: str) -> None:
        position = int(table.position[row])
        self._found.append(
            (position, self._broken, f"{self._path}: {_batch(table, row)} is damaged: {text}")
        )

    def _note_odd(self, table: BatchTable, row: int, text: str) -> None:
        position = int(table.position[row])
        self._found.append(
            (position, self._odd, f"{self._path}: the header of {_batch(table, row)} has {text}")
        )


def _late_text(table: BatchTable, row: int, largest: Integers) -> str:
    return (
        f"maximum timestamp {table.max_timestamp[row]}, and its records' largest timestamp is "
        f"{largest[row]}"
    )


def _batch(table: BatchTable, row: int) -> str:
    offsets = f"{table.base_offset[row]} to {table.last_offset[row]}"
    return f"the batch at position {table.position[row]} (offsets {offsets})"


class _Named:
    """The first problems of a kind, and how many there are."""

    def __init__(self, others: str) -> None:
        self._others = others
        self._texts: list[str] = []
        self._count = 0

    def add(self, text: str) -> None:
        self._count += 1
        if self._count <= _NAMED:
            self._texts.append(text)

    def texts(self) -> list[str]:
        rest = self._count - len(self._texts)
        return [*self._texts, *([f"{rest:,} {self._others}"] if rest else [])]


# ----------------------------------------------------------------------------------------------
# Hold the entries of indexes against batches.


class _Entries(NamedTuple):
    """All entries of an index: absolute offsets, and the other field; int64[n] each."""

    path: Path | str
    offsets: npt.NDArray[np.int64]
    others: npt.NDArray[np.int64]


class _Check:
    """Holds the entries of one index against batches that come in order."""

    INDEX: type[OffsetIndex | TimeIndex]
    SUFFIX: str
    OTHER: str

    def __init__(self, entries: _Entries) -> None:
        self._entries = entries
        self._next = 0
        self._wrong: int | None = None

    def compare(self, table: BatchTable) -> None:
        """Check the entries that lead into these batches."""
        if not len(self._entries.offsets):
            return
        end = self._next + self._count(table, self._next)
        mine = slice(self._next, end)
        wrong = ~self._fit(table, self._entries.offsets[mine], self._entries.others[mine])
        if self._wrong is None and wrong.any():
            self._wrong = self._next + int(wrong.argmax())
        self._next = end

    def problem(self, next_offset: int) -> str | None:
        """Return which entry is wrong first, if any; the last batch ends before ``next_offset``."""
        path, offsets, others = self._entries
        wrong = self._wrong
        if wrong is None:
            wrong = min(self._next, int(np.searchsorted(offsets, next_offset)))
        if wrong == len(offsets):
            return None
        return (
            f"{path}: entry {wrong} of {len(offsets)} (offset {offsets[wrong]}, {self.OTHER} "
            f"{others[wrong]}) does not fit the batches in the log; {REBUILD}"
        )

    def _count(self, table: BatchTable, first: int) -> int:
        raise NotImplementedError

    def _fit(
        self,
        table: BatchTable,
        offsets: npt.NDArray[np.int64],
        others: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        raise NotImplementedError


class _OffsetCheck(_Check):
    """A batch begins at the position, and all before it end below the offset.

    It has the offset, or later ones of its append do; up to Kafka 1.1 it was the append's first.
    Of a wrapper the header has the last one only: where it begins, the batch before tells.
    """

    INDEX, SUFFIX, OTHER = OffsetIndex, OFFSET_INDEX, "position"
    _ended = -1

    def _count(self, table: BatchTable, first: int) -> int:
        end = int(table.end_position[-1])
        return int(np.searchsorted(self._entries.others[first:], end))

    def _fit(
        self,
        table: BatchTable,
        offsets: npt.NDArray[np.int64],
        others: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        slots = np.searchsorted(table.position, others, side="right") - 1
        earliest = np.concatenate(([self._ended], table.last_offset[:-1])) + 1
        self._ended = int(table.last_offset[-1])
        first = np.where(table.magic == MAGIC, table.base_offset, earliest)
        fits: npt.NDArray[np.bool_] = (
            (slots >= 0) & (table.position[slots] == others) & (first[slots] <= offsets)
        )
        return fits


class _TimeCheck(_Check):
    """The batch that holds the offset has the timestamp as its largest, or is of magic 0.

    Brokers index when they append messages that have no timestamps, with LogAppendTime.
    """

    INDEX, SUFFIX, OTHER = TimeIndex, TIME_INDEX, "timestamp"

    def _count(self, table: BatchTable, first: int) -> int:
        last = table.last_offset[-1]
        return int(np.searchsorted(self._entries.offsets[first:], last, side="right"))

    def _fit(
        self,
        table: BatchTable,
        offsets: npt.NDArray[np.int64],
        others: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.bool_]:
        slots = np.searchsorted(table.last_offset, offsets)
        fits: npt.NDArray[np.bool_] = (table.max_timestamp[slots] == others) | (
            table.magic[slots] == 0
        )
        return fits


def _opened(kind: type[_Check], segment: LogSegment, problems: list[str]) -> _Check | None:
    """Read an index whole; what keeps it from being read joins the problems."""
    path = segment.place(kind.SUFFIX)
    try:
        with kind.INDEX(path, segment.base_offset) as index:
            entries = index.read(0, len(index))
    except FileNotFoundError:
        problems.append(f"{path} is missing; {REBUILD}")
        return None
    except CorruptIndexError as error:
        problems.append(str(error))
        return None
    offsets = entries["offset"].astype(np.int64) + segment.base_offset
    others = entries[kind.OTHER].astype(np.int64)
    if len(entries) < 2:
        return kind(_Entries(path, offsets, others))
    back = np.flatnonzero(_go_back(offsets, others))
    if len(back):
        problems.append(
            f"{path}: entry {back[0] + 1} of {len(offsets)} does not follow the one before; "
            f"{REBUILD}"
        )
        return None
    return kind(_Entries(path, offsets, others))


def _go_back(offsets: Integers, others: Integers) -> npt.NDArray[np.bool_]:
    """Return which entries, from the second one on, do not follow the one before."""
    back: npt.NDArray[np.bool_] = (offsets[1:] <= offsets[:-1]) | (others[1:] <= others[:-1])
    return back


# ----------------------------------------------------------------------------------------------
# Check many small segments at once.
#
# What an array costs, whatever its length, is most of the check of a segment of a few batches. So
# the files of many are joined, and checked as one: positions count from the first one's beginning,
# and offsets ascend through all of them. They do so anyway in one log; where there are more, each
# is moved to the end of the one before. Here it is only found out whether all are sound.


_SMALL_BYTES: Final = 16 << 10
_RUN_SEGMENTS: Final = 256
"""So at most 12 MiB are held."""


class _SmallSegment(NamedTuple):
    """A segment whose files were read whole; ``follower`` is None for the last one of a log."""

    segment: LogSegment
    follower: LogSegment | None
    log: bytes
    offset_index: bytes
    time_index: bytes


def _read_small(segment: LogSegment, follower: LogSegment | None) -> _SmallSegment | None:
    """Read the files of a segment, if it has all of them, and none is large.

    The log comes last: entries that are written later point into bytes that were not read.
    """
    found = []
    try:
        with closing(open_file(segment.place())) as log:
            if log.opened_size > _SMALL_BYTES:
                return None
            for kind in (OFFSET_INDEX, TIME_INDEX):
                with closing(open_file(segment.place(kind))) as index:
                    if index.opened_size > _SMALL_BYTES:
                        return None
                    found.append(index.peek(0, index.opened_size))
            if not log.opened_size and any(found):
                return None
            return _SmallSegment(segment, follower, log.peek(0, _SMALL_BYTES), *found)
    except (KafkaLogError, OSError):
        return None


def _count_sound_batches(run: Sequence[_SmallSegment], records: RecordCheck) -> list[int] | None:
    """Count the batches of each segment; None unless all that is to be checked of all is right."""
    filled, ends_log = _filled(run)
    if not filled:
        return [0] * len(run)
    found = _count_in_filled(filled, ends_log, records)
    if found is None:
        return None
    counts = iter(found)
    return [next(counts) if small.log else 0 for small in run]


def _filled(run: Sequence[_SmallSegment]) -> tuple[list[_SmallSegment], list[bool]]:
    """Leave out empty segments; also return of which of the others nothing follows in its log."""
    filled: list[_SmallSegment] = []
    ends_log: list[bool] = []
    for small in run:
        if small.log:
            filled.append(small)
            ends_log.append(small.follower is None)
        elif ends_log:
            ends_log[-1] |= small.follower is None
    return filled, ends_log


def _count_in_filled(
    run: Sequence[_SmallSegment], ends_log: Sequence[bool], records: RecordCheck
) -> list[int] | None:
    sizes = np.array([len(small.log) for small in run])
    starts = np.cumsum(sizes) - sizes
    data = np.frombuffer(bytearray().join(small.log for small in run), np.uint8)
    scan = scan_batches(data)
    table = scan.table
    if scan.consumed != len(data) or not np.isin(starts, table.position).all():
        return None  # a batch is damaged, or cut off at the end of its file
    first = np.searchsorted(table.position, starts)
    end = np.append(first[1:], len(table))
    bases = np.array([small.segment.base_offset for small in run])
    spans = _Spans(starts, bases, table.last_offset[end - 1] + 1)
    limits = [small.follower.base_offset if small.follower else MAX_OFFSET for small in run]
    if (first_offsets(table)[first] < bases).any() or (spans.next_offsets > limits).any():
        return None
    moves = _moves(spans, ends_log)
    if moves.any():
        if (table.magic != MAGIC).any():  # offsets in messages are absolute
            return None
        table = table.moved(np.repeat(moves, end - first))
        spans = spans.moved(moves)
    if (
        misplaced(table, int(bases[0]) - 1, MAX_OFFSET).any()
        or invalid_checksums(data, table).any()
    ):
        return None
    for check in _OffsetCheck, _TimeCheck:
        if not _are_sound(check, run, spans, table):
            return None
    records.begin("")
    records.compare(Chunk(data, table, 0))
    return (end - first).tolist() if records.has_found_nothing else None


class _Spans(NamedTuple):
    """Where segments lie that are joined; int64[n] each."""

    starts: Integers
    base_offsets: Integers
    next_offsets: Integers

    def moved(self, moves: Integers) -> _Spans:
        """Return where they lie when so much is added to the offsets of each."""
        return _Spans(self.starts, self.base_offsets + moves, self.next_offsets + moves)


def _moves(spans: _Spans, ends_log: Sequence[bool]) -> Integers:
    """Return what to add to the offsets of each segment, so that logs follow one another.

    That is 0 for the first log. Where logs are so long that the sums overflow, offsets go back.
    """
    log_ends = np.flatnonzero([*ends_log[:-1], True])
    log_starts = np.append(0, log_ends[:-1] + 1)
    begin, end = spans.base_offsets[log_starts], spans.next_offsets[log_ends]
    moves = np.append(0, end[:-1] - begin[1:]).cumsum()
    return np.repeat(moves, log_ends - log_starts + 1)


def _are_sound(
    kind: type[_Check], run: Sequence[_SmallSegment], spans: _Spans, table: BatchTable
) -> bool:
    """Return whether all entries of one kind of index are written, in order, and fit batches."""
    of_offsets = kind is _OffsetCheck
    files = [small.offset_index if of_offsets else small.time_index for small in run]
    sizes = np.array([len(each) for each in files])
    if (sizes % kind.INDEX.ENTRY.itemsize).any():
        return False
    entries = np.frombuffer(b"".join(files), kind.INDEX.ENTRY)
    of = np.repeat(np.arange(len(run)), sizes // kind.INDEX.ENTRY.itemsize)
    offsets = entries["offset"].astype(np.int64)
    others = entries[kind.OTHER].astype(np.int64)
    back = _go_back(offsets, others)
    if (offsets < 0).any() or (others <= 0).any() or (back & (of[1:] == of[:-1])).any():
        return False
    offsets += spans.base_offsets[of]
    if (offsets >= spans.next_offsets[of]).any():
        return False
    if of_offsets:
        others += spans.starts[of]
    check = kind(_Entries("", offsets, others))
    check.compare(table)
    return check.problem(int(spans.next_offsets[-1])) is None
