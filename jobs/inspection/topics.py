"""What ``topic list``, ``topic describe`` and ``topic offsets`` show, as rows of plain values."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.checkpoints.committed import load_committed
from kafkalog.checkpoints.voters import find_voters
from kafkalog.files.remote_path import RemotePath
from kafkalog.jobs.inspection.log_dirs import (
    check_some_partition,
    ends_of,
    log_dirs_of,
    partitions_of,
    say_missing,
)
from kafkalog.model import ALL_TOPICS, TopicSelection
from kafkalog.streaming.admin.nodes.replicas import inspect_replicas
from kafkalog.streaming.coordinator.cluster_metadata import find_cluster_view
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.retention import Retention
from kafkalog.streaming.store.ends.tracker import say_tiered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.checkpoints.commit_state import ReplicaState, TopicState
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.ends.rule import OffsetGap
    from kafkalog.streaming.store.ends.tracker import LogEndTracker

__all__ = ["describe_partitions", "ends_of", "list_offsets", "list_topics"]

Row = dict[str, Any]


def list_topics(
    paths: Sequence[str], watch: LogEndTracker | None = None, described: Sequence[Row] = ()
) -> list[Row]:
    """Return a row for each topic; what ``watch`` has listed is not listed again.

    Nor is it asked again how large partitions are that were ``described``.
    """
    sizes = {(row["topic"], row["partition"]): row["bytes"] for row in described}
    log_dirs = log_dirs_of(paths)  # held, so that what is listed again need not be parsed again
    say_missing(log_dirs)
    rows: dict[str, Row] = {}
    for key, found in partitions_of(paths, watch=watch).items():
        row = rows.get(key.topic)
        if row is None:  # its id is read once
            row = rows[key.topic] = {"topic": key.topic, "topicId": read_topic_id(found.path)}
            row |= {"partitions": 0, "bytes": 0}
        row["partitions"] += 1
        size = sizes.get(key)
        row["bytes"] += _size_of(found, watch) if size is None else size
    _add_replicas(paths, rows)
    _add_settings(paths, rows)
    return list(rows.values())


def _size_of(found: PartitionDirectory, watch: LogEndTracker | None) -> int:
    key, is_listed = found.topic_partition, watch is not None and watch.has_segments(found)
    with watch.open(key) if watch and is_listed else PartitionLog(found.path, key) as log:
        return _size(log)


def _add_settings(paths: Sequence[str], rows: dict[str, Row]) -> None:
    """Name ids that no folder tells, and settings, as the metadata of a broker's cluster does."""
    cluster = find_cluster_view(log_dirs_of(paths).paths)
    if cluster is None:
        return
    by_name = {name: key for key, name in cluster.names.items()}
    for row in rows.values():
        row["topicId"] = row["topicId"] or by_name.get(row["topic"])
        row["settings"] = dict(cluster.settings.get(row["topicId"] or "", {}))


def _add_replicas(paths: Sequence[str], rows: dict[str, Row]) -> None:
    """Say of the topics of a replicated set how many replicas they have, and how many lack some."""
    if find_voters(log_dirs_of(paths).paths) is None:
        return
    for row in rows.values():
        row |= {"replicas": 0, "underReplicated": 0}
    for each in inspect_replicas(paths).partitions:
        row = rows.get(each.key.topic, {"replicas": 0, "underReplicated": 0})
        row["replicas"] = max(row["replicas"], len(each.replicas))
        row["underReplicated"] += each.is_under_replicated


