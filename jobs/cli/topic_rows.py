"""What ``topics``, ``describe`` and ``offsets`` show, as rows of plain values."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.checkpoints.commit_state import load_committed
from kafkalog.jobs.cli.log_dirs import log_dirs_of, log_start_of, partitions_of, tail_of
from kafkalog.jobs.cli.missing import say_missing
from kafkalog.streaming.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.streaming.source.gaps import OffsetGap

__all__ = ["describe_partitions", "list_offsets", "list_topics"]

Row = dict[str, Any]


def list_topics(paths: Sequence[str]) -> list[Row]:
    """Give a row for each topic."""
    say_missing(log_dirs_of(paths), None)
    rows: dict[str, Row] = {}
    for key, found in partitions_of(paths, None).items():
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
    committed = load_committed(log_dirs_of(paths).paths)
    rows = []
    say_missing(log_dirs_of(paths), topic)
    ends = tail_of(paths, topic).look()
    for key, found in partitions_of(paths, topic).items():
        topic_id = read_topic_id(found.path)
        with PartitionLog(found.path, key, log_start_of(found)) as log:
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
    lost = say_missing(log_dirs_of(paths), topic)
    there = {} if lost else partitions_of(paths, topic)
    tail = tail_of(paths, topic)
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
