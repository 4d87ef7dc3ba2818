"""Recover a set of log directories: what a writer does before it appends, for all logs.

Recovery rolls an unfinished commit back, cuts torn tails off, and makes the indexes of active
segments hold what their batches call for. Handing a set over to a broker begins with that, and so
does a takeover: see :mod:`~kafkalog.streaming.admin.broker.handover`.
"""

from __future__ import annotations

import logging
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import (
    PARTITION_METADATA,
    LeaderEpoch,
    read_topic_id,
    write_leader_epochs,
    write_topic_id,
)
from kafkalog.checkpoints.commit_state import UNKNOWN_EPOCH, topic_key
from kafkalog.checkpoints.voters import find_voters
from kafkalog.errors import CheckpointError, CorruptRecordError, KafkaLogError
from kafkalog.files.deferred_signals import check_interrupt, shielded
from kafkalog.files.regular import fsync_directory
from kafkalog.files.system import system
from kafkalog.model import INTERNAL_TOPICS, OFFSETS_TOPIC
from kafkalog.streaming.admin.broker.open_transactions import EndedTransactions
from kafkalog.streaming.admin.nodes.node_recovery import bring_nodes_in_order
from kafkalog.streaming.commit.tail_recovery import TailRecovery, with_recovery_advice
from kafkalog.streaming.log.files import LOG, OFFSET_INDEX, TIME_INDEX, file_name
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.read.salvage import walk_batches
from kafkalog.streaming.log.recovery import correct_indexes, cut_segment, wrong_indexes
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.log.swap import finish_swap
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.store.broker_files import check_log_start, forget_log_start
from kafkalog.streaming.store.ends.recorded import BrokerMarks
from kafkalog.streaming.store.file_systems import is_shared
from kafkalog.streaming.store.log_dirs import TopicOwners
from kafkalog.streaming.store.nodes import unfinished_salvage
from kafkalog.streaming.store.policy import WAIT_MS, SetPolicy
from kafkalog.streaming.store.recovery.lost_partitions import (
    lost_id_text,
    lost_of_living,
    lost_text,
)
from kafkalog.streaming.store.recovery.partition_states import (
    PartitionEnd,
    epochs_problem,
    known_topic_id,
    last_epoch,
)
from kafkalog.streaming.store.recovery.rollback import verify_unfinished
from kafkalog.streaming.store.recovery.unsynced import advice
from kafkalog.streaming.store.recovery.unsynced_tail import accept_lost_tail as do_without
from kafkalog.streaming.store.recovery.unsynced_tail import find_lost_tails, refuse_lost_tail
from kafkalog.streaming.store.session import existing_log_dirs, opened_set, require_commit_state
from kafkalog.streaming.store.topics import differing_ids

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kafkalog.checkpoints.commit_state import TopicState
    from kafkalog.checkpoints.intent import IntendedPartition
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.admin.broker.open_transactions import TransactionEnds
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.log_set import LogSet
    from kafkalog.streaming.store.recovery.unsynced import LostOffsets
    from kafkalog.streaming.store.session import Condition


__all__ = [
    "Expected",
    "Preview",
    "RecoveryReport",
    "look_again",
    "put_in_order",
    "recover",
    "report_lost",
]


# ----------------------------------------------------------------------------------------------
# What bringing a log into order would come to, without doing it: for dry runs.


_LOGGER: Final = logging.getLogger("kafkalog.sink")

_COPIED_BYTES: Final = 1 << 20


class Expected(NamedTuple):
    """Where a log would end, and which of its indexes would be replaced."""

    end: int
    corrected: tuple[str, ...]


