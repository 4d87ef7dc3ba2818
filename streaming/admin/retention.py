"""Delete the oldest records: retention, DeleteRecords, and retention after commits."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.commit_state import TopicState
from kafkalog.checkpoints.committed import load_committed
from kafkalog.errors import (
    KafkaLogError,
    LockTimeoutError,
    OffsetOutOfRangeError,
    OptionError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.deferred_signals import shielded, shielded_rest
from kafkalog.files.system import FULL, remembered, said_of_file, system
from kafkalog.files.timeouts import run_with_timeout
from kafkalog.model import (
    ALL_TOPICS,
    INTERNAL_TOPICS,
    TopicPartition,
    TopicSelection,
    many,
    partition_directory_name,
    said_there,
)
from kafkalog.streaming.admin.old_segments import (
    ManagedLog,
    logs_of_ours,
    opened_logs,
    refuse_broker_directory,
)
from kafkalog.streaming.commit.bucket_commit import (
    TopicChange,
    change_topics,
    forget_silent_writers,
)
from kafkalog.streaming.commit.states import make_shortened_durable
from kafkalog.streaming.log.retention import LogBounds, Retention, expired
from kafkalog.streaming.log.swap import Removed, remove_retired
from kafkalog.streaming.objects.bucket_store import bucket_of
from kafkalog.streaming.objects.sweeping import clean_commits, sweep_data
from kafkalog.streaming.options.topic_settings import REMOTE_STORAGE, LogConfig, is_remote
from kafkalog.streaming.store.broker_files import LogStarts, end_move, move_log_starts
from kafkalog.streaming.store.ends.recorded import BrokerMarks
from kafkalog.streaming.store.log_dirs import partitions_by_node
from kafkalog.streaming.store.log_set import Schedule
from kafkalog.streaming.store.policy import WAIT_MS
from kafkalog.streaming.store.recovery.unsynced_tail import refuse_lost_tail
from kafkalog.streaming.store.session import opened_set
from kafkalog.streaming.store.topics import check_known

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.bucket_state import BucketState
    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.log.retention import Expired
    from kafkalog.streaming.objects.bucket_store import BucketRoot
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.policy import SetPolicy


__all__ = [
    "HIGH_WATERMARK_OFFSET",
    "Deleted",
    "ExpiredSegments",
    "Shortened",
    "delete_records",
    "expire_in_bucket",
    "retain",
    "retain_if_due",
    "retain_set",
    "shorten",
    "shortened",
]


# ----------------------------------------------------------------------------------------------
# Let logs start later: roll those of which all has expired, publish, then rename segments.
#
# Where a disk is full, what has expired makes room for that: its indexes go first. Readers do
# without them, and a broker, or `kafkalog recover`, builds them again. A log that cannot roll
# even so keeps its active segment until the next time.


class ExpiredSegments(NamedTuple):
    """What has expired of a log."""

    log: ManagedLog
    what: Expired


class Shortened(NamedTuple):
    """A partition that was looked at: its log start before and after, and what has gone.

    ``segments`` are the base offsets of those that were renamed to ``.deleted``.
    """

    topic_partition: TopicPartition
    path: Path
    start_before: int
    start: int
    end: int
    segments: tuple[int, ...]
    bytes: int


def shortened(each: ExpiredSegments) -> Shortened:
    """Say what goes of a log."""
    log, what = each
    segments = log.segments[: what.segments]
    return Shortened(
        log.where.topic_partition,
        log.where.path,
        log.bounds.log_start,
        what.log_start,
        log.bounds.log_end,
        tuple(each.base_offset for each in segments),
        sum(each.size for each in segments),
    )


def shorten(
    log_set: LogSet, gone: Sequence[ExpiredSegments], problems: list[str]
) -> list[Shortened]:
    """Let logs start after what has expired of them; return what was done.

    REQUIRES: the locks are held, and nothing is unfinished. ``problems`` gets why logs were left as
    they are.

    Raises:
        OSError, KafkaLogError: nothing has changed for a reader; or all of it, and the next round
            renames what is left.
    """
    gone = _ready(gone, problems)
    done = [shortened(each) for each in gone]
    gone = [*gone, *_ready_replicas(log_set, gone)]
    starts: LogStarts = {}
    for log, what in gone:
        if what.log_start > log.bounds.log_start:
            starts.setdefault(log.key, {})[log.number] = what.log_start
    if starts:
        _publish(log_set, starts, gone, problems)
    for log, what in gone:
        log_set.verify_locks()
        with log_set.node.isolated_at(log.where.log_dir):
            log.retire(what)
    return done


def _ready_replicas(log_set: LogSet, gone: Sequence[ExpiredSegments]) -> list[ExpiredSegments]:
    """Let the other replicas in sync continue as their leaders do; a node that fails is out."""
    ready: list[ExpiredSegments] = []
    for each in gone:
        for where in _replicas_of(log_set, each.log):
            with log_set.node.isolated_at(where.log_dir):
                log = ManagedLog.of(log_set.state, where, BrokerMarks(log_set.state))
                if log is None or not log.segments:
                    continue
                log.check_end()  # it may be an older copy
                follower = ExpiredSegments(
                    log, each.what._replace(segments=each.log.shared(log, each.what))
                )
                if each.what.rolls:
                    _with_room(log.roll, [*gone, *ready])
                log.keep_producers(follower.what)
                ready.append(follower)
    return ready


def _replicas_of(log_set: LogSet, log: ManagedLog) -> Iterator[PartitionDirectory]:
    """Find the folders of the other replicas in sync of a partition."""
    replicas = log.topic.replicas.get(log.number)
    if replicas is None:
        return
    for node, folders in partitions_by_node(log_set.node.nodes()).items():
        where = folders.get(log.where.topic_partition)
        if node in replicas.isr and where is not None and where != log.where:
            yield where


def _ready(gone: Sequence[ExpiredSegments], problems: list[str]) -> list[ExpiredSegments]:
    """Roll logs of which all has expired, and keep their producers; leave those that fail alone."""
    left = []
    for each in gone:
        try:
            rolled = _rolled(each, gone)
            _with_room(partial(rolled.log.keep_producers, rolled.what), gone)
            left.append(rolled)
        except (KafkaLogError, OSError) as error:
            problems.append(said_of_file(error))
    return left


def _rolled(each: ExpiredSegments, gone: Sequence[ExpiredSegments]) -> ExpiredSegments:
    if each.what.rolls:
        try:
            _with_room(each.log.roll, gone)
        except OSError as error:
            if error.errno not in FULL or each.what.segments == 1:
                raise
            return ExpiredSegments(each.log, each.log.without_active(each.what))
    return each


def _publish(
    log_set: LogSet, starts: LogStarts, gone: Sequence[ExpiredSegments], problems: list[str]
) -> None:
    before = log_set.state.stamp

    def move() -> None:
        if log_set.state.stamp != before:  # published, and there was no room for the checkpoints
            end_move(log_set, starts)
            return
        make_shortened_durable(log_set, starts)
        move_log_starts(log_set, starts)

    try:
        _with_room(move, gone)
    except OSError as error:
        if log_set.state.stamp == before:
            raise
        # It is published. The segments may go, and the next session ends the rest.
        problems.append(f"Kafka's checkpoints do not say yet where logs start: {error}")


def _with_room(act: Callable[[], None], gone: Sequence[ExpiredSegments]) -> None:
    """Act; where the disk is full, make room and try again.

    Raises:
        OSError: there is not enough room, or it failed for another reason.
        KafkaLogError: it failed.
    """
    try:
        act()
    except OSError as error:
        if error.errno not in FULL:
            raise
    else:
        return
    for each in gone:
        each.log.drop_indexes(each.what)
    act()


# ----------------------------------------------------------------------------------------------
# Delete the oldest records: retention by what was given to topics, and DeleteRecords.
#
# 1. files that an earlier round has retired go, once ``file.delete.delay.ms`` is over;
# 2. what has expired is told by :mod:`~kafkalog.streaming.log.retention`;
# 3. where all of a log has, it continues in a new segment; what ``flush=os`` has left of a log that
#    loses records is made durable;
# 4. the new log starts are published, by one rename for all partitions, and Kafka's checkpoint
#    follows (:mod:`~kafkalog.streaming.store.broker_files`);
# 5. the segments are renamed to ``.deleted``.
#
# Cut off before step 4, nothing is deleted. After it, segments may lie below their log start:
# nobody reads them, and the next round renames them.
#
# Source: Kafka ``UnifiedLog.deleteOldSegments``, ``ReplicaManager.deleteRecords``.


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
    topics: TopicSelection = ALL_TOPICS,
    config: Mapping[str, str] | None = None,
    allows_broker: bool = False,
    dry_run: bool = False,
    wait_ms: int = WAIT_MS,
) -> Deleted:
    """Delete the segments of topics that have expired.

    Args:
        paths: all log directories of the set.
        topics: the topics.
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
    if (root := bucket_of(paths)) is not None:
        return _retain_bucket(root, topics, config or {}, dry_run=dry_run)
    with opened_logs(
        paths, "kafkalog retain", allows_broker=allows_broker, dry_run=dry_run, wait_ms=wait_ms
    ) as log_set:
        check_known(log_set.state, log_set.directories, topics)
        return retain_set(
            log_set,
            config=config or {},
            concerns=lambda key: key.topic in topics,
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
            gone.append(ExpiredSegments(log, what))
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
    dry_run: bool = False,
    wait_ms: int = WAIT_MS,
) -> Deleted:
    """Let logs start at these offsets, all at once, whatever retention says.

    What lies below counts as deleted. Whole segments below go, too. An offset below the start of a
    log changes nothing; -1 is the high watermark. ``heeds_policy``: logs that Kafka would not let
    delete records of are refused. ``dry_run``: whether to say only what would be done.

    Raises:
        UnknownTopicOrPartitionError: a partition that the commit state does not know, or that has
            no folder.
        OffsetOutOfRangeError: an offset above a high watermark. Nothing was changed.
        OptionError: an internal topic, or one that is compacted only.
        KafkaLogError: a log, or the set, is not as it should be. Nothing was changed.
    """
    if (root := bucket_of(paths)) is not None:
        return _delete_in_bucket(root, offsets, heeds_policy=heeds_policy, dry_run=dry_run)
    with opened_logs(
        paths,
        "kafkalog topic trim",
        allows_broker=allows_broker,
        dry_run=dry_run,
        wait_ms=wait_ms,
    ) as log_set:
        logs = _named(log_set, offsets)
        for log in logs.values() if heeds_policy else ():
            _refuse_policy(log.topic)
        starts = [(log, offsets[key]) for key, log in logs.items()]
        return _delete_records(log_set, starts, dry_run=dry_run)