def describe_partitions(
    paths: Sequence[str], topics: TopicSelection = ALL_TOPICS, watch: LogEndTracker | None = None
) -> list[Row]:
    """Return a row for each partition; with ``watch``, of :func:`ends_of`, by its looks."""
    log_dirs = log_dirs_of(paths)  # held, so that what is listed again need not be parsed again
    committed = load_committed(log_dirs_of(paths).paths)
    rows = []
    say_missing(log_dirs, topics)
    check_some_partition(paths, topics)
    watch = watch or ends_of(paths, topics)
    say_tiered(watch)
    ends, ids = watch.ends.offsets, watch.topic_ids()
    there = partitions_of(paths, topics, watch=watch)
    for key, end in ends.items():
        if key not in there:
            continue
        topic_id = ids[key]
        with watch.open(key) as log:
            start, segments, size = log.log_start_offset, len(log.segments), _size(log)
        known = committed.state.topic(key.topic, topic_id) if committed.state else None
        rows.append(
            {
                **key._asdict(),
                "topicId": topic_id,
                "path": str(there[key].path),
                "start": start,
                "end": end,
                "segments": segments,
                "bytes": size,
                "settings": dict(known.settings) if known else {},
                "retention": _retention(known),
                "unfinished": committed.in_progress(*key),
            }
        )
        if known is not None and key.partition in known.replicas:
            rows[-1] |= _replica_columns(known.replicas[key.partition])
    _add_cluster_settings(paths, rows)
    return rows


def _replica_columns(known: ReplicaState) -> Row:
    return {"leader": known.leader, "replicas": [*known.replicas], "isr": [*known.isr]}


def _add_cluster_settings(paths: Sequence[str], rows: Sequence[Row]) -> None:
    """Add what the metadata of a broker's cluster says of partitions; brokers are numbers."""
    cluster = find_cluster_view(log_dirs_of(paths).paths)
    if cluster is None:
        return
    by_name = {name: key for key, name in cluster.names.items()}
    for row in rows:
        if row["retention"] is not None:  # a set of ours knows it
            continue
        row["topicId"] = topic_id = row["topicId"] or by_name.get(row["topic"])
        row["settings"] = dict(cluster.settings.get(topic_id or "", {}))
        known = cluster.partitions.get(topic_id or "", {}).get(row["partition"])
        if known is not None and len(cluster.broker_epochs) > 1:
            row |= {"leader": known.leader, "replicas": [*known.replicas], "isr": [*known.isr]}


def _retention(known: TopicState | None) -> str | None:
    """Say whether records are deleted, by what was given to a topic; None of one not known."""
    return None if known is None else _limits(tuple(known.settings.items()))


@lru_cache
def _limits(settings: tuple[tuple[str, str], ...]) -> str:
    """Say what deletes records; once of a topic, however many partitions share its settings."""
    given = Retention.of(dict(settings))
    limits = {"retention.ms": given.ms, "retention.bytes": given.bytes}
    named = [name for name, limit in limits.items() if limit is not None and given.deletes]
    return "by " + " and ".join(named) if named else "keeps everything"


def _size(log: PartitionLog) -> int:
    size = 0
    for segment in log.segments:
        with suppress(FileNotFoundError):  # deleted since
            place = segment.place()
            status = place.stat() if isinstance(place, RemotePath) else os.stat(place)  # noqa: PTH116
            size += status.st_size
    return size


def list_offsets(
    paths: Sequence[str], topics: TopicSelection = ALL_TOPICS, watch: LogEndTracker | None = None
) -> list[Row]:
    """Return the first and the committed end offset of each partition.

    With ``watch``, of :func:`ends_of`, they are those of its looks.
    ``unread`` counts what lies above the end, ``missing`` what is said to be committed and is not
    in the log. A partition that is committed and has no folder misses all, and has no offsets.
    """
    log_dirs = log_dirs_of(paths)  # held, so that what is listed again need not be parsed again
    lost = say_missing(log_dirs, topics)
    check_some_partition(paths, topics, lost)
    watch = watch or ends_of(paths, topics)
    say_tiered(watch)
    ends = watch.ends
    there = {} if lost else partitions_of(paths, topics, watch=watch)
    unread = watch.unread()
    rows = [
        {
            **key._asdict(),
            "start": watch.seen_start(key).offset,
            "end": end,
            "unread": _length(unread.uncommitted.get(key) or unread.unfinished.get(key)),
            "missing": _length(ends.missing.get(key)),
        }
        for key, end in ends.offsets.items()
        if key in there or lost
    ]
    nowhere = {"start": None, "end": None, "unread": 0}
    return rows + [
        {**key._asdict(), **nowhere, "missing": end} for key, end in sorted(lost.items())
    ]


def _length(gap: OffsetGap | None) -> int:
    return 0 if gap is None else gap.end - gap.start