class Preview:
    """Looks at the logs of a set; what would be said while acting is said as well.

    ``ended`` says which open transactions would be ended.
    """

    def __init__(
        self,
        log_set: LogSet,
        *,
        takes_over: bool = False,
        ends: TransactionEnds | None = None,
        ends_open: bool = False,
    ) -> None:
        """Prove that unfinished commits can be rolled back; with ``ends``, end open transactions.

        With ``ends_open`` somebody else ends them.

        Raises:
            LogDirectoryError, CheckpointError: they cannot.
        """
        self._log_set = log_set
        self._takes_over = takes_over
        self._ends = ends
        self._ends_open = ends_open or ends is not None
        self.ended = EndedTransactions()
        touched = verify_unfinished(log_set)
        self._touched: Mapping[TopicPartition, IntendedPartition] = {
            each.topic_partition: each for each in touched
        }

    def goes_away(self, key: TopicPartition) -> bool:
        """Return whether an unfinished commit has made the partition."""
        return key in self._touched and self._touched[key].created

    def expect(
        self, key: TopicPartition, found: PartitionDirectory, config: LogConfig, marks: BrokerMarks
    ) -> Expected:
        """Return what would become of a log.

        Raises:
            KafkaLogError: it would be left alone, for this reason.
        """
        touched = self._touched.get(key)
        if touched is not None:
            return Expected(touched.start_offset, _corrected_after(touched, found.path, config))
        log = TailRecovery(
            folder=found.path,
            key=key,
            config=config,
            state=self._log_set.state,
            topic_id=read_topic_id(found.path),
            marks=marks,
            takes_over=self._takes_over,
            ends_open=self._ends_open,
        )
        end, cut = log.look()
        if cut is not None:
            _LOGGER.warning("%s", cut)
        if self._ends is not None:
            end = self._ends.preview(key, found.path, end, self.ended)
        bases = list_base_offsets(found.path)
        if not bases or cut is not None:
            return Expected(end, ())
        interval = config.index_interval_bytes
        with with_recovery_advice(self._log_set.state):
            wrong = wrong_indexes(found.path, bases[-1], index_interval_bytes=interval)
        return Expected(end, tuple(path.name for path in wrong))


def _corrected_after(
    touched: IntendedPartition, folder: Path, config: LogConfig
) -> tuple[str, ...]:
    """Return the indexes that are replaced once a commit is rolled back: tried out on a copy.

    The copy is of the active segment as it was before that commit, and lies with temporary files.
    """
    active, interval = touched.segments[0], config.index_interval_bytes
    if active.created or is_shared(folder):
        return ()
    with tempfile.TemporaryDirectory(prefix="kafkalog-") as scratch:
        copy = Path(scratch)
        for suffix, size in ((LOG, active.size_before), (OFFSET_INDEX, None), (TIME_INDEX, None)):
            name = file_name(active.base_offset, suffix)
            if (folder / name).exists():
                _copy(folder / name, copy / name, size)
        cut_segment(
            copy,
            active.base_offset,
            active.size_before,
            index_interval_bytes=interval,
            fsync=False,
        )
        wrong = wrong_indexes(copy, active.base_offset, index_interval_bytes=interval)
        return tuple(path.name for path in wrong)


def _copy(source: Path, target: Path, size: int | None) -> None:
    with source.open("rb") as reader, target.open("wb") as writer:
        left = source.stat().st_size if size is None else size
        while left and (data := reader.read(min(left, _COPIED_BYTES))):
            writer.write(data)
            left -= len(data)


# ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class RecoveryReport:
    """What was found and done.

    ``rolled_back`` names the unfinished commits that were undone; ``problems`` are what a
    person has
    to decide on: the logs they name were left alone. ``skipped`` are a broker's own topics, which
    it recovers itself. ``reset`` says which log starts were taken out of their checkpoint,
    ``aborted`` and ``committed`` how open transactions were ended, ``written`` what was noted
    beside the logs; ``positions`` are the logs of a broker's own ``__consumer_offsets``;
    ``lost`` which committed offsets a loss of power took, and ``writers`` whose batches count all
    the same. After a dry run it is what would be found and done.
    """

    set_id: str = ""
    rolled_back: list[str] = field(default_factory=list)
    partitions: list[PartitionEnd] = field(default_factory=list)
    positions: list[PartitionEnd] = field(default_factory=list)
    skipped: list[PartitionDirectory] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    reset: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    committed: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    lost: list[LostOffsets] = field(default_factory=list)
    writers: list[str] = field(default_factory=list)

    def look(self, *, accepts_lost_tail: bool = False, mends: bool = True) -> Condition:
        """Return what notes the unfinished commits of a set before they are rolled back.

        It refuses to continue where records of flush=os are lost, or does without them.
        """

        def look(log_set: LogSet) -> None:
            self.set_id = log_set.state.set_id
            unfinished = [each for each in log_set.unfinished() if each.partitions]
            self.rolled_back = [f"batch {each.batch_id} of {each.writer}" for each in unfinished]
            if not accepts_lost_tail:
                refuse_lost_tail(log_set, mends=mends)
                return
            self.lost = do_without(log_set) if mends else find_lost_tails(log_set)
            writers = log_set.state.writers.items()
            self.writers = sorted(f"{name}, batch {last.batch_id}" for name, last in writers)

        return look


