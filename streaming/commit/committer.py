"""The commit of a batch: what the driver does once all tasks have staged their rows.

1. take the locks of all log directories;
2. find out whether the batch is the next one, committed already, or neither;
3. roll back what an unfinished intent names;
4. write the intent, and the folder that keeps a broker from starting;
5. append the staged runs;
6. make them durable, and publish the new commit state: the first rename is the commit;
7. bring Kafka's checkpoint files up to date, and clear away.

If a commit ends before step 6, the next one rolls it back in its step 3, and the log directories
are as they were. After step 6 nothing is rolled back: a failure is logged, and the next commit does
what is missing.

``docs/commit.md`` says what each step is for.
"""

from __future__ import annotations

import logging
import os
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.intent import Intent
from kafkalog.errors import (
    CommitError,
    DurabilityError,
    KafkaLogError,
    LogDirectoryError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.deferred_signals import Interrupted, check_interrupt, shielded, shielded_part
from kafkalog.files.parallel import FileSyncer, for_each, sync_and_close
from kafkalog.files.regular import fsync_directory
from kafkalog.files.system import system
from kafkalog.files.timeouts import at, run_with_timeout
from kafkalog.streaming.commit.append import AppenderCache, PartitionAppend
from kafkalog.streaming.commit.planning import plan_appends, plan_partitions
from kafkalog.streaming.commit.replication import Replication
from kafkalog.streaming.commit.staging.staged_source import StagedFiles
from kafkalog.streaming.commit.states import (
    all_durable,
    make_left_durable,
    next_state,
    warn_forgotten_writers,
)
from kafkalog.streaming.commit.versions import new_topics_of
from kafkalog.streaming.options.bridge import what_to_do
from kafkalog.streaming.store.broker_files import (
    WrittenEnd,
    drop_stale_entries_on_nodes,
    sweep,
    write_ends,
)
from kafkalog.streaming.store.identity import APP_PREFIX, Verdict, judge, remember
from kafkalog.streaming.store.recovery.partition_states import sync_up_to
from kafkalog.streaming.store.recovery.rollback import roll_back
from kafkalog.streaming.store.recovery.unsynced_tail import boot_of, refuse_lost_tail
from kafkalog.streaming.store.replicas.controller import decide_again
from kafkalog.streaming.store.replicas.open_nodes import QuorumSession
from kafkalog.streaming.store.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitStamp, CommitState, TopicState
    from kafkalog.checkpoints.query_checkpoint import QueryCheckpoint
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.commit.append import AppendersOfSet, CommitSettings
    from kafkalog.streaming.commit.preserved_offsets import CopiedBatch, CopiedEnd
    from kafkalog.streaming.commit.staging.staged_files import AttachedRecords
    from kafkalog.streaming.commit.staging.staged_run import StagedRun
    from kafkalog.streaming.log.appender import AppendPlan
    from kafkalog.streaming.store.identity import BatchIdentity
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.session import Condition
    from kafkalog.streaming.store.topics import Topic


__all__ = [
    "CommitAttempt",
    "Committer",
    "Outcome",
    "apply",
    "made_partitions",
    "warn_many_writers",
    "warn_unknown_query",
    "write_end_checkpoints",
    "written_end",
]


# ----------------------------------------------------------------------------------------------
# A query whose checkpoint was deleted looks like a new one, and writes its rows once more.
#
# Without a ``transactional.id`` the two cannot be distinguished: the query's id is made with its
# checkpoint. So a warning is given when a query begins in a topic that another one wrote last.


_LOGGER: Final = logging.getLogger("kafkalog.sink")

_SHOWN: Final = 20


def warn_unknown_query(
    identity: BatchIdentity, writers: Container[str], topics: Iterable[TopicState]
) -> None:
    """Say that a query, new to a state with these writers, begins where another one wrote last.

    ``topics`` are those that it goes to, as they were before.
    """
    if not identity.is_query or identity.writer in writers:
        return
    others = {topic.name: topic.last_query for topic in topics if topic.last_query is not None}
    if others:
        shown = [f"{topic} ({query})" for topic, query in sorted(others.items())]
        _LOGGER.warning(
            "%s is the first of its query, and went to topics that another query wrote last: %s. "
            "If it is the same query after its checkpoint was deleted or moved, its rows are there "
            "twice from now on: stop it. A query with an option transactional.id is refused then",
            identity,
            ", ".join(shown[:_SHOWN]) + (", …" if len(shown) > _SHOWN else ""),
        )


_MANY_WRITERS: Final = 1000


def warn_many_writers(
    identity: BatchIdentity, writers: Collection[str], topics: Iterable[TopicState]
) -> None:
    """Say that one more writer is remembered beside very many: each commit has to know them all.

    ``writers`` and ``topics`` are those of the state that knew it not yet.
    """
    versions = [topic.versions for topic in topics]
    app_id = identity.writer.removeprefix(APP_PREFIX)
    is_known = identity.writer in writers or any(app_id in known for known in versions)
    count = len(writers) + sum(map(len, versions))
    if identity.is_remembered and not is_known and count >= _MANY_WRITERS:
        _LOGGER.warning(
            "%s is by one more writer beside %d that are remembered, and each costs every commit. "
            "The usual cause is a job that takes a new txnAppId or transactional.id for each run, "
            "as with a uuid or a date in it. Let a job keep its own; others go when they are "
            "silent for twice their transactional.id.expiration.ms",
            identity,
            count,
        )


# ----------------------------------------------------------------------------------------------
# What a commit came to, also where the thread that made it was left behind amid it.


_TRIES: Final = 3
"""How often a batch of several nodes is begun: a mount that comes and goes may be in its way."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a commit came to: whether it appended, and the ends of the partitions it wrote."""

    appended: bool
    sequence: int
    end_offsets: dict[TopicPartition, int]

    @classmethod
    def of(cls, state: CommitState, appends: Sequence[PartitionAppend]) -> Outcome:
        """Return what it comes to if ``state`` is published."""
        ends = {each.plan.topic_partition: each.plan.end_offset for each in appends}
        return cls(True, state.sequence, ends)


class CommitAttempt:
    """What a commit of several nodes has begun, should a node stall and it begin again.

    Nobody else can commit in between: the locks of the other nodes pass on. So the newest state
    tells whether what had begun was published.
    """

    def __init__(self) -> None:
        self._stamp: CommitStamp | None = None
        self._outcome: Outcome | None = None
        self._is_published = False

    def note(self, state: CommitState, appends: Sequence[PartitionAppend]) -> None:
        """Note what is about to be published."""
        self._stamp, self._outcome = state.stamp, Outcome.of(state, appends)
        self._is_published = False

    def look(self, log_set: LogSet) -> None:
        """Note whether what had begun was published: a condition of opening the set.

        It must be looked at before the rollback: opening a set may publish states of its own, as
        when folders of deleted topics are gone, or when replicas leave the ISR.
        """
        self._is_published |= self._stamp is not None and self._stamp == log_set.state.stamp

    def published(self) -> Outcome | None:
        """Return the outcome of what had begun, if it was published; else it was rolled back."""
        if self._is_published:
            return self._outcome
        self._stamp = None
        return None

    def until_done(self, plan: CommitSettings, commit: Callable[[], Outcome]) -> Outcome:
        """Do ``commit``; of several nodes again without one that stalls, or that has vanished.

        Raises:
            CommitError: whether it was published is not known, since too few nodes are left.
            OSError, KafkaLogError: as ``commit``.
        """
        if not plan.has_nodes:
            return commit()

        def once() -> Outcome:
            before = self._stamp
            try:
                return commit()
            except (OSError, KafkaLogError):
                if self._stamp is not before:
                    self._stamp = None  # who fails by himself has seen to what he began
                raise

        def go_on() -> Outcome:
            return run_with_timeout(once, plan.directories, plan.policy.lag_ms)

        try:
            for _ in range(_TRIES - 1):
                with suppress(OSError, LogDirectoryError, UnknownTopicOrPartitionError):
                    return go_on()
            return go_on()
        except (OSError, KafkaLogError) as error:
            if self._stamp is None:
                raise
            raise CommitError(
                f"whether commit {self._stamp.sequence} will be published is not known: a node "
                f"stalled amid it, and the others cannot tell ({error}). A query, and a write with "
                "an id of its own, finds that out itself when it runs again"
            ) from error


# ----------------------------------------------------------------------------------------------
# The bytes of a commit: appended, and made durable where that is asked for.


def apply(
    directories: Sequence[Path], appends: Sequence[PartitionAppend], replication: Replication
) -> None:
    """Do what is planned; staged runs count in ``directories``.

    Of several nodes one after the other is written to. One on which a call fails is out.

    Raises:
        OSError: a call failed on the only node.
        NotEnoughReplicasError: too few nodes are left.
        CommitError: a staged file of the only node is gone, or its bytes are not what the task
            wrote.
    """
    with closing(StagedFiles(directories)) as files:
        for of_node in replication.by_node(appends):
            with replication.isolated_per_node(of_node):
                _apply(files, of_node)


def _apply(files: StagedFiles, appends: Sequence[PartitionAppend]) -> None:
    _append_all(files, appends)
    for_each(PartitionAppend.sync, [each for each in appends if each.makes_or_seals])
    for folder in _parents_of_new(appends):
        fsync_directory(folder)
    sync_up_to(each.held_before for each in appends if each.may_hold_unsynced)


def _append_all(files: StagedFiles, appends: Sequence[PartitionAppend]) -> None:
    long = [each for each in appends if each.is_long]
    for_each(lambda each: each.apply(files, sync_and_close if each.is_durable else os.close), long)
    with FileSyncer() as syncer:
        for each in appends:
            if not each.is_long:
                check_interrupt()
                each.apply(files, syncer.add if each.is_durable else os.close)


def _parents_of_new(appends: Iterable[PartitionAppend]) -> list[Path]:
    return sorted({each.plan.directory.parent for each in appends if each.plan.creates_directory})


def write_end_checkpoints(
    appends: Sequence[PartitionAppend], replication: Replication, *, durable: bool
) -> None:
    """Write the new ends of partitions into Kafka's checkpoint files, once they are published."""
    for of_node in replication.by_node(appends):
        with replication.isolated_per_node(of_node):
            ends = [written_end(each.plan) for each in of_node]
            write_ends(ends, durable=durable, may_wait=True)


def written_end(plan: AppendPlan) -> WrittenEnd:
    """Return the end of a partition after its append."""
    log_dir = plan.directory.parent
    return WrittenEnd(log_dir, plan.topic_partition, plan.end_offset)


def made_partitions(appends: Sequence[PartitionAppend]) -> set[TopicPartition]:
    """Return the partitions whose folders are made."""
    return {each.plan.topic_partition for each in appends if each.plan.creates_directory}


# ----------------------------------------------------------------------------------------------


class Committer:
    """Commits or drops one batch. Knows no Spark; used once, by one thread.

    ``checkpoint`` is that of the query, if it can be read. ``appenders`` are those of earlier
    commits. ``conditions`` must hold before the intent, and again right before the rename. If one
    raises, the commit is rolled back. ``attached_records`` are records of internal topics that are
    published with the batch. ``ends`` say where logs are to end that may end above their last
    record. ``copied`` says of a batch that copies from where it continues.
    """

    def __init__(
        self,
        plan: CommitSettings,
        identity: BatchIdentity,
        *,
        checkpoint: QueryCheckpoint | None = None,
        appenders: AppenderCache | None = None,
        conditions: Sequence[Condition] = (),
        attached_records: Sequence[AttachedRecords] = (),
        ends: Mapping[TopicPartition, CopiedEnd] | None = None,
        copied: CopiedBatch | None = None,
    ) -> None:
        self._plan = plan
        self._identity = identity
        self._checkpoint = checkpoint
        self._appenders = appenders or AppenderCache()
        self._durable = plan.policy.is_durable
        self._conditions = [*conditions, *([] if copied is None else [copied.check_target])]
        self._attached_records = attached_records
        self._ends = ends
        self._copied = copied
        self._verdict = Verdict.APPEND
        self._is_committed = False
        """Whether it was found to be, by an earlier run or attempt."""
        self._staged_here: list[StagedRun] = []
        self._attempt = CommitAttempt()

    @shielded
    def commit(self, runs: Sequence[StagedRun]) -> Outcome:
        """Append and publish what the tasks staged: ``runs`` of one partition in their order.

        Raises:
            CommitError: nothing of the batch is visible; see its subclasses for what to do.
            DurabilityError: all of it is visible, and may not survive a loss of power.
            KafkaLogError: likewise, for other reasons (directories, names, sizes).
        """
        try:
            return self._attempt.until_done(self._plan, lambda: self._commit(runs))
        except OSError as error:
            if self._is_committed:
                raise DurabilityError(
                    f"{self._identity} is committed already, and may not survive a loss of power: "
                    f"{error}{what_to_do(error)}. Run it again: that makes it durable"
                ) from error
            raise CommitError(
                f"{self._identity} could not be committed, and nothing of it is visible: {error}"
                f"{what_to_do(error)}"
            ) from error

    def _commit(self, runs: Sequence[StagedRun]) -> Outcome:
        with self._session() as session:
            log_set = session.open(self._attempt.look, refuse_lost_tail, self._judge)
            outcome = self._attempt.published()
            if outcome is not None:
                sweep(log_set, self._identity)
                return outcome
            if self._verdict is Verdict.SKIP:
                return self._skip(log_set)
            left = self._still_to_write(log_set, runs)
            if left is None:
                return self._leave(log_set, log_set.state)
            before = log_set.state
            appends = self.append(log_set, left)
            warn_forgotten_writers(before, log_set.state)
            known = [before.topics[k] for a in appends if (k := a.topic.key) in before.topics]
            warn_unknown_query(self._identity, before.writers, known)
            warn_many_writers(self._identity, before.writers, known)
            return Outcome.of(log_set.state, appends)

    @shielded
    def commit_or_abort(self, runs: Sequence[StagedRun]) -> Outcome:
        """Commit; if that fails, drop what was staged: nobody else will call :meth:`abort`.

        Raises:
            CommitError, KafkaLogError: as :meth:`commit`.
        """
        try:
            return self.commit(runs)
        except BaseException:
            with suppress(KafkaLogError, OSError):
                self.abort(runs)
            raise

    @shielded_part
    def abort(self, runs: Sequence[StagedRun]) -> None:
        """Drop what the tasks staged, unless the batch is committed or a commit has begun with it.

        The rest is swept away by a later commit. An interrupt finds the batch not done.
        """
        run_with_timeout(lambda: self._drop(runs), self._plan.directories, self._plan.policy.lag_ms)

    @shielded_part
    def _drop(self, runs: Sequence[StagedRun]) -> None:
        with self._session() as session:
            log_set = session.open(rolls_back=False)
            last = log_set.state.writers.get(self._identity.writer)
            if last is not None and last.batch_id >= self._identity.batch_id:
                return
            named = {file.name for intent in log_set.unfinished() for file in intent.files}
            for run in (*runs, *self._staged_here):
                folder = self._plan.directories[run.directory]
                # A node that was away may have an intent that names this file.
                if run.file not in named and log_set.node.has(folder):
                    with at(folder):
                        (folder / run.file).unlink(missing_ok=True)

    def make_partitions(self, log_set: LogSet, topic: Topic, starts: Mapping[int, int]) -> None:
        """Make empty partitions of a topic, and publish them with its settings.

        REQUIRES: the locks are held, nothing is unfinished, and none of them is there. ``starts``
        has the first offset of each, by its number.

        Raises:
            CommitError, KafkaLogError, OSError: as :meth:`commit`; the topic is as it was.
        """
        now_ms = system.time_ns() // 1_000_000
        replication = Replication(log_set, self._plan)
        appends = plan_partitions(
            log_set, self._plan, topic, starts, now_ms=now_ms, replication=replication
        )
        appenders = self._appenders.begin(log_set.state)
        state = self._following(log_set, appends, now_ms)
        appends += self._copies(appends, appenders, replication)
        self._write(log_set, state, appends, replication)
        self._finish(log_set, appends, appenders, replication)

    def _session(self) -> Session | QuorumSession:
        kind = QuorumSession if self._plan.has_nodes else Session
        return kind(self._plan.directories, self._plan.policy, holder=str(self._identity))

    def _judge(self, log_set: LogSet) -> None:
        last = log_set.state.writers.get(self._identity.writer)
        self._verdict = judge(self._identity, last, allows_unknown=self._plan.allows_unknown)
        self._is_committed = self._verdict is Verdict.SKIP

    def _skip(self, log_set: LogSet) -> Outcome:
        """Leave a batch that is committed; note the run, if it is a new one of the writer.

        A run that had planned the batch before it was committed is not new: it was replaced, and
        wakes up late. It must not push out the run that has replaced it. That may have found the
        batch committed, too: so the time at which it planned is noted with it.
        """
        state = log_set.state
        last = log_set.state.writers[self._identity.writer]
        is_late = self._plan.planned_ms <= last.time_ms
        if last.run_id != self._identity.run_id and not is_late:
            current = remember(self._identity, last, self._plan.planned_ms, last.expiration_ms)
            writers = {
                **log_set.state.writers,
                self._identity.writer: replace(current, batch_id=last.batch_id),
            }
            state = state.following(writers=writers)
        return self._leave(log_set, state)

    def _leave(self, log_set: LogSet, state: CommitState) -> Outcome:
        """Make durable what is committed: its writer may have ended before that.

        Its records, too: an earlier run may have left them to the system.
        """
        _LOGGER.info("%s is committed already", self._identity)
        self._is_committed = True
        if self._durable and (ends := make_left_durable(log_set)):
            following = state.following() if state.stamp == log_set.state.stamp else state
            state = all_durable(following, ends)
        self._publish(log_set, state)
        sweep(log_set, self._identity)
        return Outcome(appended=False, sequence=log_set.state.sequence, end_offsets={})

    def _still_to_write(
        self, log_set: LogSet, runs: Sequence[StagedRun]
    ) -> Sequence[StagedRun] | None:
        """Leave out topics that have this write with ``txnAppId`` already; None if all have it.

        Raises:
            BatchIdentityError: other rows are there under this version.
        """
        given = self._identity
        if not given.is_versioned:
            return runs
        unknown = {run.topic_partition.topic for run in runs} - dict(given.digests).keys()
        if unknown:
            raise CommitError(f"{given}: rows of topics {sorted(unknown)} come without a digest")
        self._identity = new_topics_of(given, log_set)
        left = dict(self._identity.digests)
        if given.digests and not left:
            return None
        if self._durable and len(left) < len(given.digests):
            log_set.state = all_durable(log_set.state, make_left_durable(log_set))
        for name, _ in given.digests:
            if name not in left:
                _LOGGER.info("%s is in topic %r already", given, name)
        return [run for run in runs if run.topic_partition.topic in left]

    def append(self, log_set: LogSet, runs: Sequence[StagedRun]) -> list[PartitionAppend]:
        """Decide what the batch does to each partition, and do it: steps 4 to 7.

        REQUIRES: the locks are held, and nothing is unfinished.
        """
        appenders = self._appenders.begin(log_set.state)
        if self._copied is not None:
            self._copied.check_source()
        for check in self._conditions:
            check(log_set)
        now_ms = system.time_ns() // 1_000_000
        replication = Replication(log_set, self._plan)
        given = {run.file for run in runs}
        appends = plan_appends(
            log_set,
            self._plan,
            replication.leading(runs),
            self._attached_records,
            self._ends,
            now_ms=now_ms,
            staged_prefix=self._identity.staged_prefix,
            appenders=appenders,
            replication=replication,
        )
        self._staged_here = [r for each in appends for r in each.runs if r.file not in given]
        state = self._following(log_set, appends, now_ms)
        copies = self._copies(appends, appenders, replication)
        self._attempt.note(state, appends)
        if appends:
            self._write(log_set, state, [*appends, *copies], replication)
        elif self._identity.is_remembered or self._copied is not None:
            self._publish(log_set, state, *self._conditions)
        self._finish(log_set, [*appends, *copies], appenders, replication)
        return appends

    def _copies(
        self,
        appends: Sequence[PartitionAppend],
        appenders: AppendersOfSet,
        replication: Replication,
    ) -> list[PartitionAppend]:
        with closing(StagedFiles(self._plan.directories)) as files:
            return replication.copies(appends, files, appenders)

    def _following(
        self, log_set: LogSet, appends: Sequence[PartitionAppend], now_ms: int
    ) -> CommitState:
        return next_state(
            log_set.state,
            self._identity,
            appends,
            self._copied,
            now_ms=now_ms,
            expiration_ms=self._plan.expiration_ms,
            boot_id=boot_of(log_set.node),
        )

    def _write(
        self,
        log_set: LogSet,
        state: CommitState,
        appends: Sequence[PartitionAppend],
        replication: Replication,
    ) -> None:
        """Steps 4 to 6; a failure is rolled back at once, if that can be done.

        REQUIRES: the locks are held, and nothing is unfinished.
        """
        log_set.verify_locks()
        try:
            state = replication.placed(state)
            replication.check_in_sync(state, appends)
            self._declare(log_set, state, appends)
            # Whoever began after that has seen the intent; who had begun before is seen now.
            log_set.check_current()
            log_set.node.check_declared(state.stamp)
            self._apply(appends, replication)
            self._publish(log_set, replication.settled(state, appends), *self._conditions)
        except (Exception, Interrupted):
            self._try_to_roll_back(log_set)
            raise

    def _declare(
        self, log_set: LogSet, state: CommitState, appends: Sequence[PartitionAppend]
    ) -> None:
        """Step 4: say durably what is about to happen, in every directory, before the first byte.

        Also with ``flush=os``: a torn intent would make all that was committed before unreadable.
        """
        members = [log_set.node.member_at(folder) or "" for folder in self._plan.directories]
        intent = Intent(
            sequence=state.sequence,
            commit_id=state.commit_id,
            set_id=log_set.state.set_id,
            writer=self._identity.writer,
            batch_id=self._identity.batch_id,
            partitions=tuple(each.intended(members) for each in appends),
            controller_epoch=state.controller_epoch,
        )
        drop_stale_entries_on_nodes(log_set.node, made_partitions(appends))
        log_set.node.declare(intent)

    def _apply(self, appends: Sequence[PartitionAppend], replication: Replication) -> None:
        """Step 5, and the first half of 6."""
        apply(self._plan.directories, appends, replication)

    def _publish(self, log_set: LogSet, state: CommitState, *conditions: Condition) -> None:
        """Step 6: the commit."""
        check_interrupt()
        if self._checkpoint is not None:
            self._checkpoint.sync(self._identity.batch_id)
        log_set.publish(state, *conditions)

    def _try_to_roll_back(self, log_set: LogSet) -> None:
        """Roll the batch back, unless its state was published after all."""
        try:
            log_set.verify_locks()
            if log_set.is_outdated() or not log_set.node.decides_alone:
                return  # it is published, or another writer's commit is: neither is rolled back
            decide_again(log_set)
            roll_back(log_set, durable=self._durable)
        except (OSError, KafkaLogError, Interrupted) as error:
            text = "%s is left for the next commit to roll back: %s"
            _LOGGER.warning(text, self._identity, error)

    def _finish(
        self,
        log_set: LogSet,
        appends: Sequence[PartitionAppend],
        appenders: AppendersOfSet,
        replication: Replication,
    ) -> None:
        """Step 7: nothing here can undo the commit."""
        try:
            appends = [each for each in appends if not replication.is_out(each)]
            for each in appends:
                each.note_published()
            if appends:
                write_end_checkpoints(appends, replication, durable=self._durable)
            published = [each.appender for each in appends]
            appenders.keep(log_set.state, published, log_set.node.is_shared)
            if appends:
                log_set.node.withdraw(durable=False)
            sweep(log_set, self._identity)
        except (OSError, KafkaLogError) as error:
            _LOGGER.warning("%s is committed, but clearing up failed: %s", self._identity, error)
