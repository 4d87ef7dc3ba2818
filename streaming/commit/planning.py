"""Plan a commit: offsets, segments and folders of new topics, from staged runs."""

from __future__ import annotations

import re
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import new_topic_id
from kafkalog.checkpoints.commit_state import STAGED_PREFIX
from kafkalog.checkpoints.committed import Committed
from kafkalog.checkpoints.topic_ids import is_changed_id
from kafkalog.errors import CommitError, LogDirectoryError, RowError
from kafkalog.model import TopicPartition, partition_directory_name
from kafkalog.streaming.commit.append import AppenderCache, PartitionAppend
from kafkalog.streaming.commit.preserved_offsets import (
    StagedEnds,
    check_room,
    check_there,
    in_offset_order,
)
from kafkalog.streaming.commit.staging.staged_files import AttachedRecordsStaging
from kafkalog.streaming.commit.staging.staged_source import LateEncoding, StagedFiles, must_wait
from kafkalog.streaming.commit.tail_recovery import TailRecovery
from kafkalog.streaming.store.broker_files import check_log_start
from kafkalog.streaming.store.ends.recorded import BrokerMarks
from kafkalog.streaming.store.log_dirs import LogDirs, choose_directory
from kafkalog.streaming.store.recovery.lost_partitions import lost_partitions, lost_text
from kafkalog.streaming.store.recovery.unsynced import advice
from kafkalog.streaming.store.topics import Topic, TopicCatalog, warn_of_partitions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kafkalog.streaming.commit.append import AppendersOfSet, CommitSettings
    from kafkalog.streaming.commit.preserved_offsets import CopiedEnd
    from kafkalog.streaming.commit.replication import Replication
    from kafkalog.streaming.commit.staging.staged_files import AttachedRecords
    from kafkalog.streaming.commit.staging.staged_run import StagedRun
    from kafkalog.streaming.log.appender import PartitionAppender
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet

__all__ = ["plan_appends", "plan_partitions"]

_STAGED_NAME: Final = re.compile(
    re.escape(STAGED_PREFIX) + r"[0-9a-f]{16}\.[0-9]+\.[0-9a-f]{32}", re.ASCII
)


def plan_appends(
    log_set: LogSet,
    plan: CommitSettings,
    runs: Sequence[StagedRun],
    attached_records: Sequence[AttachedRecords] = (),
    ends: Mapping[TopicPartition, CopiedEnd] | None = None,
    *,
    now_ms: int,
    staged_prefix: str,
    appenders: AppendersOfSet,
    replication: Replication,
) -> list[PartitionAppend]:
    """Plan what a batch does to each partition; only a torn tail is cut off, nothing else touched.

    REQUIRES: the locks are held, and nothing is unfinished. A topic that is new gets all of its
    partitions, those without rows too, where ``replication`` says. Ends of logs that ``appenders``
    knows are not read. What is encoded here is staged in files of the prefix ``staged_prefix``.

    Raises:
        RowError, InvalidTopicError: a topic, partition or offset that rows may not go to.
        RecordTooLargeError: a record, of those encoded now, that exceeds its topic's limit.
        CommitError, LogDirectoryError: a log that cannot be appended to (``TailRecovery``); a run
            that no task of ours made; rows that go to the topic of attached records.
    """
    attached_records = _checked(runs, plan, attached_records)
    planner = _Planner(log_set, plan, attached_records, now_ms, appenders, replication)
    durable = plan.policy.is_durable
    with closing(StagedFiles(plan.directories)) as files, ExitStack() as undo:
        aboard = AttachedRecordsStaging(replication.staging(staged_prefix, durable=durable))
        undo.callback(aboard.discard)
        runs = [*runs, *_staged(attached_records, aboard, planner)]
        marks = StagedEnds(ends or {}, replication.staging(staged_prefix, durable=durable))
        undo.callback(marks.discard)
        opened = _ended(list(planner.open(_by_partition(runs), ends or ())), marks)
        late = LateEncoding(files, replication.staging(staged_prefix, durable=durable))
        undo.callback(late.discard)
        planned = _planned(opened, files, late, replication, durable=durable)
        undo.pop_all()
        return planned


