"""What the commands that only look show, as rows of plain values."""

from __future__ import annotations

import logging
from contextlib import suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from kafkalog.checkpoints.broker import (
    LOG_START_OFFSET,
    read_offset_checkpoint,
    read_topic_id,
)
from kafkalog.checkpoints.commit_state import load_committed
from kafkalog.errors import (
    CheckpointError,
    KafkaLogError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.jobs.cli.emptiness import explain_nothing, listed
from kafkalog.jobs.cli.missing import say_missing, unverified_rows
from kafkalog.model import TopicPartition
from kafkalog.streaming.coordinator.group_replay import read_group_positions
from kafkalog.streaming.log.log_dir import LogDirs
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.read.verification import SegmentCheck, check_segment
from kafkalog.streaming.log.segments import LogSegments
from kafkalog.streaming.options import READABLE_PATHS
from kafkalog.streaming.records.batch_rows import BatchDescriber
from kafkalog.streaming.source.lag import lag
from kafkalog.streaming.source.offsets import from_json_text
from kafkalog.streaming.source.tail import LogTail

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.log.segment import LogSegment
    from kafkalog.streaming.source.gaps import OffsetGap

__all__ = [
    "describe_partitions",
    "dump_batches",
    "list_groups",
    "list_lag",
    "list_offsets",
    "list_topics",
    "summary_of",
    "verify_logs",
]

Row = dict[str, Any]

_LOGGER: Final = logging.getLogger("kafkalog.jobs")

_GROUPS_TOPIC: Final = "__consumer_offsets"


def list_topics(paths: Sequence[str]) -> list[Row]:
    """Give a row for each topic."""
    say_missing(_log_dirs(paths), None)
    rows: dict[str, Row] = {}
    for key, found in _partitions(paths, None).items():
        row = rows.setdefault(
            key.topic,
            {"topic": key.topic, "topicId": read_topic_id(found.path), "partitions": 0, "bytes": 0},
        )
        row["partitions"] += 1
        with PartitionLog(found.path, key) as log:
            row["bytes"] += _size(log)
    return list(rows.values())


def describe_partitions(paths: Sequence[str], topic: str | None) -> list[Row]:
    """Give a row for each partition."""
    committed = load_committed(_log_dirs(paths).paths)
    rows = []
    say_missing(_log_dirs(paths), topic)
    ends = _tail(paths, topic).look()
    for key, found in _partitions(paths, topic).items():
        topic_id = read_topic_id(found.path)
        with PartitionLog(found.path, key, _log_start(found)) as log:
            start, segments, size = log.log_start_offset, len(log.segments), _size(log)
        known = committed.state.topic(key.topic, topic_id) if committed.state else None
        rows.append(
            {
                "topic": key.topic,
                "partition": key.partition,
                "topicId": topic_id,
                "path": str(found.path),
                "start": start,
                "end": ends.get(key, start),
                "segments": segments,
                "bytes": size,
                "settings": dict(known.settings) if known else {},
                "unfinished": committed.in_progress(*key),
            }
        )
    return rows


def _size(log: PartitionLog) -> int:
    size = 0
    for segment in log.segments:
        with suppress(FileNotFoundError), segment:  # deleted since; not all of them open at once
            size += segment.size
    return size


def list_offsets(paths: Sequence[str], topic: str | None) -> list[Row]:
    """Give the first and the committed end offset of each partition.

    ``unread`` counts what lies above the end, ``missing`` what is said to be committed and is not
    in the log. A partition that is committed and has no folder misses all, and has no offsets.
    """
    lost = say_missing(_log_dirs(paths), topic)
    there = {} if lost else _partitions(paths, topic)
    tail = _tail(paths, topic)
    ends = {key: end for key, end in tail.look().items() if key in there or lost}
    rows = [
        {
            "topic": key.topic,
            "partition": key.partition,
            "start": tail.log_start(key),
            "end": end,
            "unread": _length(tail.unread.get(key)),
            "missing": _length(tail.missing.get(key)),
        }
        for key, end in ends.items()
    ]
    nowhere = {"start": None, "end": None, "unread": 0}
    return rows + [
        {**key._asdict(), **nowhere, "missing": end} for key, end in sorted(lost.items())
    ]


def _length(gap: OffsetGap | None) -> int:
    return 0 if gap is None else gap.end - gap.start


def list_lag(paths: Sequence[str], offsets: str) -> list[Row]:
    """Give how far offsets, as a query prints them, are behind the committed ends.

    ``lag`` is None for a partition that is named, or committed, and not there.

    Raises:
        OptionError: ``offsets`` are none.
    """
    try:
        named = from_json_text(offsets).keys()
    except CheckpointError as error:
        raise OptionError(str(error)) from error
    topics = {key.topic for key in named}
    lost = {key for key in say_missing(_log_dirs(paths), None) if key.topic in topics}
    behind = lag(",".join(paths), offsets)
    return [
        {"topic": key.topic, "partition": key.partition, "lag": behind.get(key)}
        for key in sorted(behind.keys() | named | lost)
    ]


def list_groups(paths: Sequence[str]) -> list[Row]:
    """Give the position of each consumer group in each partition."""
    say_missing(_log_dirs(paths), None)
    ends = _tail(paths, None).look()
    rows = []
    there = _partitions(paths, None)
    groups = {key: found for key, found in there.items() if key.topic == _GROUPS_TOPIC}
    if there and not groups:
        _LOGGER.warning("there is no topic %s here, which has the positions", _GROUPS_TOPIC)
    for key, found in groups.items():
        with PartitionLog(found.path, key, _log_start(found)) as log:
            positions = read_group_positions(log, ends[key])
        for group, committed in positions.items():
            for partition, position in committed.items():
                end = ends.get(partition)
                rows.append(
                    {
                        "group": group,
                        "topic": partition.topic,
                        "partition": partition.partition,
                        "offset": position.offset,
                        "end": end,
                        "lag": None if end is None else max(0, end - position.offset),
                    }
                )
    return rows


def dump_batches(
    paths: Sequence[str], topic: str, partition: int, start: int, count: int
) -> Iterator[Row]:
    """Give the headers of up to ``count`` batches from an offset on.

    Up to the end of the log, or to the committed end if damage makes the log end before it.
    """
    wanted = TopicPartition(topic, partition)
    say_missing(_log_dirs(paths), topic)
    found = _partitions(paths, topic).get(wanted)
    if found is None:
        raise UnknownTopicOrPartitionError(f"{wanted} is not in {', '.join(paths)}")
    committed = _tail(paths, topic).look()[wanted]
    with PartitionLog(found.path, wanted, _log_start(found)) as log:
        end = max(committed, log.log_end_offset())
        first = max(start, log.log_start_offset)
        if first >= end:
            _LOGGER.warning(
                "%s has no batch from offset %d on: its log is [%d, %d)",
                wanted,
                start,
                log.log_start_offset,
                end,
            )
        yield from _headers(log, first, end, count)


def _headers(log: PartitionLog, start: int, end: int, count: int) -> Iterator[Row]:
    describer = BatchDescriber()
    left = count
    for part in log.slices(start, end):
        for rows in log.read_slice(part, describer, committed_end=end):
            for row in rows.slice(0, left).to_pylist():
                yield {name: _plain(value) for name, value in row.items()}
            left -= min(left, rows.num_rows)
            if not left:
                return


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | str | bool | None) else str(value)