@shielded
def recover(
    paths: Sequence[str],
    *,
    reset_log_start: bool = False,
    accept_lost_tail: bool = False,
    dry_run: bool = False,
    wait_ms: int = WAIT_MS,
) -> RecoveryReport:
    """Do what the next writer would do first, so that a broker may start or a copy be made.

    With ``reset_log_start`` log starts that lie above the ends of their logs are forgotten: they
    are those of earlier topics of the same names. Otherwise they are problems. With
    ``accept_lost_tail`` logs end where a loss of power has left the records of ``flush=os``. With
    ``dry_run`` nothing is changed, nor locked.

    Of a replicated set what a majority holds prepared is finished first, and all replicas whose
    nodes are there are brought in sync.

    Raises:
        LogDirectoryError: a path is no log directory that the sink wrote, or a broker holds it.
        KafkaLogError: the directories are no whole set, or their state cannot be trusted.
    """
    directories = existing_log_dirs(paths)
    require_commit_state(directories)
    policy = SetPolicy.of_upkeep(wait_ms)
    begun = RecoveryReport()
    look = begun.look(accepts_lost_tail=accept_lost_tail, mends=not dry_run)
    before = find_voters(directories)
    opened = partial(opened_set, directories, policy, look, holder="kafkalog recover")
    with opened(dry_run=dry_run, copies_all=True) as log_set:
        preview = Preview(log_set) if dry_run else None
        nodes = RecoveryReport()
        if before is not None:  # first: who leads may be damaged
            bring_nodes_in_order(log_set, before, nodes, dry_run=dry_run)
        done = put_in_order(log_set, begun, resets_log_start=reset_log_start, preview=preview)
        done.written += nodes.written
        done.problems += nodes.problems
        report_lost(log_set, done)
        return done


def put_in_order(
    log_set: LogSet,
    begun: RecoveryReport,
    *,
    takes_over: bool = False,
    takes_positions: bool = False,
    resets_log_start: bool = False,
    preview: Preview | None = None,
    open_advice: Mapping[TopicPartition, str] | None = None,
    ends_open: bool = False,
) -> RecoveryReport:
    """Look at the end of each log, and mend it; ``begun`` is what was done before.

    REQUIRES: the locks are held and unfinished commits rolled back; or there is a ``preview``, with
    which nothing is changed.

    ``takes_over``: the logs are the truth as they are, see
    :class:`~kafkalog.streaming.commit.tail_recovery.TailRecovery`. With ``takes_positions`` so are
    those of a broker's ``__consumer_offsets``. ``open_advice`` is what to do about transactions
    that stay open, by partition. With ``ends_open`` they are no problem: the caller sees to them.
    """
    done = RecoveryReport(begun.set_id, begun.rolled_back, lost=begun.lost, writers=begun.writers)
    done.problems += filter(None, map(unfinished_salvage, log_set.directories))
    _restore_ids(log_set, done, takes_over=takes_over, changes=preview is None)
    order = _PartitionRecovery(
        *(log_set, done, preview, open_advice or {}),
        takes_over=takes_over,
        takes_positions=takes_positions,
        resets=resets_log_start,
        ends_open=ends_open,
    )
    for key, found in log_set.partitions().items():
        check_interrupt()
        if order.concerns(key, found):
            order.try_to_put(key, found)
    if takes_over:
        _leave_out_mixed_topics(log_set, done)
    return done


def _restore_ids(log_set: LogSet, done: RecoveryReport, *, takes_over: bool, changes: bool) -> None:
    """Give folders the topic id again that they have lost, where what is known leaves no doubt.

    A log that ends below what is committed under that id is another one, and gets none.
    """
    there, state = log_set.partitions(), log_set.state
    for key, found in there.items():
        siblings: set[str] = set()
        for other, where in there.items() if takes_over else ():
            if other.topic == key.topic:
                with suppress(CheckpointError):
                    siblings |= {read_topic_id(where.path) or ""} - {""}
        topic_id = known_topic_id(state, found, siblings)
        if topic_id is None or (key.topic in INTERNAL_TOPICS and topic_id not in state.topics):
            continue
        with PartitionLog(found.path, key) as log:
            if log.log_end_offset() < (state.log_end(key.topic, topic_id, key.partition) or 0):
                continue
        done.written.append(f"{found.path / PARTITION_METADATA}: the topic id {topic_id}, again")
        if changes:
            log_set.check_current()
            write_topic_id(found.path, topic_id)
            fsync_directory(found.path)