def plan_partitions(
    log_set: LogSet,
    plan: CommitSettings,
    topic: Topic,
    starts: Mapping[int, int],
    *,
    now_ms: int,
    replication: Replication,
) -> list[PartitionAppend]:
    """Plan to make empty partitions of a topic, which gets an id if it does not exist yet.

    ``starts`` has the first offset of each, by its number.

    REQUIRES: as :func:`plan_appends`; none of them is there.

    Raises:
        LogDirectoryError, CommitError: as :func:`plan_appends`.
    """
    appenders = AppenderCache().begin(log_set.state)
    planner = _Planner(log_set, plan, (), now_ms, appenders, replication)
    identified = topic if topic.exists else _with_id(topic)
    with closing(StagedFiles(plan.directories)) as files:
        return [
            PartitionAppend.of(
                identified,
                opened.appender,
                (),
                opened.member_id,
                files,
                durable=plan.policy.is_durable,
                log_start=opened.log_start,
            )
            for opened in planner.make(identified, starts)
        ]


def _by_partition(runs: Sequence[StagedRun]) -> dict[TopicPartition, list[StagedRun]]:
    found: dict[TopicPartition, list[StagedRun]] = {}
    for run in runs:
        found.setdefault(run.topic_partition, []).append(run)
    return found


@dataclass(frozen=True, slots=True)
class _Opened:
    """A partition whose log is open at its end, and what it is to get."""

    topic: Topic
    key: TopicPartition
    runs: Sequence[StagedRun]
    appender: PartitionAppender
    member_id: str
    log_start: int


def _ended(opened: Sequence[_Opened], marks: StagedEnds) -> list[_Opened]:
    """Add to each log what it needs to end where it should, and leave out those that do."""
    for each in opened:
        marks.add(each.key, each.runs, each.appender.log_end_offset, each.topic.config)
    staged = marks.finish()
    ended = (
        replace(each, runs=[*each.runs, staged[each.key]]) if each.key in staged else each
        for each in opened
    )
    return [each for each in ended if each.runs or each.key not in marks]


def _planned(
    opened: Sequence[_Opened],
    files: StagedFiles,
    late: LateEncoding,
    replication: Replication,
    *,
    durable: bool,
) -> list[PartitionAppend]:
    for each in opened:
        if must_wait(each.runs, each.topic.config):
            late.add(each.key, each.runs, each.topic.config, each.appender.log_end_offset)
    encoded = late.finish()
    return [
        PartitionAppend.of(
            each.topic,
            each.appender,
            replication.own(encoded.get(each.key, each.runs), each.member_id),
            each.member_id,
            files,
            durable=durable,
            log_start=each.log_start,
        )
        for each in opened
    ]


def _staged(
    attached_records: Sequence[AttachedRecords], aboard: AttachedRecordsStaging, planner: _Planner
) -> list[StagedRun]:
    for attached in attached_records:
        aboard.add(attached, planner.topic(attached.topic))
    return aboard.finish()


def _checked(
    runs: Sequence[StagedRun], plan: CommitSettings, attached_records: Sequence[AttachedRecords]
) -> list[AttachedRecords]:
    """Check what tasks have reported; return the attached ones that are not empty."""
    attached_records = [attached for attached in attached_records if attached.records]
    for run in runs:
        _check_run(run, plan, attached_records)
    return attached_records


def _check_run(
    run: StagedRun, plan: CommitSettings, attached_records: Sequence[AttachedRecords]
) -> None:
    """Hold what came over the wire against what a task can have made: names become paths."""
    known = 0 <= run.directory < len(plan.directories) and _STAGED_NAME.fullmatch(run.file)
    if not known or run.position < 0 or run.size <= 0:
        raise CommitError(f"a task reported a staged run that none can have made: {run!r:.300}")
    if any(run.topic_partition.topic == attached.topic for attached in attached_records):
        raise CommitError(
            f"rows are to go to topic {run.topic_partition.topic!r}, and so are records that the "
            "commit adds itself: write them by themselves"
        )