def _delete_records(
    log_set: LogSet, starts: Sequence[tuple[ManagedLog, int]], *, dry_run: bool
) -> Deleted:
    done = Deleted(log_set.state.set_id, removed=log_set.removed)
    now_ms = system.time_ns() // 1_000_000
    gone = []
    for log, offset in starts:
        start = max(log.bounds.log_start, _start(log.where.topic_partition, log.bounds, offset))
        log.check_end()
        bounds = log.bounds._replace(log_start=start)
        gone.append(ExpiredSegments(log, expired(log.segments, _NONE, now_ms, bounds)))
    if dry_run:
        done.partitions = [shortened(each) for each in gone]
        return done
    for log, _ in gone:
        _remove_retired(log.where.path, log.topic.settings, now_ms, done)
    done.partitions = shorten(log_set, gone, done.problems)
    return done


def _named(
    log_set: LogSet, offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, ManagedLog]:
    there = log_set.partitions()
    marks = BrokerMarks(log_set.state)
    found = {}
    for key in offsets:
        log = ManagedLog.of(log_set.state, there[key], marks) if key in there else None
        if log is None:
            raise UnknownTopicOrPartitionError(
                f"{key} is no partition that the commit state of "
                f"{', '.join(map(str, log_set.directories))} knows, or has no folder "
                f"there. {said_there(key.topic, there)}"
            )
        found[key] = log
    return found