def verify_logs(paths: Sequence[str], topic: str | None) -> list[Row]:
    """Check every segment, and that each log reaches what is committed to it.

    ``problem`` is None where nothing is wrong; what a log lacks is a row without a segment, and so
    is a commit state that cannot be trusted.
    """
    return [*_verified_segments(paths, topic), *_verified_ends(paths, topic)]


def _verified_ends(paths: Sequence[str], topic: str | None) -> Iterator[Row]:
    tail = _tail(paths, topic)
    try:
        tail.look()
    except KafkaLogError as error:
        yield {"topic": topic, "partition": None, "segment": None, "problem": str(error)}
    yield from unverified_rows(_log_dirs(paths), topic)
    for key, gap in tail.missing.items():
        yield {
            "topic": key.topic,
            "partition": key.partition,
            "segment": None,
            "problem": f"offsets [{gap.start}, {gap.end}) were committed and are not in the log",
        }


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


def _verified_segments(paths: Sequence[str], topic: str | None) -> Iterator[Row]:
    for key, found in _partitions(paths, topic).items():
        for segment, follower in _segments(found):
            checked = _checked(segment, follower)
            yield {
                "topic": key.topic,
                "partition": key.partition,
                "segment": segment.path.name,
                "batches": checked.batches,
                "bytes": checked.bytes,
                "problem": "; ".join(checked.problems) or None,
            }


def _segments(found: PartitionDirectory) -> list[tuple[LogSegment, LogSegment | None]]:
    """Pair each segment with the one after it."""
    with PartitionLog(found.path, found.topic_partition) as log:
        return list(zip_longest(log.segments, log.segments[1:]))


def _checked(segment: LogSegment, follower: LogSegment | None) -> SegmentCheck:
    try:
        return check_segment(segment, None if follower is None else follower.base_offset)
    except FileNotFoundError:  # deleted since it was listed, as retention does
        return SegmentCheck([], 0, 0)
    except (KafkaLogError, OSError) as error:
        return SegmentCheck([str(error)], 0, 0)


def _log_dirs(paths: Sequence[str]) -> LogDirs:
    return LogDirs(_places(paths))


def _places(paths: Sequence[str]) -> tuple[str, ...]:
    """Take log directories as the option ``path`` does, URIs too.

    Raises:
        OptionError: they name none.
    """
    try:
        return READABLE_PATHS.read(",".join(paths))
    except ValueError:
        raise OptionError(
            f"{','.join(paths)!r} names no log directory, expected {READABLE_PATHS.accepts}"
        ) from None


def _partitions(
    paths: Sequence[str], topic: str | None
) -> dict[TopicPartition, PartitionDirectory]:
    """Find the partitions, of one topic if it is named.

    A folder that has a partition's name and no segment is none, and said.

    Raises:
        UnknownTopicOrPartitionError: there is no such topic.
        LogDirectoryError: there is no partition, and nothing shows that there ever was one.
    """
    log_dirs, found = _log_dirs(paths), {}
    for key, where in log_dirs.partitions().items():
        if LogSegments.of(where.path):
            found[key] = where
        else:
            _LOGGER.warning("%s has no .log file: it is not taken for a partition", where.path)
    if not found:
        explain_nothing(log_dirs.paths)
    if topic is None:
        return found
    chosen = {key: where for key, where in found.items() if key.topic == topic}
    if not chosen:
        names = sorted({key.topic for key in found})
        raise UnknownTopicOrPartitionError(
            f"no partition of topic {topic} is in {', '.join(map(str, log_dirs.paths))}. "
            + (f"Topics there: {listed(names)}" if names else "There is no topic at all")
        )
    return chosen


def _tail(paths: Sequence[str], topic: str | None) -> LogTail:
    return LogTail(_places(paths), lambda key: topic is None or key.topic == topic)


def _log_start(found: PartitionDirectory) -> int:
    starts = read_offset_checkpoint(found.log_dir, LOG_START_OFFSET)
    return starts.get(found.topic_partition, 0)
