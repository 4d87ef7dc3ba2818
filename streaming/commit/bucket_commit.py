"""Commit a batch to a log in an object store.

``store.identity.judge`` and ``commit.versions`` decide whether it was written already, as for
directories. Rows that tasks sent in their messages, instead of staging them, go into the commit
object: then that is the only request.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import new_topic_id
from kafkalog.checkpoints.bucket_state import (
    MAX_INLINE_BYTES,
    BucketCommit,
    BucketState,
    Extent,
    data_name,
)
from kafkalog.checkpoints.commit_state import PartitionState, TopicState
from kafkalog.errors import CommitError
from kafkalog.files.system import system
from kafkalog.model import TopicPartition, partition_directory_name
from kafkalog.streaming.commit.committer import Outcome, warn_many_writers, warn_unknown_query
from kafkalog.streaming.commit.preserved_offsets import (
    batch_to_end,
    check_room,
    check_there,
    in_offset_order,
)
from kafkalog.streaming.commit.staging.in_objects import run_in_object
from kafkalog.streaming.commit.staging.staged_files import encode_attached
from kafkalog.streaming.commit.states import still_known
from kafkalog.streaming.commit.versions import note_versions, with_new_topics
from kafkalog.streaming.log.log_dir import PartitionDirectory
from kafkalog.streaming.objects.bucket_log import Proposal
from kafkalog.streaming.store.identity import BatchIdentity, Verdict, judge, remember
from kafkalog.streaming.store.topics import Topic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from kafkalog.checkpoints.commit_state import CommitState, WriterState
    from kafkalog.streaming.commit.append import CommitSettings
    from kafkalog.streaming.commit.preserved_offsets import CopiedBatch, CopiedEnd
    from kafkalog.streaming.commit.staging.staged_files import AttachedRecords
    from kafkalog.streaming.commit.staging.staged_run import StagedRun
    from kafkalog.streaming.objects.bucket_log import BucketLog
    from kafkalog.streaming.objects.bucket_store import BucketRoot
    from kafkalog.streaming.store.log_set import StateCondition

__all__ = [
    "CommittedBucket",
    "TopicChange",
    "change_topics",
    "commit_batch",
    "forget_silent_writers",
]

_LEAST_REMEMBERED_MS: Final = 30 * 86_400_000
_MAX_RELATIVE_OFFSET: Final = 2**31 - 1


def commit_batch(
    root: BucketRoot,
    plan: CommitSettings,
    identity: BatchIdentity,
    runs: Sequence[StagedRun],
    *,
    conditions: Sequence[StateCondition] = (),
    attached_records: Sequence[AttachedRecords] = (),
    ends: Mapping[TopicPartition, CopiedEnd] | None = None,
    copied: CopiedBatch | None = None,
) -> Outcome:
    """Commit a batch of staged runs; one that is committed already is skipped.

    Args:
        root: the log.
        plan: what was decided for all of the batch.
        identity: who writes it, and which batch it is.
        runs: what tasks have staged.
        conditions: what must hold of the state that the batch follows.
        attached_records: records of internal topics that are committed with it.
        ends: where logs are to end after it, which may be above their last record.
        copied: what it copies, of a batch that does.

    Raises:
        UnknownOutcomeError: the store did not tell whether it is committed.
        BatchIdentityError, FencedWriterError: it is neither the next batch nor the last one again.
        CommitError, RowError: nothing of it is committed.
    """
    conditions = [*conditions, *_checks_of(copied)]
    with root.writing() as log:
        _check_same_log(root, plan, log)
        asked_ms = root.options.delete_delay_ms or 0
        attached = _Attached(root, log, conditions, attached_records, ends or {})
        batch = _Batch(plan, identity, _within_limit(log, runs), attached, copied, asked_ms)
        committed = log.commit(batch.propose)
        if committed is None:
            return Outcome(False, log.state.number, {})
    warn_unknown_query(identity, batch.known_writers, batch.known_topics)
    warn_many_writers(identity, batch.known_writers, batch.known_topics)
    return Outcome(True, committed.number, _ends_of(committed, _partitions_of(runs, ends or ())))


def _checks_of(copied: CopiedBatch | None) -> list[StateCondition]:
    """Check where a batch is copied from; return what must hold of where it goes."""
    if copied is None:
        return []
    copied.check_source()
    return [copied.check_target]


def _partitions_of(
    runs: Iterable[StagedRun], ends: Iterable[TopicPartition]
) -> Collection[TopicPartition]:
    return {run.topic_partition for run in runs}.union(ends)


def _check_same_log(root: BucketRoot, plan: CommitSettings, log: BucketLog) -> None:
    """Refuse what was staged for a log that is not there any more: its objects lie there."""
    if plan.log_id not in {None, log.state.log_id}:
        raise CommitError(
            f"{root} holds the log {log.state.log_id} now, and the batch was planned for "
            f"{plan.log_id}: somebody has emptied it. Nothing was written. Run the batch again, "
            "or start the query again, with another checkpoint"
        )


def _ends_of(
    committed: BucketCommit, written: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    return {
        key: partition.log_end
        for topic in committed.topics.values()
        for number, partition in topic.partitions.items()
        if (key := TopicPartition(topic.name, number)) in written
    }


class CommittedBucket:
    """What is committed in a log in an object store, to those who know a set of directories."""

    def __init__(self, root: BucketRoot, state: CommitState) -> None:
        self.state = state
        self.directories = [root.open_store().root]
        self._partitions: dict[TopicPartition, PartitionDirectory] | None = None

    @classmethod
    def newest(cls, root: BucketRoot) -> CommittedBucket:
        """Return it as of a moment ago (``storage.pollInterval``)."""
        return cls(root, root.open_store().committed())

    def partitions(self) -> Mapping[TopicPartition, PartitionDirectory]:
        """Find the partitions, in order."""
        if self._partitions is None:
            (folder,) = self.directories
            keys = sorted(
                TopicPartition(topic.name, number)
                for topic in self.state.topics.values()
                for number in topic.partitions
            )
            self._partitions = {
                key: PartitionDirectory(key, folder / partition_directory_name(*key), folder)
                for key in keys
            }
        return self._partitions


class _Attached:
    """What goes with a batch, and what must hold of the state that it follows."""

    def __init__(
        self,
        root: BucketRoot,
        log: BucketLog,
        conditions: Sequence[StateCondition],
        records: Sequence[AttachedRecords],
        ends: Mapping[TopicPartition, CopiedEnd],
    ) -> None:
        self._root = root
        self._log = log
        self._conditions = conditions
        self._records = records
        self._ends = ends
        self._stored: tuple[object, Sequence[StagedRun]] | None = None
        self.settings: dict[str, Mapping[str, str]] = {}
        """Of the topics that the records go to."""

    def check(self, state: BucketState) -> None:
        """Raise what a condition raises about a state."""
        if self._conditions:
            shown = CommittedBucket(self._root, self._root.open_store().show_state(state))
            for condition in self._conditions:
                condition(shown)

    def runs(self, state: BucketState, runs: Sequence[StagedRun]) -> Sequence[StagedRun]:
        """Return runs and the records behind them, in an object where a commit has no room."""
        if not self._records and not self._ends:
            return runs
        topics = [self._topic(each, state) for each in self._records]
        ends = list(_batches_to_ends(self._ends, state, runs))
        told = [(topic.topic_id, topic.partitions, topic.settings) for topic in topics]
        given = told, [(run.topic_key, run.first_offset) for run in ends], runs
        if self._stored is None or self._stored[0] != given:
            pairs = zip(self._records, topics, strict=True)
            own = [self._run(each, topic) for each, topic in pairs]
            self._stored = given, _within_limit(self._log, [*runs, *own, *ends])
        return self._stored[1]

    def _topic(self, attached: AttachedRecords, state: BucketState) -> Topic:
        named = [(k, each) for k, each in state.topics.items() if each.name == attached.topic]
        policy, self.settings[attached.topic] = attached.policy, dict(attached.policy.settings)
        if not named:
            return Topic(attached.topic, policy.partitions or 1, policy.settings, exists=False)
        ((key, known),) = named
        self.settings[attached.topic] = known.settings
        return Topic(attached.topic, len(known.partitions), known.settings, True, key)

    @staticmethod
    def _run(attached: AttachedRecords, topic: Topic) -> StagedRun:
        key = TopicPartition(attached.topic, attached.partition_of(topic.partitions))
        run = run_in_object(key, encode_attached(attached, topic))
        return replace(run, partitions=topic.partitions, topic_key=topic.known_key)


def _batches_to_ends(
    ends: Mapping[TopicPartition, CopiedEnd], state: BucketState, runs: Sequence[StagedRun]
) -> Iterator[StagedRun]:
    """Yield the batches without records that logs need after some runs to end where they should."""
    ids = {topic.name: key for key, topic in state.topics.items()}
    by_partition = _by_partition(runs)
    for key, wanted in ends.items():
        topic_id = ids.get(key.topic)
        partitions = {} if topic_id is None else state.topics[topic_id].partitions
        exists = topic_id is not None
        topic = Topic(key.topic, len(partitions), {}, exists=exists, topic_id=topic_id)
        check_there(key, topic, has_folder=key.partition in partitions)
        log_end = partitions[key.partition].log_end
        own = _ordered(key, by_partition.get(key, ()), log_end)
        batch = batch_to_end(key, wanted, own, log_end)
        if batch is not None:
            run = run_in_object(key, [batch])
            yield replace(run, partitions=topic.partitions, topic_key=topic.known_key)


def _by_partition(runs: Sequence[StagedRun]) -> dict[TopicPartition, list[StagedRun]]:
    found: dict[TopicPartition, list[StagedRun]] = {}
    for run in runs:
        found.setdefault(run.topic_partition, []).append(run)
    return found


def _ordered(
    key: TopicPartition, runs: Sequence[StagedRun], log_end_offset: int
) -> Sequence[StagedRun]:
    """Return runs in the order of the offsets that they keep, or as they were given."""
    if not any(run.first_offset >= 0 for run in runs):
        check_room(key, runs, log_end_offset)
        return runs
    return in_offset_order(key, runs, log_end_offset)


def change_topics(
    root: BucketRoot,
    change: Callable[[BucketState], TopicChange | None],
    *,
    creates: bool = False,
    dry_run: bool = False,
) -> BucketState:
    """Commit a change of topics, and return the state after it.

    Args:
        root: the log.
        change: what is to be changed in a state; None if it is so already. It may refuse.
        creates: make the log if there is none, but for a dry run.
        dry_run: ask for the change alone.

    Raises:
        LogDirectoryError: there is no log.
        UnknownOutcomeError: the store did not tell whether it is committed.
        KafkaLogError: nothing is changed.
    """

    def propose(state: BucketState) -> Proposal | None:
        found = change(state)
        if found is None:
            return None
        commit = BucketCommit(topics=found.topics, deleted=found.deleted)
        return Proposal(commit, is_known_again=True)

    if creates and dry_run and root.open_store().is_empty():
        change(nothing := BucketState(""))
        return nothing
    with root.writing(creates=creates and not dry_run) as log:
        log.follow()
        if dry_run:
            change(log.state)
        else:
            log.commit(propose)
        return log.state


class TopicChange(NamedTuple):
    """What becomes of topics, by their ids: as in a commit."""

    topics: Mapping[str, TopicState] = {}
    deleted: tuple[str, ...] = ()


def forget_silent_writers(root: BucketRoot) -> list[str]:
    """Forget the writers that were silent for twice as long as they asked to be remembered.

    As in log directories, one commit notes that a writer has expired, and a later one forgets it:
    one wrong clock makes nobody forgotten. None is forgotten before thirty days.

    Returns:
        those that were forgotten.

    Raises:
        UnknownOutcomeError: the store did not tell whether it is committed.
        KafkaLogError: nothing is changed.
    """
    now_ms = system.time_ns() // 1_000_000
    forgotten: list[str] = []

    def propose(state: BucketState) -> Proposal | None:
        change = _silence(state, now_ms)
        forgotten[:] = [name for _, name in change.forgotten]
        if not (change.writers or change.topics or forgotten):
            return None
        return Proposal(change, is_known_again=True)

    with root.writing() as log:
        log.follow()
        log.commit(propose)
    return forgotten


def _silence(state: BucketState, now_ms: int) -> BucketCommit:
    """Return a commit of what is to be noted and forgotten of writers that are silent."""
    writers, gone = _noted_silence(state.writers, now_ms)
    forgotten = [("", name) for name in gone]
    topics = {}
    for key, topic in state.topics.items():
        versions, gone = _noted_silence(topic.versions, now_ms)
        forgotten += [(key, name) for name in gone]
        if versions:
            topics[key] = TopicState(topic.name, settings=topic.settings, versions=versions)
    return BucketCommit(
        topics=topics,
        writers=writers,
        forgotten=tuple(forgotten),
    )


def _noted_silence(
    writers: Mapping[str, WriterState], now_ms: int
) -> tuple[dict[str, WriterState], list[str]]:
    """Return the writers of which something is to be noted now, and those to be forgotten."""
    known = still_known(writers, now_ms)
    noted = {name: last for name, last in known.items() if last is not writers[name]}
    young_ms = now_ms - _LEAST_REMEMBERED_MS
    return noted, [name for name in writers.keys() - known if writers[name].time_ms < young_ms]


def _within_limit(log: BucketLog, runs: Sequence[StagedRun]) -> Sequence[StagedRun]:
    """Put what tasks have handed over into an object, where it is too much for a commit."""
    content = b"".join(run.data for run in runs)
    if len(content) <= MAX_INLINE_BYTES:
        return runs
    name = data_name(log.state.number, system.random_id().hex)
    log.objects.put(f"{log.folder}/{name}", content)
    return _placed(runs, name)


def _placed(runs: Sequence[StagedRun], name: str) -> list[StagedRun]:
    """Return runs with the place of what they carry: one after the other in an object."""
    placed, position = [], 0
    for run in runs:
        if not run.data:
            placed.append(run)
            continue
        kept = run.data if not name else b""
        placed.append(replace(run, file=name, position=position, data=kept))
        position += run.size
    return placed


@dataclass
class _Batch:
    """One batch, as it is proposed to each state that it may follow."""

    plan: CommitSettings
    identity: BatchIdentity
    runs: Sequence[StagedRun]
    attached: _Attached
    copied: CopiedBatch | None = None
    delay_ms: int = 0
    """How long objects are to be kept that no commit names; the log keeps the longest."""
    new_ids: dict[str, str] = field(default_factory=dict)
    known_writers: frozenset[str] = frozenset()
    known_topics: list[TopicState] = field(default_factory=list)
    """Of those that it goes to, as they were before it."""

    def propose(self, state: BucketState) -> Proposal | None:
        """See :meth:`BucketLog.commit`."""
        by_name = {topic.name: topic for topic in state.topics.values()}
        identity, last = self.identity, state.writers.get(self.identity.writer)
        self.known_writers = frozenset(state.writers)
        names_met = {run.topic_partition.topic for run in self.runs}
        self.known_topics = [topic for name, topic in by_name.items() if name in names_met]
        if judge(identity, last, allows_unknown=self.plan.allows_unknown) is Verdict.SKIP:
            return None
        if identity.is_versioned:
            identity = with_new_topics(identity, by_name)
            if not identity.digests:
                return None
        self.attached.check(state)
        names = {name for name, _ in identity.digests} if identity.is_versioned else None
        chosen = [run for run in self.runs if names is None or run.topic_partition.topic in names]
        runs = _placed(self.attached.runs(state, chosen), "")
        topics, extents = self._appended(state, runs)
        for key, topic in state.topics.items():  # a version counts in a topic without rows, too
            if names is not None and topic.name in names and key not in topics:
                topics[key] = TopicState(topic.name, settings=topic.settings)
        topics, writers = self._noted(topics, identity, last)
        topics = self._with_origins(state, topics)
        change = BucketCommit(
            topics=topics,
            writers=writers,
            extents=extents,
            inline=b"".join(run.data for run in runs),
            delay_ms=self.delay_ms if self.delay_ms > state.delay_ms or not state.number else 0,
        )
        return Proposal(change, is_known_again=identity.is_remembered)

    def _noted(
        self, topics: dict[str, TopicState], identity: BatchIdentity, last: WriterState | None
    ) -> tuple[dict[str, TopicState], dict[str, WriterState]]:
        """Note the batch, where it is to be known when it comes again."""
        if not identity.is_remembered:
            return topics, {}
        now_ms = max(system.time_ns() // 1_000_000, 0)
        noted = remember(identity, last, now_ms, self.plan.expiration_ms)
        if identity.is_versioned:
            return note_versions(topics, identity, noted), {}
        return topics, {identity.writer: noted}

    def _with_origins(
        self, state: BucketState, topics: dict[str, TopicState]
    ) -> dict[str, TopicState]:
        """Note how far a batch that copies has come in its topics, those without rows too."""
        if self.copied is None:
            return topics
        whole = {**state.topics, **topics}
        for key, topic in topics.items():
            if (known := state.topics.get(key)) is not None:
                whole[key] = replace(topic, origins=known.origins)
        noted = self.copied.note(whole, max(system.time_ns() // 1_000_000, 0))
        for key, topic in noted.items():
            if topic.origins != whole[key].origins:
                base = topics.get(key, TopicState(topic.name, settings=topic.settings))
                topics[key] = replace(base, origins=topic.origins)
        return topics

    def _appended(
        self, state: BucketState, runs: Sequence[StagedRun]
    ) -> tuple[dict[str, TopicState], dict[tuple[str, int], list[Extent]]]:
        """Return what the topics of some runs become, and the extents that they get."""
        keys = {topic.name: key for key, topic in state.topics.items()}
        topics: dict[str, TopicState] = {}
        extents: dict[tuple[str, int], list[Extent]] = {}
        for where, own in _by_partition(runs).items():
            name, number = where
            key = keys.get(name) or self.new_ids.setdefault(name, new_topic_id())
            known = state.topics.get(key)
            if key not in topics:
                topics[key] = self._changed(known, own[0])
            for run in own:
                _check_not_deleted(run, keys.get(name))
                _check_placed(run, len((known or topics[key]).partitions))
            ordered = _ordered(where, own, known.partitions[number].log_end if known else 0)
            first = max(ordered[0].first_offset, 0)  # a new log begins where its rows do
            start = known.partitions[number] if known else PartitionState(first, first, first, 0)
            found = list(_extents_of(ordered, start, is_empty=(key, number) not in state.extents))
            ended = start.ended_at(found[-1].end_offset, start.leader_epoch)
            partitions = {**topics[key].partitions, number: ended}
            topics[key] = replace(topics[key], partitions=partitions)
            extents[key, number] = found
        return topics, extents

    def _changed(self, known: TopicState | None, run: StagedRun) -> TopicState:
        """Return what of a topic a commit says beside its ends; all partitions of a new one."""
        name = run.topic_partition.topic
        query = self.identity.writer if self.identity.is_query else None
        settings = {**(known.settings if known else {}), **self.plan.topics.settings}
        if name in self.attached.settings:
            query, settings = None, dict(self.attached.settings[name])
        new = {} if known else dict.fromkeys(range(run.partitions), PartitionState(0, 0, 0, 0))
        return TopicState(name, partitions=new, settings=settings, last_query=query)


def _check_not_deleted(run: StagedRun, now: str | None) -> None:
    """Refuse rows of a topic that was deleted since: only what comes after may make it again."""
    if run.topic_key not in {None, now}:
        again = "" if now is None else f", and made again with the id {now}"
        raise CommitError(
            f"topic {run.topic_partition.topic!r} (topic id {run.topic_key}) was deleted after "
            f"this batch was planned{again}. Nothing was written. Run the batch again, or start "
            "the query again: it is planned for the topics that are there by then"
        )


def _check_placed(run: StagedRun, count: int) -> None:
    """Refuse rows that were placed among another number of partitions than the topic has."""
    if count != run.partitions:
        raise CommitError(
            f"topic {run.topic_partition.topic!r} has {count} partitions, and rows were placed "
            f"among {run.partitions}: it was made or changed meanwhile. Nothing was written; the "
            "batch may be tried again"
        )


def _extents_of(
    runs: Sequence[StagedRun], before: PartitionState, *, is_empty: bool
) -> Iterator[Extent]:
    """Yield the extents of runs, the first one behind the end of a log, which has none if empty."""
    end, epoch = before.log_end, max(before.leader_epoch, 0)
    for slot, run in enumerate(runs):
        place = run.file, run.position, run.size
        whole = Extent(*place, end, run.span, run.max_timestamp, epoch, run.whole_file)
        if run.first_offset < 0:
            yield whole
            end = whole.end_offset
        else:
            first = end if is_empty and not slot else None
            yield from _extents_with_offsets(run, whole, first)
            end = run.last_offset + 1


def _extents_with_offsets(run: StagedRun, whole: Extent, first: int | None) -> Iterator[Extent]:
    """Yield the extents of a run that keeps its offsets; several only where holes are very large.

    One begins at its first offset, as a segment would that is rolled for it; at ``first`` where
    the segment is there already. None has more offsets than a segment may have.
    """
    table = run.table(whole.base_offset, whole.leader_epoch)
    row = 0
    while row < len(table):
        base = int(table.base_offset[row])
        if first is not None and not row and table.last_offset[0] - first <= _MAX_RELATIVE_OFFSET:
            base = first
        last = int(table.last_offset.searchsorted(base + _MAX_RELATIVE_OFFSET, side="right"))
        some = slice(row, last)
        yield whole._replace(
            position=int(table.position[row]),
            size=int(table.size[some].sum()),
            base_offset=base,
            records=int(table.last_offset[last - 1]) + 1 - base,
            max_timestamp=int(table.max_timestamp[some].max()),
            alone=whole.alone and last - row == len(table),
            has_offsets=True,
        )
        row = last