def _refuse_policy(topic: TopicState) -> None:
    name = topic.name
    if name in INTERNAL_TOPICS:
        raise OptionError(f"records of {name!r} are not deleted: it is a topic of Kafka's own")
    if is_remote(topic.settings):
        raise OptionError(f"records of {name!r} are not deleted: {REMOTE_STORAGE} is true")
    if not Retention.of(topic.settings).deletes:
        raise OptionError(
            f"records of {name!r} are not deleted: its cleanup.policy is "
            f"{topic.settings['cleanup.policy']}, without delete"
        )


def _start(key: TopicPartition, bounds: LogBounds, offset: int) -> int:
    committed = bounds.high_watermark
    if offset == HIGH_WATERMARK_OFFSET:
        return committed
    if not 0 <= offset <= committed:
        raise OffsetOutOfRangeError(
            f"{key}: its records cannot be deleted up to offset {offset}: it is committed up to "
            f"{committed}. Nothing was changed",
            offset=offset,
            log_start_offset=bounds.log_start,
        )
    return offset


# The same in an object store, where log starts move by a commit, and extents are segments.


def _delete_in_bucket(
    root: BucketRoot,
    offsets: Mapping[TopicPartition, int],
    *,
    heeds_policy: bool,
    dry_run: bool,
) -> Deleted:
    def starts(state: BucketState) -> Iterator[tuple[str, TopicPartition, int]]:
        ids = {topic.name: key for key, topic in state.topics.items()}
        for key, offset in offsets.items():
            topic = state.topics.get(ids.get(key.topic, ""))
            if topic is None or key.partition not in topic.partitions:
                there = [
                    TopicPartition(each.name, number)
                    for each in state.topics.values()
                    for number in each.partitions
                ]
                raise UnknownTopicOrPartitionError(
                    f"{key} is no partition of the log at {root}. {said_there(key.topic, there)}"
                )
            if heeds_policy:
                _refuse_policy(topic)
            bounds = LogBounds(*topic.partitions[key.partition][:3])
            yield ids[key.topic], key, max(bounds.log_start, _start(key, bounds, offset))

    return _move_starts(root, Deleted(), starts, dry_run=dry_run)


