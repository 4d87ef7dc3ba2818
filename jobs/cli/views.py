"""What the commands that only look show, as rows of plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kafkalog.checkpoints.broker import (
    LOG_START_OFFSET,
    read_offset_checkpoint,
    read_topic_id,
)
from kafkalog.checkpoints.commit_state import load_committed
from kafkalog.errors import KafkaLogError, UnknownTopicOrPartitionError
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.group_replay import read_group_positions
from kafkalog.streaming.log.log_dir import LogDirs
from kafkalog.streaming.log.log_end import find_valid_end
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.records.batch_rows import BatchDescriber
from kafkalog.streaming.source.lag import lag
from kafkalog.streaming.source.tail import LogTail

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.log.segment import LogSegment

__all__ = [
    "describe_partitions",
    "dump_batches",
    "list_groups",
    "list_lag",
    "list_offsets",
    "list_topics",
    "verify_logs",
]

Row = dict[str, Any]

_GROUPS_TOPIC: Final = "__consumer_offsets"


def list_topics(paths: Sequence[str]) -> list[Row]:
    """Give a row for each topic."""
    rows: dict[str, Row] = {}
    for key, found in _partitions(paths, None):
        row = rows.setdefault(
            key.topic,
            {"topic": key.topic, "topicId": read_topic_id(found.path), "partitions": 0, "bytes": 0},
        )
        row["partitions"] += 1
        row["bytes"] += sum(path.stat().st_size for path in found.path.glob("*.log"))
    return list(rows.values())


def describe_partitions(paths: Sequence[str], topic: str | None) -> list[Row]:
    """Give a row for each partition."""
    committed = load_committed(LogDirs(paths).paths)
    topics = committed.state.topics if committed.state else {}
    rows = []
    ends = _tail(paths, topic).look()
    for key, found in _partitions(paths, topic):
        topic_id = read_topic_id(found.path)
        with PartitionLog(found.path, key, _log_start(found)) as log:
            start, segments = log.log_start_offset, len(log.segments)
            size = 0
            for segment in log.segments:
                with segment:
                    size += segment.size
        known = topics.get(topic_id or f":{key.topic}")
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


def list_offsets(paths: Sequence[str], topic: str | None) -> list[Row]:
    """Give the first and the committed end offset of each partition."""
    tail = _tail(paths, topic)
    return [
        {
            "topic": key.topic,
            "partition": key.partition,
            "start": tail.log_start(key),
            "end": end,
            "unread": tail.unread[key].end - tail.unread[key].start if key in tail.unread else 0,
        }
        for key, end in tail.look().items()
    ]


def list_lag(paths: Sequence[str], offsets: str) -> list[Row]:
    """Give how far offsets, as a query prints them, are behind the committed ends."""
    behind = lag(",".join(paths), offsets)
    return [
        {"topic": key.topic, "partition": key.partition, "lag": count}
        for key, count in behind.items()
    ]


def list_groups(paths: Sequence[str]) -> list[Row]:
    """Give the position of each consumer group in each partition."""
    ends = _tail(paths, None).look()
    rows = []
    for key, found in _partitions(paths, _GROUPS_TOPIC):
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
) -> list[Row]:
    """Give the headers of up to ``count`` batches from an offset on."""
    wanted = TopicPartition(topic, partition)
    for key, found in _partitions(paths, topic):
        if key == wanted:
            with PartitionLog(found.path, key, _log_start(found)) as log:
                first = max(start, log.log_start_offset)
                return list(_headers(log, first, count))
    raise UnknownTopicOrPartitionError(f"{wanted} is not in {', '.join(paths)}")


def _headers(log: PartitionLog, start: int, count: int) -> Iterator[Row]:
    describer = BatchDescriber()
    end = log.log_end_offset()
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
    for key, gap in tail.missing.items():
        yield {
            "topic": key.topic,
            "partition": key.partition,
            "segment": None,
            "problem": f"offsets [{gap.start}, {gap.end}) were committed and are not in the log",
        }


def _verified_segments(paths: Sequence[str], topic: str | None) -> list[Row]:
    return [
        {
            "topic": key.topic,
            "partition": key.partition,
            "segment": segment.path.name,
            "problem": _problem(segment),
        }
        for key, found in _partitions(paths, topic)
        for segment in _segments(found)
    ]


def _segments(found: PartitionDirectory) -> list[LogSegment]:
    with PartitionLog(found.path, found.topic_partition) as log:
        return list(log.segments)


def _problem(segment: LogSegment) -> str | None:
    try:
        with segment:
            end = find_valid_end(segment, 0)
            if end.problem is not None:
                return str(end.problem)
            missing = [
                suffix
                for suffix, index in (
                    ("offset index", segment.offset_index()),
                    ("time index", segment.time_index()),
                )
                if index is None
            ]
    except (KafkaLogError, OSError) as error:
        return str(error)
    return f"{' and '.join(missing)} missing or wrong" if missing else None


def _partitions(
    paths: Sequence[str], topic: str | None
) -> Iterator[tuple[TopicPartition, PartitionDirectory]]:
    for key, found in LogDirs(paths).partitions().items():
        if topic is None or key.topic == topic:
            yield key, found


def _tail(paths: Sequence[str], topic: str | None) -> LogTail:
    return LogTail(paths, lambda key: topic is None or key.topic == topic)


def _log_start(found: PartitionDirectory) -> int:
    starts = read_offset_checkpoint(found.log_dir, LOG_START_OFFSET)
    return starts.get(found.topic_partition, 0)
