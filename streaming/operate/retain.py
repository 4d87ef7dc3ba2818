"""Delete the oldest records: retention by what was given to topics, and DeleteRecords.

1. files that an earlier round has retired go, once ``file.delete.delay.ms`` is over;
2. what has expired is told by :mod:`~kafkalog.streaming.store.retention`;
3. where all of a log has, it continues in a new segment; what ``flush=os`` has left of a log that
   loses records is made durable;
4. the new log starts are published, by one rename for all partitions, and Kafka's checkpoint
   follows (:mod:`~kafkalog.streaming.store.log_starts`);
5. the segments are renamed to ``.deleted``.

Cut off before step 4, nothing is deleted. After it, segments may lie below their log start: nobody
reads them, and the next round renames them.

Source: Kafka ``UnifiedLog.deleteOldSegments``, ``ReplicaManager.deleteRecords``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kafkalog.errors import (
    KafkaLogError,
    OffsetOutOfRangeError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.shield import shielded
from kafkalog.files.system import system
from kafkalog.model import INTERNAL_TOPICS, TopicPartition, said_there
from kafkalog.streaming.log.config import REMOTE_STORAGE, LogConfig, is_remote
from kafkalog.streaming.log.retired_files import Removed, remove_retired
from kafkalog.streaming.operate.old_segments import KnownLog, logs_of_ours, opened_logs
from kafkalog.streaming.operate.shortening import Gone, Shortened, shorten, shortened
from kafkalog.streaming.store.ends.broker_marks import BrokerMarks
from kafkalog.streaming.store.policy import WAIT_MS
from kafkalog.streaming.store.retention import Retention, expired
from kafkalog.streaming.store.topics import check_known

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import TopicState
    from kafkalog.streaming.store.log_set import LogSet

__all__ = [
    "HIGH_WATERMARK_OFFSET",
    "Deleted",
    "Shortened",
    "delete_records",
    "retain",
    "retain_set",
]

HIGH_WATERMARK_OFFSET: Final = -1
"""In place of an offset up to which records are deleted: all that are committed."""

_NONE: Final = Retention()


@dataclass(slots=True)
class Deleted:
    """What was done; after a dry run what would be.

    ``left_alone`` says why for each topic that was. ``removed`` are the files of earlier rounds
    that were unlinked. ``problems`` are what a person has to decide on.
    """

    set_id: str = ""
    partitions: list[Shortened] = field(default_factory=list)
    left_alone: dict[str, str] = field(default_factory=dict)
    removed: Removed = field(default_factory=Removed)
    problems: list[str] = field(default_factory=list)


@shielded
def retain(
    paths: Sequence[str],
    *,
    topic: str | None = None,
    config: Mapping[str, str] | None = None,
    allows_broker: bool = False,
    dry_run: bool = False,
    wait_ms: int = WAIT_MS,
) -> Deleted:
    """Delete the segments that have expired, of one topic if it is named.

    Args:
        paths: all log directories of the set.
        topic: the topic.
        config: settings by Kafka's names, for what was not given to the topics themselves.
        allows_broker: whether to do so though a broker had the directories last.
        dry_run: whether to say only what would be done, and change nothing.
        wait_ms: how long to wait for a writer of ours.

    Raises:
        OptionError: a setting that Kafka would refuse.
        UnknownTopicOrPartitionError: the commit state does not know the topic.
        KafkaLogError: the directories are no whole set, or somebody else holds them.
    """
    LogConfig.from_mapping(config or {})
    with opened_logs(
        paths,
        "kafkalog retain",
        allows_broker=allows_broker,
        dry_run=dry_run,
        wait_ms=wait_ms,
        knows_nodes=True,
    ) as log_set:
        check_known(log_set.state, log_set.directories, topic)
        return retain_set(
            log_set,
            config=config or {},
            concerns=lambda key: topic in {None, key.topic},
            dry_run=dry_run,
        )


def retain_set(
    log_set: LogSet,
    *,
    config: Mapping[str, str],
    concerns: Callable[[TopicPartition], bool] = lambda _: True,
    dry_run: bool = False,
) -> Deleted:
    """Do what :func:`retain` does with an opened set. REQUIRES: the locks, unless ``dry_run``."""
    done = Deleted(log_set.state.set_id, removed=log_set.removed)
    now_ms = system.time_ns() // 1_000_000
    gone = []
    for log in logs_of_ours(
        log_set, concerns, done.left_alone, done.problems, ends_swaps=not dry_run
    ):
        settings = {**config, **log.topic.settings}
        try:
            retention = _retention(log.topic, settings, done)
            if not dry_run:
                _remove_retired(log.where.path, settings, now_ms, done)
            what = expired(log.segments, retention, now_ms, log.bounds)
            if what.segments:
                log.check_end()
        except (KafkaLogError, OSError) as error:
            done.problems.append(str(error))
        else:
            gone.append(Gone(log, what))
    if dry_run:
        done.partitions = [shortened(each) for each in gone]
    else:
        done.partitions = shorten(log_set, gone, done.problems)
    return done


@shielded
def delete_records(
    paths: Sequence[str],
    offsets: Mapping[TopicPartition, int],
    *,
    heeds_policy: bool = True,
    allows_broker: bool = False,
    wait_ms: int = WAIT_MS,
) -> Deleted:
    """Let logs start at these offsets, all at once, whatever retention says.

    What lies below counts as deleted. Whole segments below go, too. An offset below the start of a
    log changes nothing; -1 is the high watermark. ``heeds_policy``: logs that Kafka would not let
    delete records of are refused.

    Raises:
        UnknownTopicOrPartitionError: a partition that the commit state does not know, or that has
            no folder.
        OffsetOutOfRangeError: an offset above a high watermark. Nothing was changed.
        OptionError: an internal topic, or one that is compacted only.
        KafkaLogError: a log, or the set, is not as it should be. Nothing was changed.
    """
    with opened_logs(
        paths,
        "kafkalog delete-records",
        allows_broker=allows_broker,
        dry_run=False,
        wait_ms=wait_ms,
        knows_nodes=True,
    ) as log_set:
        logs = _named(log_set, offsets)
        for log in logs.values() if heeds_policy else ():
            _refuse_policy(log)
        return _delete_records(log_set, [(log, offsets[key]) for key, log in logs.items()])


def _delete_records(log_set: LogSet, starts: Sequence[tuple[KnownLog, int]]) -> Deleted:
    done = Deleted(log_set.state.set_id, removed=log_set.removed)
    now_ms = system.time_ns() // 1_000_000
    gone = []
    for log, offset in starts:
        start = max(log.bounds.log_start, _start(log, offset))
        log.check_end()
        bounds = log.bounds._replace(log_start=start)
        gone.append(Gone(log, expired(log.segments, _NONE, now_ms, bounds)))
    for log, _ in gone:
        _remove_retired(log.where.path, log.topic.settings, now_ms, done)
    done.partitions = shorten(log_set, gone, done.problems)
    return done


def _named(
    log_set: LogSet, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, KnownLog]:
    there = log_set.partitions()
    marks = BrokerMarks()
    found = {}
    for key in offsets:
        log = KnownLog.of(log_set.state, there[key], marks) if key in there else None
        if log is None:
            raise UnknownTopicOrPartitionError(
                f"{key} is no partition that the commit state of "
                f"{', '.join(map(str, log_set.directories))} knows, or has no folder "
                f"there. {said_there(key.topic, there)}"
            )
        found[key] = log
    return found


def _refuse_policy(log: KnownLog) -> None:
    name = log.topic.name
    if name in INTERNAL_TOPICS:
        raise OptionError(f"records of {name!r} are not deleted: it is a topic of Kafka's own")
    if is_remote(log.topic.settings):
        raise OptionError(f"records of {name!r} are not deleted: {REMOTE_STORAGE} is true")
    if not Retention.of(log.topic.settings).deletes:
        raise OptionError(
            f"records of {name!r} are not deleted: its cleanup.policy is "
            f"{log.topic.settings['cleanup.policy']}, without delete"
        )


def _start(log: KnownLog, offset: int) -> int:
    committed = log.bounds.high_watermark
    if offset == HIGH_WATERMARK_OFFSET:
        return committed
    if not 0 <= offset <= committed:
        key = log.where.topic_partition
        raise OffsetOutOfRangeError(
            f"{key}: its records cannot be deleted up to offset {offset}: it is committed up to "
            f"{committed}. Nothing was changed",
            offset=offset,
            log_start_offset=log.bounds.log_start,
        )
    return offset


def _retention(topic: TopicState, settings: Mapping[str, str], done: Deleted) -> Retention:
    """Return the limits of a topic: none where none was given, and where it is only compacted."""
    if not Retention.is_given(settings):
        done.left_alone[topic.name] = (
            "neither retention.ms nor retention.bytes was given: all records are kept. --config "
            "gives one to this run"
        )
        return _NONE
    for name, text in sorted(Retention.strange(settings).items()):
        done.left_alone[topic.name] = f"{name} is {text!r}, which is not understood"
        return _NONE
    found = Retention.of(settings)
    if not found.deletes:
        done.left_alone[topic.name] = f"cleanup.policy is {settings['cleanup.policy']}"
    return found


def _remove_retired(folder: Path, settings: Mapping[str, str], now_ms: int, done: Deleted) -> None:
    delay_ms = LogConfig.of_topic(settings).file_delete_delay_ms
    done.removed = done.removed.plus(remove_retired(folder, now_ms - delay_ms))