def _retain_bucket(
    root: BucketRoot, topics: TopicSelection, config: Mapping[str, str], *, dry_run: bool
) -> Deleted:
    done = expire_in_bucket(root, config, topics=topics, dry_run=dry_run)
    if not dry_run:
        forget_silent_writers(root)
        with root.writing() as log:
            done.removed = done.removed.plus(Removed(*sweep_data(log)))
            clean_commits(log)
    return done


def expire_in_bucket(
    root: BucketRoot,
    config: Mapping[str, str],
    *,
    topics: TopicSelection = ALL_TOPICS,
    chosen: Collection[TopicPartition] | None = None,
    dry_run: bool = False,
) -> Deleted:
    """Let the partitions of a log in an object store start after what has expired.

    Args:
        root: the log.
        config: settings by Kafka's names, for what was not given to the topics themselves.
        topics: the topics.
        chosen: the partitions, if not all.
        dry_run: whether to say only what would be done, and change nothing.

    Raises:
        UnknownTopicOrPartitionError: the log has no such topic.
        KafkaLogError: nothing is changed, or it is not known whether it is.
    """
    done = Deleted()
    now_ms = system.time_ns() // 1_000_000

    def starts(state: BucketState) -> Iterator[tuple[str, TopicPartition, int]]:
        check_known(state, [root], topics)
        for key, known in state.topics.items():
            where = [TopicPartition(known.name, number) for number in known.partitions]
            some = [each for each in where if chosen is None or each in chosen]
            if not some or known.name not in topics or known.name in INTERNAL_TOPICS:
                continue
            retention = _retention(known, {**config, **known.settings}, done)
            for each in some:
                extents = state.extents.get((key, each.partition), [])
                bounds = LogBounds(*known.partitions[each.partition][:3])
                yield key, each, expired(extents, retention, now_ms, bounds).log_start

    return _move_starts(root, done, starts, dry_run=dry_run)