def look_again(log_set: LogSet, done: RecoveryReport) -> RecoveryReport:
    """Do :func:`put_in_order` once more; what was mended before is not forgotten."""
    mended = {each.where.path: each.corrected for each in done.partitions}
    again = put_in_order(log_set, done)
    again.partitions = [
        replace(each, corrected=mended.get(each.where.path, ()) + each.corrected)
        for each in again.partitions
    ]
    return again


def _leave_out_mixed_topics(log_set: LogSet, done: RecoveryReport) -> None:
    """Leave alone topics whose partitions have several ids: which of them is the topic's?

    A handover that was cut off may have left two, and our state knows both.
    """
    by_topic: dict[str, list[PartitionEnd]] = {}
    for each in done.partitions:
        by_topic.setdefault(each.topic_partition.topic, []).append(each)
    for name, parts in by_topic.items():
        ids = {each.key for each in parts} - {topic_key(name, None)}
        if len(ids) > 1 and not ids <= log_set.state.topics.keys():
            done.problems.append(str(differing_ids(name, [each.where for each in parts])))
            done.partitions = [each for each in done.partitions if each not in parts]


class _PartitionRecovery:
    """Puts one partition after the other in order, and notes it in ``done``."""

    def __init__(
        self,
        log_set: LogSet,
        done: RecoveryReport,
        preview: Preview | None,
        open_advice: Mapping[TopicPartition, str],
        *,
        takes_over: bool,
        takes_positions: bool,
        resets: bool,
        ends_open: bool,
    ) -> None:
        self._log_set = log_set
        self._done = done
        self._preview = preview
        self._open_advice = open_advice
        self._takes_over = takes_over
        self._takes_positions = takes_positions
        self._resets = resets
        self._ends_open = ends_open
        self._marks = BrokerMarks(log_set.state)
        self._owners = TopicOwners(log_set.state)

    def concerns(self, key: TopicPartition, found: PartitionDirectory) -> bool:
        """Return whether a folder is a partition that is ours to look at."""
        are_positions = self._takes_positions and key.topic == OFFSETS_TOPIC
        if self._is_a_brokers_own(found) and not are_positions:
            self._done.skipped.append(found)
            return False
        if self._preview is not None and self._preview.goes_away(key):
            return False
        if not _is_partition(self._log_set, found):
            _LOGGER.warning("%s has no .log file: it is not taken for a partition", found.path)
            return False
        return True

    def try_to_put(self, key: TopicPartition, found: PartitionDirectory) -> None:
        """Put a partition in order; what is in the way of that is a problem."""
        try:
            self.put(key, found)
        except KafkaLogError as error:
            self._done.problems.append(str(error))

    def _is_a_brokers_own(self, found: PartitionDirectory) -> bool:
        topic = found.topic_partition.topic
        known = self._log_set.state.topic(topic, read_topic_id(found.path))
        return topic in INTERNAL_TOPICS and known is None

    def put(self, key: TopicPartition, found: PartitionDirectory) -> None:
        """Bring the end of a log into order, and see that its log start is not above it.

        Raises:
            KafkaLogError: a person has to decide; the log was left alone.
        """
        self._owners.check_folder(found)
        if self._preview is None:
            self._log_set.verify_locks()
            finish_swap(found.path)
            if not self._log_set.state.is_replicated:
                self._rebuild_epochs(key, found)
            end = self._mended(key, found)
        else:
            end = self._previewed(key, found, self._preview)
        start = self._marks.log_start(found)
        end = replace(end, log_start=start)
        if self._resets and start > end.end:
            self._done.reset.append(f"log start {start} of {key}, whose log ends at {end.end}")
            if self._preview is None:
                forget_log_start(found)
        else:
            check_log_start(found, start, end.end)
        brokers_own = self._is_a_brokers_own(found)
        (self._done.positions if brokers_own else self._done.partitions).append(end)

    def _rebuild_epochs(self, key: TopicPartition, found: PartitionDirectory) -> None:
        """Write the leader epochs by the batches, where those that are noted cannot be right.

        Of a log that is damaged, or lacks what is committed, they stay: it may be restored.
        """
        state = self._log_set.state
        topic_id = read_topic_id(found.path)
        with PartitionLog(found.path, key) as log:
            seen = log.log_end()
        end, problem = seen.offset, epochs_problem(found.path, seen.offset)
        is_short = end < (state.log_end(key.topic, topic_id, key.partition) or 0)
        if problem is None or seen.is_damage or is_short:
            return
        epochs = _epochs_of_batches(found.path, end)
        known = state.partition(key.topic, topic_id, key.partition)
        last = epochs[-1].epoch if epochs else UNKNOWN_EPOCH
        if known is not None and known.leader_epoch > last:
            epochs.append(LeaderEpoch(known.leader_epoch, end))
        self._log_set.check_current()
        write_leader_epochs(found.path, epochs)
        self._done.written.append(f"leader epochs of {key}, by its batches: {problem}")

    def _previewed(
        self, key: TopicPartition, found: PartitionDirectory, preview: Preview
    ) -> PartitionEnd:
        topic_id = read_topic_id(found.path)
        known = self._log_set.state.topic(key.topic, topic_id)
        config = LogConfig.of_topic(known.settings if known else {})
        expected = preview.expect(key, found, config, self._marks)
        with PartitionLog(found.path, key) as log:
            start = self._start(found, log, known)
        name = topic_key(key.topic, topic_id)
        epoch = last_epoch(found.path)
        return PartitionEnd(
            key, found, name, start, expected.end, expected.corrected, leader_epoch=epoch
        )

    def _mended(self, key: TopicPartition, found: PartitionDirectory) -> PartitionEnd:
        topic_id = read_topic_id(found.path)
        state = self._log_set.state
        known = state.topic(key.topic, topic_id)
        config = LogConfig.of_topic(known.settings if known else {})
        foreign = TailRecovery(
            folder=found.path,
            key=key,
            config=config,
            state=state,
            topic_id=topic_id,
            marks=self._marks,
            takes_over=self._takes_over,
            advice=advice(known, key.partition),
            open_advice=self._open_advice.get(key, ""),
            ends_open=self._ends_open,
            check_locks=self._log_set.check_current,
        )
        appender = foreign.open(now_ms=system.time_ns() // 1_000_000)
        corrected: list[Path] = []
        with PartitionLog(found.path, key) as log:
            start = self._start(found, log, known)
            if log.segments:
                self._log_set.verify_locks()
                with with_recovery_advice(state):
                    corrected = correct_indexes(
                        found.path,
                        log.segments[-1].base_offset,
                        index_interval_bytes=config.index_interval_bytes,
                    )
        names = tuple(path.name for path in corrected)
        name = topic_key(key.topic, topic_id)
        end, epoch = appender.log_end_offset, appender.leader_epoch
        return PartitionEnd(key, found, name, start, end, names, leader_epoch=epoch)

    def _start(self, found: PartitionDirectory, log: PartitionLog, known: TopicState | None) -> int:
        """Return where a log starts, be it in a remote tier."""
        first, directories = log.log_start_offset, self._log_set.directories
        return self._marks.start_of_log(found, first, directories, known.settings if known else {})


def _epochs_of_batches(folder: Path, end: int) -> list[LeaderEpoch]:
    """Return which leader epoch began with which batch below ``end``."""
    epochs: list[LeaderEpoch] = []
    with suppress(CorruptRecordError):  # above the end
        for _, chunk in walk_batches(folder, 0):
            columns = (chunk.table.leader_epoch.tolist(), chunk.table.base_offset.tolist())
            for epoch, offset in zip(*columns, strict=True):
                if offset < end and epoch > (epochs[-1].epoch if epochs else UNKNOWN_EPOCH):
                    epochs.append(LeaderEpoch(epoch, offset))
    return epochs


def _is_partition(log_set: LogSet, found: PartitionDirectory) -> bool:
    """Return whether a folder with a partition's name is one: it holds a segment, or is known."""
    name, number = found.topic_partition
    known = log_set.state.partition(name, read_topic_id(found.path), number)
    return known is not None or bool(list_base_offsets(found.path))


def report_lost(log_set: LogSet, done: RecoveryReport) -> None:
    """Add to the problems which partitions are committed and not there, or have lost their id."""
    state = log_set.state
    for each in done.partitions:
        name = each.topic_partition.topic
        known = state.key_of(name, None)
        if each.key == topic_key(name, None) != known:
            done.problems.append(lost_id_text(each.where.path, name, known))
    lost = lost_of_living(state, log_set.partitions())
    done.problems += [lost_text(topic, numbers) for topic, numbers in lost]
