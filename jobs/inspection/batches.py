"""What ``verify`` and ``dump`` show of batches and of single files, as rows of plain values."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from contextlib import contextmanager, suppress
from enum import StrEnum
from functools import partial
from itertools import islice, product, zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafkalog.checkpoints.broker import (
    OFFSET_CHECKPOINTS,
    PARTITION_METADATA,
    RECOVERY_POINT,
    read_offset_checkpoint,
    read_topic_id,
)
from kafkalog.checkpoints.committed import Committed, load_committed
from kafkalog.errors import (
    CheckpointError,
    CommitError,
    CorruptRecordError,
    KafkaLogError,
    OptionError,
)
from kafkalog.jobs.inspection.log_dirs import (
    ends_of,
    log_dirs_of,
    partitions_of,
    say_missing,
    tiered_rows,
    unverified_rows,
)
from kafkalog.model import (
    ALL_TOPICS,
    INTERNAL_TOPICS,
    MAX_OFFSET,
    TopicPartition,
    TopicSelection,
    listed,
)
from kafkalog.streaming.admin.nodes.replicas import compare_replicas
from kafkalog.streaming.commit.tail_recovery import TailRecovery
from kafkalog.streaming.log.files import (
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    parse_base_offset,
)
from kafkalog.streaming.log.indexes import OffsetIndex, TimeIndex, TxnIndex
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.producer_state import read_snapshot
from kafkalog.streaming.log.read.verification import (
    RecordCheck,
    SegmentCheck,
    check_segment,
    check_segments,
)
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segments import LogSegments
from kafkalog.streaming.log.valid_batches import ends_in_zeros
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.records.batch_rows import BatchDescriber
from kafkalog.streaming.store.ends.recorded import BrokerMarks
from kafkalog.streaming.store.ends.tracker import say_tiered
from kafkalog.streaming.store.recovery.partition_states import epochs_problem, known_topic_id

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.ends.rule import OffsetGap
    from kafkalog.streaming.store.ends.tracker import LogEndTracker


__all__ = [
    "Fault",
    "Verified",
    "dump_batches",
    "dump_file",
    "offsets_there",
    "summary_of",
    "verified",
    "verify_logs",
]


# ----------------------------------------------------------------------------------------------
# What is in a single file of a partition's folder, as rows of plain values.


Row = dict[str, Any]

_LOGGER: Final = logging.getLogger("kafkalog.jobs")
_ENTRIES: Final = 8192


def dump_file(path: Path, start: int, count: int | None) -> Iterator[Row]:
    """Yield up to ``count`` rows (None for all) of a segment, an index or a producer snapshot.

    A segment gives a row for each batch whose last offset is not below ``start``. The folder that
    the file lies in, and the other files of the segment, are not looked at.

    Raises:
        OptionError: its name is no such file's.
        CorruptRecordError: bytes that cannot be a batch; rows of those before them were yielded.
        CorruptIndexError: entries that cannot be right.
        CheckpointError: a producer snapshot that cannot be read.
    """
    base_offset = parse_base_offset(path.name, path.suffix)
    rows = _KINDS.get(path.suffix)
    if base_offset is None or rows is None:
        raise OptionError(
            f"{path} is a file, but not one of a partition's folder, which is called such as "
            f"00000000000000000000{LOG} (or {', '.join(kind for kind in _KINDS if kind != LOG)})"
        )
    return islice(rows(path, base_offset, start), count)


def _batches(path: Path, base_offset: int, start: int) -> Iterator[Row]:
    describer, end = BatchDescriber(), 0
    with LogSegment(path.parent, base_offset) as segment:
        try:
            for data, table, position in segment.chunks(0):
                end = position + len(data)
                yield from _plain(
                    describer.feed(
                        *(data, table),
                        file_position=position,
                        path=str(path),
                        start_offset=start,
                        end_offset=MAX_OFFSET,
                    )
                )
        except CorruptRecordError:
            yield from _plain(describer.flush())
            if not ends_in_zeros(segment, end):
                raise
        yield from _plain(describer.flush())
        if end < segment.size:
            zeros = ends_in_zeros(segment, end)
            what = "zeros, as a broker preallocates them" if zeros else "the beginning of a batch"
            rest = segment.size - end
            _LOGGER.warning("%s: after its batches come %d bytes: %s", path, rest, what)


def _plain(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    for rows in batches:
        yield from rows.to_pylist()


def _offsets(path: Path, base_offset: int, _: int) -> Iterator[Row]:
    with OffsetIndex(path, base_offset) as index:
        for first in range(0, len(index), _ENTRIES):
            entries = index.read(first, min(first + _ENTRIES, len(index)))
            for offset, position in entries.tolist():
                yield {"offset": base_offset + offset, "position": position}


def _times(path: Path, base_offset: int, _: int) -> Iterator[Row]:
    with TimeIndex(path, base_offset) as index:
        for first in range(0, len(index), _ENTRIES):
            entries = index.read(first, min(first + _ENTRIES, len(index)))
            for timestamp, offset in entries.tolist():
                yield {"timestamp": timestamp, "offset": base_offset + offset}


def _aborted(path: Path, base_offset: int, _: int) -> Iterator[Row]:
    with TxnIndex(path, base_offset) as index:
        for entry in index:
            yield {
                "producerId": entry.producer_id,
                "firstOffset": entry.first_offset,
                "lastOffset": entry.last_offset,
                "lastStableOffset": entry.last_stable_offset,
            }


def _producers(path: Path, *_: int) -> Iterator[Row]:
    for entry in read_snapshot(path):
        yield {
            "producerId": int(entry["producer_id"]),
            "producerEpoch": int(entry["epoch"]),
            "lastSequence": int(entry["last_sequence"]),
            "lastOffset": int(entry["last_offset"]),
            "offsetDelta": int(entry["offset_delta"]),
            "timestamp": int(entry["timestamp"]),
            "coordinatorEpoch": int(entry["coordinator_epoch"]),
            "transactionFirstOffset": int(entry["txn_first_offset"]),
        }


_KINDS: Final[dict[str, Callable[[Path, int, int], Iterator[Row]]]] = {
    LOG: _batches,
    OFFSET_INDEX: _offsets,
    TIME_INDEX: _times,
    TXN_INDEX: _aborted,
    SNAPSHOT: _producers,
}


# ----------------------------------------------------------------------------------------------
# What ``verify`` and ``dump`` show, as rows of plain values.


class Fault(StrEnum):
    """What is wrong, as far as another remedy goes with it."""

    BATCHES = "batches"
    HEADERS = "headers"
    INDEXES = "indexes"
    LOG_END = "log end"
    MISSING = "missing"
    REPLICAS = "replicas"
    STATE = "state"
    TIERED = "tiered"


class Verified(NamedTuple):
    """A row of ``verify``, and what is wrong by it; None if nothing is."""

    row: Row
    fault: Fault | None


def verify_logs(paths: Sequence[str], topics: TopicSelection = ALL_TOPICS) -> list[Row]:
    """Check every segment, and that each log reaches what is committed to it.

    ``problem`` is None where nothing is wrong. A row without a segment says what a log lacks, or
    that a commit state cannot be trusted.
    """
    return [each.row for each in verified(paths, topics)]


def verified(
    paths: Sequence[str], topics: TopicSelection = ALL_TOPICS, watch: LogEndTracker | None = None
) -> Iterator[Verified]:
    """Yield the rows of :func:`verify_logs` as they are found, each with the kind of its problem.

    With ``watch``, of :func:`ends_of`, logs that are as it saw them are not looked at again for
    where they end.

    Raises:
        UnknownTopicOrPartitionError: there is no such topic.
        LogDirectoryError: there is no partition, and nothing shows that there ever was one.
    """
    if watch is None:
        watch = ends_of(paths, topics)
        with suppress(KafkaLogError):
            watch.look()  # what it lists serves all; what is wrong is told below
    damaged = set()
    for key, each in _verified_segments(paths, topics, watch):
        if each.fault is Fault.BATCHES:
            damaged.add(key)
        yield each
    yield from _verified_ends(paths, topics, watch)
    yield from _verified_files(paths, topics, watch, damaged)
    for key, text in compare_replicas(paths, topics):
        row = {**key._asdict(), "segment": None, "problem": text}
        yield Verified(row, Fault.REPLICAS)


def _verified_ends(
    paths: Sequence[str], topics: TopicSelection, watch: LogEndTracker
) -> Iterator[Verified]:
    refused, tiered = None, []
    try:
        missing = dict(watch.look().missing)
        tiered = list(tiered_rows(watch))
    except KafkaLogError as error:
        refused = error
        missing = _missing_of_others(paths, topics)
    if refused is not None:
        row = {"topic": topics.only, "partition": None, "segment": None, "problem": str(refused)}
        yield Verified(row, Fault.STATE)
    for row in unverified_rows(log_dirs_of(paths), topics):
        yield Verified(row, Fault.MISSING)
    for row in tiered:
        yield Verified(row, Fault.TIERED)
    for key, gap in missing.items():
        problem = f"offsets [{gap.start}, {gap.end}) were committed and are not in the log"
        yield Verified({**key._asdict(), "segment": None, "problem": problem}, Fault.LOG_END)


def _verified_files(
    paths: Sequence[str],
    topics: TopicSelection,
    watch: LogEndTracker,
    damaged: Collection[TopicPartition],
) -> Iterator[Verified]:
    """Check what is said of a partition beside its log: topic id, leader epochs, committed end.

    The ends of logs are read first: what was appended later is of no concern here. Where batches
    are ``damaged`` a log ends for a writer where the tracker has read on.
    """
    ends: dict[TopicPartition, int] = {}
    problems: defaultdict[TopicPartition, list[str | None]] = defaultdict(list)
    there = partitions_of(paths, topics, watch=watch)
    for key, found in there.items():
        with _noting(problems[key]):
            seen = None if key in damaged else watch.seen_end(found)
            ends[key] = _log_end(found) if seen is None else seen
            problems[key].append(epochs_problem(found.path, ends[key]))
    committed = Committed(None, None)
    with suppress(KafkaLogError, OSError):
        committed = load_committed(log_dirs_of(paths).paths)
    marks = BrokerMarks(committed.state)
    for text in _damaged_checkpoints(committed, there):
        yield Verified(
            {"topic": None, "partition": None, "segment": None, "problem": text}, Fault.STATE
        )
    for key, found in there.items():
        with _noting(problems[key]):
            topic_id = None
            with suppress(CheckpointError):  # told below, where it matters
                topic_id = read_topic_id(found.path)
            if topic_id is None:
                problems[key].append(_lost_id(committed.state, found))
            if key in ends:
                _check_all_committed(committed, found, topic_id, ends[key], marks)
        for problem in filter(None, problems[key]):
            yield Verified({**key._asdict(), "segment": None, "problem": problem}, Fault.STATE)


def _damaged_checkpoints(
    committed: Committed, there: Mapping[TopicPartition, PartitionDirectory]
) -> list[str]:
    """Return why the next writer of a set refuses checkpoint files, or replaces those of a node.

    In a set of one node, a high watermark that cannot be read is told by whoever looks where logs
    end.
    """
    if committed.state is None:
        return []
    problems: list[str | None] = []
    if committed.state.knows_all_ends:
        for log_dir, name in product(sorted(committed.members), OFFSET_CHECKPOINTS):
            with _noting(problems):
                _read_of_node(log_dir, name)
        return [*filter(None, problems)]
    for log_dir in sorted({found.log_dir for found in there.values()}):
        with _noting(problems):
            read_offset_checkpoint(log_dir, RECOVERY_POINT)
    return [*filter(None, problems)]


def _read_of_node(log_dir: Path, name: str) -> None:
    try:
        read_offset_checkpoint(log_dir, name)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error.fault}. The commit states of the nodes know what it said: the next commit, or "
            "`kafkalog recover`, puts it aside"
        ) from error


@contextmanager
def _noting(problems: list[str | None]) -> Iterator[None]:
    """Add to the problems why something cannot be read."""
    try:
        yield
    except (KafkaLogError, OSError) as error:
        problems.append(str(error))


def _log_end(found: PartitionDirectory) -> int:
    with PartitionLog(found.path, found.topic_partition) as log:
        return log.log_end_offset()


def _lost_id(state: CommitState | None, found: PartitionDirectory) -> str | None:
    topic_id = known_topic_id(state, found)
    return topic_id and (
        f"{found.path / PARTITION_METADATA} is missing or damaged: the topic id is {topic_id}. "
        "`kafkalog recover` writes it again"
    )


def _check_all_committed(
    committed: Committed,
    found: PartitionDirectory,
    topic_id: str | None,
    end: int,
    marks: BrokerMarks,
) -> None:
    """Refuse records that nobody has committed, as the next writer would.

    Example: an older ``kafkalog.commit`` was put back. ``end`` was read before ``committed``: what
    lies below is committed, or its commit is unfinished, or was rolled back since. ``topic_id`` is
    None of a folder that has none, or a damaged one.

    Raises:
        CheckpointError: the topic id is damaged.
        CommitError: there are such records.
    """
    key, state = found.topic_partition, committed.state
    if state is None or committed.in_progress(*key):
        return
    if topic_id is None:
        topic_id = read_topic_id(found.path)
    if key.topic in INTERNAL_TOPICS and state.topic(key.topic, topic_id) is None:
        return  # a broker's own
    log = TailRecovery(
        folder=found.path,
        key=key,
        config=LogConfig.of_topic({}),
        state=state,
        topic_id=topic_id,
        marks=marks,
    )
    try:
        log.check_has_no_more(end)
    except CommitError:
        log.check_has_no_more(min(end, _log_end(found)))  # if it was not rolled back since


def _missing_of_others(
    paths: Sequence[str], topics: TopicSelection
) -> dict[TopicPartition, OffsetGap]:
    """Find out what each log lacks, one by one, if one of them cannot be looked at."""
    missing: dict[TopicPartition, OffsetGap] = {}
    for key in partitions_of(paths, topics):
        with suppress(KafkaLogError):
            alone = ends_of(paths, TopicSelection.of(key.topic), key.partition)
            missing |= alone.look().missing
    return missing


def summary_of(rows: Sequence[Row]) -> dict[str, int]:
    """Count what :func:`verify_logs` has looked at, and the problems that it found."""
    checked = [row for row in rows if row["segment"] is not None]
    return {
        "partitions": len({(row["topic"], row["partition"]) for row in checked}),
        "segments": len(checked),
        "batches": sum(row["batches"] for row in checked),
        "bytes": sum(row["bytes"] for row in checked),
        "problems": sum(row["problem"] is not None for row in rows),
    }


def _verified_segments(
    paths: Sequence[str], topics: TopicSelection, watch: LogEndTracker
) -> Iterator[tuple[TopicPartition, Verified]]:
    records = RecordCheck()
    keys: deque[TopicPartition] = deque()

    def pairs() -> Iterator[tuple[LogSegment, LogSegment | None]]:
        for key, found in partitions_of(paths, topics, watch=watch).items():
            for pair in _segments(found, watch):
                keys.append(key)
                yield pair

    for segment, checked in check_segments(pairs(), partial(_checked, records=records), records):
        key = keys.popleft()
        row = {
            **key._asdict(),
            "segment": segment.name(),
            "batches": checked.batches,
            "bytes": checked.bytes,
            "problem": "; ".join([*checked.problems, *checked.headers]) or None,
        }
        yield key, Verified(row, _fault(checked))


def _fault(checked: SegmentCheck) -> Fault | None:
    if checked.problems:
        return Fault.BATCHES if checked.is_broken else Fault.INDEXES
    return Fault.HEADERS if checked.headers else None


def _segments(
    found: PartitionDirectory, watch: LogEndTracker
) -> list[tuple[LogSegment, LogSegment | None]]:
    """Pair each segment with the one after it."""
    listing = watch.listing(found)
    segments = LogSegments.of(found.path) if listing is None else listing.unopened()
    return list(zip_longest(segments, segments[1:]))


_GROWS: Final = "the file has grown meanwhile: if a broker writes it at this moment, look again"


def _checked(
    segment: LogSegment, follower: LogSegment | None, records: RecordCheck
) -> SegmentCheck:
    try:
        size = segment.opened.size
        following = None if follower is None else follower.base_offset
        checked = check_segment(segment, following, records=records)
        if checked.problems and segment.path.stat().st_size > size:
            checked.problems.append(_GROWS)
    except FileNotFoundError:  # deleted since it was listed, as retention does
        return SegmentCheck([], 0, 0)
    except (KafkaLogError, OSError) as error:
        return SegmentCheck([str(error)], 0, 0, is_broken=True)
    return checked


def dump_batches(
    paths: Sequence[str],
    topics: TopicSelection,
    partition: int | None,
    start: int,
    count: int | None,
) -> Iterator[Row]:
    """Yield the headers of up to ``count`` batches from an offset on, partition by partition.

    Up to the end of the log, or to the committed end if damage makes the log end before it.
    """
    log_dirs = log_dirs_of(paths)  # held, so that what is listed again need not be parsed again
    say_missing(log_dirs, topics)
    wanted = sorted(partitions_of(paths, topics, partition))
    watch = ends_of(paths, topics, partition)
    ends = watch.look().offsets
    say_tiered(watch)
    rows = (row for key in wanted for row in _batches_of(watch, key, ends[key], start))
    yield from islice(rows, count)


def _batches_of(
    watch: LogEndTracker, key: TopicPartition, committed: int, start: int
) -> Iterator[Row]:
    with watch.open(key) as log:
        end = max(committed, log.log_end_offset())
        first = max(start, log.log_start_offset)
        if first >= end and start:
            _LOGGER.warning(
                "%s has no batch from offset %d on: its log is [%d, %d)",
                key,
                start,
                log.log_start_offset,
                end,
            )
        yield from _headers(log, first, end)


def offsets_there(paths: Sequence[str], topics: TopicSelection, partition: int | None) -> str:
    """Say which offsets the partitions of topics have: ``t-0 is [0, 20)``."""
    watch = ends_of(paths, topics, partition)
    ends = watch.look().offsets
    return listed(
        [f"{key} is [{watch.log_start(key)}, {end})" for key, end in sorted(ends.items())]
    )


def _headers(log: PartitionLog, start: int, end: int) -> Iterator[Row]:
    describer = BatchDescriber()
    for part in log.slices(start, end):
        for rows in log.read_slice(part, describer, committed_end=end):
            for row in rows.to_pylist():
                yield {name: _plain_value(value) for name, value in row.items()}


def _plain_value(value: object) -> object:
    return value if isinstance(value, int | float | str | bool | None) else str(value)