def _move_starts(
    root: BucketRoot,
    done: Deleted,
    starts: Callable[[BucketState], Iterable[tuple[str, TopicPartition, int]]],
    *,
    dry_run: bool,
) -> Deleted:
    """Let the partitions of a log in an object store start where ``starts`` says by a state."""

    def change(state: BucketState) -> TopicChange | None:
        topics: dict[str, TopicState] = {}
        rows = []
        for key, where, start in starts(state):
            known = state.topics[key]
            before = known.partitions[where.partition]
            gone = [
                extent
                for extent in state.extents.get((key, where.partition), ())
                if extent.end_offset <= start
            ]
            bases, size = tuple(e.base_offset for e in gone), sum(e.size for e in gone)
            path = root.open_store().root / partition_directory_name(*where)
            rows.append(
                Shortened(where, path, before.log_start, start, before.log_end, bases, size)
            )
            if start > before.log_start:
                topic = topics.setdefault(key, TopicState(known.name, settings=known.settings))
                moved = before._replace(log_start=start)
                partitions = {**topic.partitions, where.partition: moved}
                topics[key] = replace(topic, partitions=partitions)
        done.partitions = rows if topics or not done.partitions else done.partitions
        return TopicChange(topics) if topics else None

    done.set_id = change_topics(root, change, dry_run=dry_run).log_id
    return done


def _retention(topic: TopicState, settings: Mapping[str, str], done: Deleted) -> Retention:
    """Return the limits of a topic: none where none was given, and where it is only compacted."""
    if not Retention.is_given(settings):
        done.left_alone[topic.name] = (
            "no retention.ms or retention.bytes is set, so all records are kept (set one with "
            "--config)"
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


# ----------------------------------------------------------------------------------------------
# Retention by whoever writes: a round now and then, after a commit, that fails nobody.
#
# A broker has a thread for it. A writer of ours has a process that lives as long as its query,
# and commits in it: there a round follows a commit once ``retention.check.interval.ms`` is over.
# It does nothing where no topic has a limit, and waits for no other writer.


_LOGGER: Final = logging.getLogger("kafkalog.sink")

_MOST_PARTITIONS: Final = 1000
"""That one round looks at: about a millisecond each. The next round continues after them."""


class _RetentionSchedule(Schedule):
    pass


def retain_if_due(directories: Sequence[Path], policy: SetPolicy, interval_ms: int) -> None:
    """Delete what has expired, unless this process did so less than ``interval_ms`` ago.

    REQUIRES: no lock of the directories is held. What goes wrong is a line in the log.
    """
    schedule = remembered(_RetentionSchedule)
    if not schedule.begins(directories, interval_ms / 1000):
        return
    try:
        _round(schedule, directories, policy)
    except LockTimeoutError:
        _LOGGER.debug("retention waits for its next round: another writer holds %s", directories)
    except Exception as error:  # noqa: BLE001 - the batch before it is committed, whatever this is
        _LOGGER.warning("retention was not done, the next round tries again: %s", error)


@shielded_rest
def _round(schedule: Schedule, directories: Sequence[Path], policy: SetPolicy) -> None:
    run_with_timeout(lambda: _retain(schedule, directories, policy), directories, policy.lag_ms)


@shielded_rest
def _retain(schedule: Schedule, directories: Sequence[Path], policy: SetPolicy) -> None:
    state = load_committed(directories).state
    if state is None or not any(_concerned(topic) for topic in state.topics.values()):
        return
    for folder in directories:
        refuse_broker_directory(folder, permit="")
    at_once = replace(policy, wait_ms=0)
    with opened_set(directories, at_once, refuse_lost_tail, holder="retention") as log_set:
        chosen = schedule.chosen(directories, _partitions(log_set.state), _MOST_PARTITIONS)
        keys = frozenset(chosen)
        _tell(retain_set(log_set, config={}, concerns=keys.__contains__))


def _concerned(topic: TopicState) -> bool:
    """Whether there may be something to do: by a limit, or by what was deleted before."""
    return Retention.is_given(topic.settings) or any(
        each.log_start for each in topic.partitions.values()
    )


def _partitions(state: CommitState) -> Iterator[TopicPartition]:
    return (
        TopicPartition(topic.name, number)
        for topic in state.topics.values()
        if _concerned(topic)
        for number in topic.partitions
    )


def _tell(done: Deleted) -> None:
    for each in done.partitions:
        if each.segments:
            _LOGGER.info(
                "retention: %s starts at offset %d now: %s with %d bytes expired",
                each.topic_partition,
                each.start,
                many(len(each.segments), "segment"),
                each.bytes,
            )
    for problem in done.problems:
        _LOGGER.warning("retention: %s", problem)