class _Planner:
    def __init__(
        self,
        log_set: LogSet,
        plan: CommitSettings,
        attached_records: Sequence[AttachedRecords],
        now_ms: int,
        appenders: AppendersOfSet,
        replication: Replication,
    ) -> None:
        self._appenders = appenders
        self._replication = replication
        self._log_set = log_set
        self._plan = plan
        self._now_ms = now_ms
        self._partitions = log_set.partitions()
        committed = Committed(log_set.state, None)
        self._catalog = TopicCatalog(self._partitions, committed, plan.topics, appenders.topic_id)
        self._marks = BrokerMarks(log_set.state)
        self._policies = {attached.topic: attached.policy for attached in attached_records}
        self._topics: dict[str, Topic] = {}

    @cached_property
    def _counts(self) -> dict[Path, int]:
        """How many partitions each log directory has; changed as new ones are placed."""
        return LogDirs(self._log_set.directories).partition_counts()

    def topic(self, name: str, written: Collection[int] = ()) -> Topic:
        """Describe a topic, or the one that is to be made; ``written`` of its partitions are."""
        found = self._topics.get(name)
        if found is None or written:
            found = self._catalog.topic(name, self._policies.get(name), written=written)
            self._topics[name] = found
        return found

    def open(
        self,
        by_partition: Mapping[TopicPartition, list[StagedRun]],
        ends: Iterable[TopicPartition] = (),
    ) -> Iterator[_Opened]:
        wanted: dict[str, set[int]] = {}
        placed: dict[str, set[int]] = {}
        for key in ends:
            check_there(key, self.topic(key.topic), has_folder=key in self._partitions)
            wanted.setdefault(key.topic, set()).add(key.partition)
            placed.setdefault(key.topic, set())
        for key, runs in by_partition.items():
            wanted.setdefault(key.topic, set()).add(key.partition)
            placed.setdefault(key.topic, set()).update(run.partitions for run in runs)
        topics = {name: self.topic(name, wanted[name]) for name in sorted(wanted)}
        for run in chain.from_iterable(by_partition.values()):
            self._check_not_deleted(run, topics[run.topic_partition.topic])
        self._check_new_topics(topics)
        for name, topic in topics.items():
            self._check_none_lost(topic)
            given = None if name in self._policies else self._plan.topics.partitions
            if topic.exists and given not in {None, topic.partitions}:
                warn_of_partitions(name, given, topic.partitions)
            if not placed[name] <= {topic.partitions} or not wanted[name] <= {
                *range(topic.partitions)
            }:
                # Else rows of one key would lie in two partitions, in no order.
                now = topic.partitions
                before = max(placed[name] - {now}, default=now)  # of tasks that did not see it
                raise RowError(
                    f"rows of topic {name!r} were placed among {before} partitions, and it has "
                    f"{now}: it was made, or got more of them, by another writer meanwhile; try "
                    "again"
                )
            numbers = sorted(wanted[name]) if topic.exists else range(topic.partitions)
            identified = topic if topic.exists else _with_id(topic)
            for number in numbers:
                key = TopicPartition(name, number)
                yield self._open_partition(identified, key, by_partition.get(key, []))

    def make(self, topic: Topic, starts: Mapping[int, int]) -> Iterator[_Opened]:
        """Open partitions that are not there yet, at their first offsets."""
        self._check_none_lost(topic)
        for number, start in starts.items():
            yield self._open_partition(topic, TopicPartition(topic.name, number), [], start)

    def _check_not_deleted(self, run: StagedRun, topic: Topic) -> None:
        """Refuse rows of a topic that was deleted since: only what comes after may make it again.

        Raises:
            CommitError: it was.
        """
        before, now = run.topic_key, topic.known_key
        if before in {None, now}:
            return
        if now is not None and any(
            is_changed_id(folder, topic.name, before, now) for folder in self._log_set.directories
        ):
            return
        again = "" if now is None else f", and made again with the id {topic.topic_id}"
        raise CommitError(
            f"topic {topic.name!r} (topic id {before}) was deleted after this batch was "
            f"planned{again}. Nothing was written. Run the batch again, or start the query again: "
            "it is planned for the topics that are there by then"
        )

    def _check_new_topics(self, topics: Mapping[str, Topic]) -> None:
        most = self._plan.topics.most_new
        new = [n for n, topic in topics.items() if not topic.exists and n not in self._policies]
        if most is not None and len(new) > most:
            raise RowError(
                f"column 'topic' names {len(new)} topics that do not exist, among them {new[0]!r}; "
                f"one batch may make {most} (option maxNewTopics)"
            )

    def _check_none_lost(self, topic: Topic) -> None:
        """Refuse a topic that lacks a partition: keys would go elsewhere, and nobody would know."""
        known = self._log_set.state.topics.get(topic.key)
        if known is None or not topic.exists or self._catalog.has_all(known):
            return
        away = self._replication.leaderless(known)
        lost = [number for number in lost_partitions(known, self._partitions) if number not in away]
        if lost:
            raise LogDirectoryError(f"{lost_text(known, lost)}. Nothing was written")

    def _open_partition(
        self, topic: Topic, key: TopicPartition, runs: Sequence[StagedRun], start: int = 0
    ) -> _Opened:
        found = self._partitions.get(key)
        self._replication.check_led(topic, key)
        if found is None and topic.exists and runs:
            raise RowError(
                f"partition {key.partition} of topic {key.topic!r} is not in these log "
                "directories, though others of the topic are: a broker of a larger cluster lived "
                "here. Name the partitions to write in a column 'partition'"
            )
        folder, log_dir = self._place(topic, key, found)
        kept = [run for run in runs if run.first_offset >= 0]
        committed_end = self._log_set.state.log_end(key.topic, topic.topic_id, key.partition)
        log_start, appender = 0, self._appenders.take(folder)
        if appender is not None and appender.log_end_offset == committed_end:
            appender.resume(topic.config, now_ms=self._now_ms)
        else:
            log = self._foreign_log(topic, key, folder, is_there=found is not None)
            first_offset = min((run.first_offset for run in kept), default=start)
            appender = log.open(now_ms=self._now_ms, first_offset=first_offset)
            if found is not None:
                log_start = self._marks.log_start(found)
                check_log_start(found, log_start, appender.log_end_offset)
        known = self._log_set.state.partition(key.topic, topic.topic_id, key.partition)
        if known is not None:
            appender.lead(known.leader_epoch)
        if kept:
            runs = in_offset_order(key, runs, appender.log_end_offset)
        else:
            check_room(key, runs, appender.log_end_offset)
        member = self._log_set.node.member_of(log_dir)
        return _Opened(topic, key, runs, appender, member, log_start)

    def _foreign_log(
        self, topic: Topic, key: TopicPartition, folder: Path, *, is_there: bool
    ) -> TailRecovery:
        known = self._log_set.state.topics.get(topic.key)
        return TailRecovery(
            folder=folder,
            key=key,
            config=topic.config,
            state=self._log_set.state,
            topic_id=topic.topic_id,
            marks=self._marks,
            is_there=is_there,
            advice=advice(known, key.partition),
            check_locks=self._log_set.check_current,
        )

    def _place(
        self, topic: Topic, key: TopicPartition, found: PartitionDirectory | None
    ) -> tuple[Path, Path]:
        if found is not None:
            return found.path, found.log_dir
        homes = self._replication.homes(topic, key.partition)
        log_dir = choose_directory({folder: self._counts[folder] for folder in homes})
        self._counts[log_dir] += 1
        return log_dir / partition_directory_name(*key), log_dir


def _with_id(topic: Topic) -> Topic:
    return replace(topic, exists=False, topic_id=new_topic_id())
