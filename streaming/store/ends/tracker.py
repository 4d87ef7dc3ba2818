"""Track log ends of chosen partitions, cheaply after the first time.

A stream asks up to 90 times a second while rows come, and 10 times when it is idle. Files that tell
of all partitions are read again only when their ``stat`` has changed, and so are logs
(:mod:`.tracked_log`). How far a partition is read by them: :mod:`.rule`.

**The order of a look.** A commit that runs meanwhile has to be seen whole or not at all:

1. list the partition folders;
2. read Kafka's ``replication-offset-checkpoint`` files;
3. read the intents, and after them the commit states. If their sequence numbers are others than
   before the listing, begin once more: what was committed since may lie in folders that were not
   there yet;
4. find out where the logs end whose ends no file confirms. If one of them is known by its log
   alone, read intents and states again: what was walked over may be of a commit that has begun
   since. If the sequence numbers have changed, begin once more.

Why this order holds: a commit writes its intent before it makes a folder or changes a log, then
its state, then Kafka's checkpoint files; last it removes the intent. So what a checkpoint says is
in every state that is read later, and an intent that was gone before the states were read is in
them. A broker writes none of ours, and its checkpoint files late: they never say more than is
committed.

Of a replicated set each partition is looked at where its leader has it. A log that fails, or ends
below what is committed, is avoided for a while: another replica in sync is looked at. That is done
while a look is taken, so that a query continues when a node goes away under it.

Of a reader of committed records, a partition ends at the last stable offset below that. What lies
between belongs to open transactions, and is neither unread nor missing.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import META_PROPERTIES
from kafkalog.checkpoints.committed import load_committed
from kafkalog.checkpoints.topic_ids import is_changed_id
from kafkalog.errors import (
    CheckpointError,
    KafkaLogError,
    LogDirectoryError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.regular import read_regular
from kafkalog.files.remote_path import RemotePath
from kafkalog.files.system import failed_path, system
from kafkalog.files.timeouts import stalled
from kafkalog.files.watch import Watched, stamp_of, watchable
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.records.compression import DEFAULT_LIMIT
from kafkalog.streaming.store.broker_files import log_start_text
from kafkalog.streaming.store.ends.recorded import WatchedMarks
from kafkalog.streaming.store.ends.rule import (
    OffsetGap,
    committed_end,
    end_of,
    recorded_log_start,
    unverified_from,
)
from kafkalog.streaming.store.ends.tiered import LogStart, say_expired, start_of_gap
from kafkalog.streaming.store.ends.tracked_log import TrackedLogs
from kafkalog.streaming.store.file_systems import is_shared
from kafkalog.streaming.store.log_dirs import LivePartitions, LogDirs
from kafkalog.streaming.store.recovery.lost_partitions import (
    NOTHING,
    MissingParts,
    find_missing_parts,
)
from kafkalog.streaming.store.recovery.unsynced import UnsyncedCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from kafkalog.checkpoints.committed import Committed
    from kafkalog.files.watch import Stamp
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.log.segments import SegmentListing
    from kafkalog.streaming.store.ends.rule import End, RecordedOffsets
    from kafkalog.streaming.store.ends.tracked_log import TrackedLog

    Offsets = Mapping[TopicPartition, int]

    Gaps = Mapping[TopicPartition, OffsetGap]

__all__ = [
    "Ends",
    "LogEndTracker",
    "NewGaps",
    "Unread",
    "directory_of",
    "is_any",
    "is_local",
    "say_tiered",
]


# ----------------------------------------------------------------------------------------------
# What a look at the ends of partitions finds, and where it prefers to look.


@dataclass(frozen=True, slots=True)
class Ends:
    """Where partitions end, in their order, as of one look."""

    offsets: Offsets
    unread: Gaps
    """Offsets that lie in the log above the end."""
    missing: Gaps
    """Offsets that are said to be committed and that the log lacks."""
    lost: Gaps
    """The missing offsets that our own commits had put into the log."""
    damaged: Offsets
    """Logs that end where damage follows, of which nothing says that it is committed."""


class Unread(NamedTuple):
    """What logs hold above their ends: whose it is decides what can be done about it.

    ``uncommitted`` are offsets that nothing says are committed; ``unfinished`` are those of a
    commit of ours that has not ended. ``broker_lived``: whether a broker may have appended them.
    """

    uncommitted: Gaps
    unfinished: Gaps
    broker_lived: bool


class NewGaps(dict["TopicPartition", "OffsetGap"]):
    """Gaps of partitions, of those that have one."""

    def add(self, key: TopicPartition, gap: OffsetGap | None) -> None:
        """Note the gap of a partition, if it has one."""
        if gap is not None:
            self[key] = gap


def directory_of(path: Path | None, directories: Iterable[Path]) -> Path | None:
    """Return the log directory that a path lies in; None if there is none, or no path."""
    inside = (each for each in directories if path is not None and path.is_relative_to(str(each)))
    return next(inside, None)


def is_local(folder: Path) -> bool:
    """Whether a log directory is of this host alone."""
    return not is_shared(folder)


def is_any(_: Path) -> bool:
    """Whether a log directory is as good as others: each is."""
    return True


# ----------------------------------------------------------------------------------------------

_META_LIMIT: Final = 1 << 16
_RESTS_SECONDS: Final = (0.01, 0.05, 0.2, 0.5)
"""How long a commit that runs beside a look is given to publish."""

_ATTEMPTS: Final = 100
"""A look is taken again when a commit or a deletion got in between; each takes milliseconds."""


class LogEndTracker:
    """Follows the ends of the chosen partitions. Not thread safe, not picklable."""

    def __init__(
        self,
        paths: Iterable[str | Path],
        selects: Callable[[TopicPartition], bool] = lambda _: True,
        *,
        to_log_end: bool = False,
        committed_only: bool = False,
        every_batch: bool = False,
        around_damage: bool = False,
        needs_majority: bool = True,
        prefers_local: bool = False,
        max_decompressed_bytes: int = DEFAULT_LIMIT,
    ) -> None:
        """Look at nothing yet.

        Args:
            paths: the log directories.
            selects: which of the existing partitions are meant; new ones are found at every look.
            to_log_end: whether logs end where their whole batches do, committed or not.
            committed_only: whether they end at the last stable offset.
            every_batch: whether they start with their first segment, below the log start offset.
            around_damage: whether damage hides neither last stable offset nor times of records.
            needs_majority: whether too few nodes of a replicated set are an error.
            prefers_local: whether replicas on a local file system come before their leaders.
            max_decompressed_bytes: what batches hold at most that are searched for a timestamp.
        """
        self._log_dirs = LogDirs(paths, prefers=is_local if prefers_local else is_any)
        self._selects = selects
        self._to_log_end = to_log_end
        self._committed_only = committed_only
        self._every_batch = every_batch
        self._around_damage = around_damage
        self._needs_majority = needs_majority
        self._max_decompressed_bytes = max_decompressed_bytes
        self.ends: Ends
        """As of the last look."""
        self._begin()

    def _begin(self) -> None:
        self._is_amid = False
        """Whether a look was cut off: what is kept may be half of it."""
        self._looking_at: Path | None = None
        """The log directory of the log that is being looked at."""
        self.paths = self._log_dirs.paths
        self._listing = Watched(self._log_dirs.paths, self._log_dirs.partitions)
        self._listed: Mapping[TopicPartition, PartitionDirectory] | None = None
        self._live = LivePartitions()
        self._listed_for: tuple[int, int] | None = None
        """The newest commit that the listing is known to have come after."""
        self._logs = TrackedLogs(as_recovered=self._to_log_end)
        self._directories: list[Path] = []
        self._marks: WatchedMarks
        self._ends: Ends | None = None
        """As of the last look; None where more has happened since than logs tell."""
        self._topic_ids: Mapping[TopicPartition, str | None] = {}
        self._topic_ids_are_due = False
        self._unsynced = UnsyncedCheck()
        self._missing_parts: tuple[MissingParts, object, object] = (NOTHING, None, None)
        self._tiered: tuple[Ends | None, dict[TopicPartition, LogStart]] = (None, {})

    def take_over(self, other: LogEndTracker) -> None:
        """Take over what another tracker has read of logs: where files have changed, they count.

        It is no longer asked then.
        """
        if other._to_log_end == self._to_log_end:  # else they end elsewhere
            self._logs.by_partition = dict(other._logs.by_partition)

    def look(self, reached: Offsets | None = None) -> Ends:
        """Find out where the partitions end now; the very same value as long as nothing changes.

        ``reached`` are offsets that a query has come to already: a log that did not go so far when
        it was last read is read again, if it has changed, for :meth:`reaches` to tell.

        Raises:
            LogDirectoryError: a log directory cannot be listed, or is of another set.
            CheckpointError: a commit state or topic id that cannot be trusted.
            CorruptRecordError: bytes of the log that cannot be walked over.
            DataLossError: a loss of power has taken committed records.
        """
        self.ends = self._look(reached)
        return self.ends

    def _look(self, reached: Offsets | None = None) -> Ends:
        if self._is_amid:
            self._begin()
        self._is_amid = True
        ends = self._look_between_changes(reached)
        self._is_amid = False
        return ends

    def _look_between_changes(self, reached: Offsets | None) -> Ends:
        for _ in range(_ATTEMPTS):
            ends = self._look_around_failures()
            if ends is None:
                continue
            if not (reached and self._read_again(reached, ends)):
                return ends
            reached = None
        raise LogDirectoryError(
            "commits and deletions follow each other so fast that no moment between them was found "
            f"in {_ATTEMPTS} looks at {', '.join(map(str, self._log_dirs.paths))}"
        )

    def _look_around_failures(self) -> Ends | None:
        """Look; returns None where a replica fails and there may be another one."""
        self._looking_at = None
        try:
            return self._look_once()
        except (OSError, KafkaLogError) as error:
            folder = self._looking_at or directory_of(failed_path(error), self._directories)
            if folder is None or not self._avoid(folder):
                raise
            return None

    def _avoid(self, folder: Path) -> bool:
        """Have other replicas taken than those in a folder; returns whether that may help."""
        if not self._log_dirs.avoid(folder):
            return False
        self._listing.forget()
        self._ends = None
        return True

    def _look_once(self) -> Ends | None:
        """Take the steps of a look; returns None where a commit or a deletion got in between."""
        if self._read_files():
            self._ends = None
        before = self._marks.sequence
        if not self._logs.have_changed() and self._ends is not None:
            return self._ends
        self._ends = None
        try:
            ends, by_logs_alone = self._find_ends()
        except UnknownTopicOrPartitionError:  # deleted since it was listed
            self._listing.forget()
            return None
        if by_logs_alone:
            self._marks.refresh_committed()
            if self._marks.sequence != before:
                return None
        self._ends = ends
        return ends

    def _read_files(self) -> bool:
        """Take the steps 1 to 3; returns whether any of it may be new."""
        news = self._read_once()
        # ENSURES: the listing is not older than the commit that the marks tell of. One that came
        # after the listing may have made partitions that the listing lacks.
        while self._listed_for != self._marks.sequence:
            self._listed_for = self._marks.sequence
            news |= self._read_once()
        if self._live.take(self._listing.value, self._marks.committed.state):
            self._logs.take(self._chosen())
            news = True
        state = self._marks.committed.state
        if state is not None and not self._to_log_end and not self._is_remote():
            self._unsynced.check(state, self._chosen)
        return self._marks.refresh_log_starts() or news

    def _read_once(self) -> bool:
        # Listing, then checkpoints, then intents and states: never the other way round.
        news = False
        if self._listing.refresh():
            if self._log_dirs.leads_nowhere:
                self._listing.forget()  # a folder may be mounted behind it without a trace here
            if self._listing.value is not self._listed:
                self._listed = self._listing.value
                self._take_listing(self._listed)
                news = True
        return self._marks.refresh() or news

    def _take_listing(self, found: Mapping[TopicPartition, PartitionDirectory]) -> None:
        # REQUIRES: the marks are refreshed after this, before anything is asked of them.
        self._live.take(found, None)
        self._logs.take(self._chosen())
        folders = {where.path for where in found.values()}
        roots = {path for path in self._log_dirs.paths if path not in folders}
        directories = sorted(roots | {where.log_dir for where in found.values()})
        if directories != self._directories:
            self._directories = directories
            self._marks = WatchedMarks(
                directories,
                lambda: self._listing.value,
                to_log_end=self._to_log_end,
                every_batch=self._every_batch,
                needs_majority=self._needs_majority,
            )
        else:
            self._marks.forget_checkpoints()

    def _chosen(self) -> dict[TopicPartition, PartitionDirectory]:
        return {key: where for key, where in self._live.value.items() if self._selects(key)}

    def _is_remote(self) -> bool:
        return any(isinstance(place, RemotePath) for place in self._directories)

    def _find_ends(self) -> tuple[Ends, bool]:
        """Take step 4; returns whether any end is known from its log alone, too."""
        # REQUIRES: this look has taken the steps before. What fails below leaves `_ends` None, so
        # that the next look comes here again.
        offsets: dict[TopicPartition, int] = {}
        unread, missing, lost = NewGaps(), NewGaps(), NewGaps()
        damaged: dict[TopicPartition, int] = {}
        by_logs_alone = False
        self._logs.refresh_all()
        self._topic_ids_are_due = True
        for key, log in self._logs.by_partition.items():
            self._looking_at = log.where.log_dir
            end = self._find_end(log)
            if end.is_short and not self._to_log_end and self._avoid(log.where.log_dir):
                raise UnknownTopicOrPartitionError(f"{log.where.path} lacks what is committed")
            offset = end.offset
            if self._committed_only:
                stable = log.last_stable(offset, around_damage=self._around_damage)
                offset = max(stable, end.start)
            offsets[key] = offset
            by_logs_alone |= end.committed is None and not self._to_log_end
            unread.add(key, end.unread)
            missing.add(key, end.missing)
            lost.add(key, end.lost)
            if end.is_damaged:
                damaged[key] = log.seen.end
        self._looking_at = None
        self._logs.confirm()
        return Ends(offsets, unread, missing, lost, damaged), by_logs_alone

    def _find_end(self, log: TrackedLog) -> End:
        """Hold what is said of a partition against its log, which is read if need be.

        Raises:
            LogDirectoryError: the log ends below its start, so that its records would be hidden.
        """
        # REQUIRES: `has_changed` was asked of each log that is not confirmed, in this look. One
        # that is confirmed is believed until files say another end, or its turn shows a change.
        confirmed = log.confirmed
        if confirmed is None:
            log.refresh(self._unverified_from)
        else:
            said = self._said(log)
            if log.end is not None and log.said == said:
                return log.end
            if confirmed != committed_end(said):
                log.refresh(self._unverified_from)
        end = self._end_by_rule(log)
        if self._to_log_end:
            return end
        if end.is_short and end.committed is not None:
            log.look_for(end.committed)
            end = self._end_by_rule(log)
        if end.is_hidden:  # both move on a live broker: look at both again
            self._marks.refresh_log_starts()
            log.look_for(self._end_by_rule(log).start)
            end = self._end_by_rule(log)
            if end.is_hidden:
                raise LogDirectoryError(log_start_text(log.where, end.start, log.seen.end))
        return end

    def _end_by_rule(self, log: TrackedLog) -> End:
        """Ask the rule, by the id of the topic that the log was last seen to have."""
        log.said = self._said(log)
        log.end = end_of(log.said, log.seen, to_log_end=self._to_log_end)
        return log.end

    def _said(self, log: TrackedLog) -> RecordedOffsets:
        return self._marks.said(log.where, log.topic_id)

    def _unverified_from(self, log: TrackedLog) -> int | None:
        return unverified_from(self._said(log)) if self._to_log_end else None

    def _read_again(self, reached: Offsets, ends: Ends) -> bool:
        """Have logs read again that were not seen to reach an offset; returns whether any is."""
        short = [key for key, offset in reached.items() if ends.offsets.get(key, offset) < offset]
        found = [
            log.read_again_if_changed()
            for key in short
            if (log := self._logs.by_partition[key]).seen.end < reached[key]
        ]
        if any(found):
            self._ends = None
        return any(found)

    def unread(self) -> Unread:
        """Return what logs held above their ends at the last look, and still do.

        A commit of ours appends before it publishes, maybe right after the look: so what is
        committed is looked up once more. Its intent is given a moment to go.
        """
        found = self._ends.unread if self._ends is not None else {}
        if not found:
            return Unread(found, found, broker_lived=False)
        for rest in (*_RESTS_SECONDS, None):
            committed = load_committed(self._directories, needs_majority=False)
            unread, unfinished = self._unread_beside(committed, found)
            if not unfinished or rest is None:
                break
            system.sleep(rest)
        return Unread(unread, unfinished, committed.state is None or self._broker_lived())

    def _broker_lived(self) -> bool:
        """Whether a broker's ``meta.properties`` lies in a directory that answers."""
        for each in self._directories:
            with suppress(OSError, LogDirectoryError):
                read_regular(each / META_PROPERTIES, limit=_META_LIMIT)
                return True
        return False

    def _unread_beside(self, committed: Committed, found: Gaps) -> tuple[NewGaps, NewGaps]:
        """Leave out what was committed meanwhile; return apart what an unfinished commit has."""
        unread, unfinished = NewGaps(), NewGaps()
        for key, gap in found.items():
            topic_id = self._logs.by_partition[key].topic_id
            end = committed.high_watermark(key.topic, topic_id, key.partition) or 0
            start, stop = max(gap.start, end), gap.end
            is_begun = committed.in_progress(*key)
            if start < stop and not is_begun:  # it may have been rolled back
                with suppress(UnknownTopicOrPartitionError), self.open(key) as log:
                    stop = min(stop, log.log_end_offset())
            if start < stop:
                (unfinished if is_begun else unread).add(key, OffsetGap(start, stop))
        return unread, unfinished

    def reaches(self, topic_partition: TopicPartition, offset: int) -> bool:
        """Whether a log goes up to an offset, be it known to be committed or not.

        As of the last look, at the very files that its ends are of. What an unfinished commit has
        appended may be rolled back, and counts as not there.
        """
        log = self._logs.by_partition.get(topic_partition)
        return log is not None and offset <= end_of(self._said(log), log.seen).reach

    def is_stable(self, topic_partition: TopicPartition, offset: int) -> bool:
        """Whether no transaction is open below an offset that a log reaches, if that matters."""
        if not self._committed_only:
            return True
        log = self._logs.by_partition[topic_partition]
        return log.is_stable(offset, around_damage=self._around_damage)

    def version(self, topic_partition: TopicPartition) -> object:
        """Return what is the same as long as a log is: None for one that the last look lacked."""
        log = self._logs.by_partition.get(topic_partition)
        return None if log is None else log.version

    def has_segments(self, where: PartitionDirectory) -> bool:
        """Whether the last look has found a segment in a partition's folder."""
        log = self._logs.by_partition.get(where.topic_partition)
        return log is not None and log.where == where and log.has_segments

    def listing(self, where: PartitionDirectory) -> SegmentListing | None:
        """Return the segments that are known in a partition's folder; None if it was not seen."""
        log = self._logs.by_partition.get(where.topic_partition)
        return log.listing if log is not None and log.where == where else None

    def seen_end(self, where: PartitionDirectory) -> int | None:
        """Return where a log ends; None if it was not seen, has changed, or ends in damage."""
        log = self._logs.by_partition.get(where.topic_partition)
        if log is None or log.where != where or not log.has_segments:
            return None
        if log.read_again_if_changed() or log.seen.is_damaged or log.seen.is_torn:
            return None
        return log.seen.end

    def existing(self) -> Iterable[TopicPartition]:
        """List all partitions that exist, chosen or not, as of the last look."""
        return self._live.value.keys()

    def lacks_majority(self) -> bool:
        """Whether the last look found fewer nodes of a replicated set than decide."""
        return self._marks.committed.lacks_majority

    def missing_parts(self) -> MissingParts:
        """Return what the commit state names and the last look did not find."""
        known, committed, listed = self._missing_parts
        if committed is not self._marks.committed or listed is not self._listed:
            committed, listed = self._marks.committed, self._listed
            there = self._live.value
            known = find_missing_parts(committed, self._log_dirs.paths, there, self._selects)
            self._missing_parts = known, committed, listed
        return known

    def elsewhere(self, topic_partition: TopicPartition) -> bool:
        """Look for another replica of a partition whose log failed; returns whether there is one.

        Raises:
            LogDirectoryError, CheckpointError: as :meth:`look`.
        """
        log = self._logs.by_partition.get(topic_partition)
        if log is None or not self._avoid(log.where.log_dir):
            return False
        self._look()
        found = self._logs.by_partition.get(topic_partition)
        return found is not None and found.where != log.where

    def ask_stores_again(self) -> None:
        """Have the next look ask object stores, whatever is kept of an earlier listing."""
        for path in self._log_dirs.paths:
            if isinstance(path, RemotePath):
                path.store.forget_listing()

    def topic_ids(self) -> Mapping[TopicPartition, str | None]:
        """Return the ids of the partitions' topics, as of the last look; None for one without.

        The very same value comes again as long as they are the same.
        """
        if self._topic_ids_are_due:
            self._topic_ids_are_due = False
            ids = {key: log.topic_id for key, log in self._logs.by_partition.items()}
            if ids != self._topic_ids:
                self._topic_ids = ids
        return self._topic_ids

    def is_changed_id(self, topic: str, before: str, now: str) -> bool:
        """Whether a topic got another id and kept its records, as when directories change hands.

        Raises:
            CheckpointError: no directory that can be read tells of it, and another one cannot be.
        """
        failed: CheckpointError | None = None
        for folder in self._directories:
            try:
                if stalled(folder) is None and is_changed_id(folder, topic, before, now):
                    return True
            except CheckpointError as error:
                failed = error
        if failed is not None:
            raise failed
        return False

    def open(self, topic_partition: TopicPartition) -> PartitionLog:
        """Open the log of a partition that the last look found.

        Raises:
            UnknownTopicOrPartitionError: it did not.
        """
        log = self._tracked(topic_partition)
        folder = log.folder(self._log_dirs.paths)
        return PartitionLog(
            folder,
            topic_partition,
            recorded_log_start(self._said(log), log.seen.end),
            around_damage=self._around_damage,
            max_decompressed_bytes=self._max_decompressed_bytes,
            may_overlap=self._to_log_end,
            replica=log.where.stamp,
            listing=log.listing if folder == log.where.path else None,
        )

    def _tracked(self, topic_partition: TopicPartition) -> TrackedLog:
        log = self._logs.by_partition.get(topic_partition)
        if log is None:  # another look may have come since, as where a node's directory went away
            raise UnknownTopicOrPartitionError(
                f"{topic_partition} is in none of {', '.join(map(str, self._log_dirs.paths))}"
            )
        return log

    def standing(self, topic_partition: TopicPartition) -> tuple[str | None, int, Stamp | None]:
        """Return a log's topic id, its start, and its folder's stamp, which is looked at now.

        Where these are the same as before, records below an end are the same, in the same files.

        Raises:
            UnknownTopicOrPartitionError: the last look did not find it.
        """
        log = self._tracked(topic_partition)
        start = recorded_log_start(self._said(log), log.seen.end)
        return log.topic_id, start, stamp_of(watchable(log.where.path))

    def log_start(self, topic_partition: TopicPartition) -> int:
        """Return the first offset of a partition of the last look that was not deleted by now.

        It may lie in a remote tier alone, see :mod:`.tiered`.
        """
        return self.start_of(topic_partition).offset

    def start_of(self, topic_partition: TopicPartition) -> LogStart:
        """Return where the log of a partition of the last look starts now, here and in a tier."""
        try:
            with self.open(topic_partition) as log:
                first = log.log_start_offset
        except (KafkaLogError, OSError):
            if not self.elsewhere(topic_partition):
                raise
            return self.start_of(topic_partition)
        seen = self._logs.by_partition[topic_partition]
        return self._start_of(seen, first)

    def seen_start(self, topic_partition: TopicPartition) -> LogStart:
        """Return where a log started at the last look, as :meth:`start_of` without another one.

        Raises:
            UnknownTopicOrPartitionError: that did not find it.
        """
        log = self._tracked(topic_partition)
        return self._start_of(log, _first_seen(log))

    def seen_empty(self, topic_partition: TopicPartition, end: int) -> LogStart | None:
        """Return where a log starts that the last look saw to hold nothing below an end.

        None if it has to be opened: it holds something; it is in a tier or bucket; or it is a
        replica, which may have left the ISR while it was looked at.
        """
        log = self._logs.by_partition.get(topic_partition)
        if log is None or log.where.stamp is not None or isinstance(log.where.path, RemotePath):
            return None
        first = _first_seen(log)
        return self._start_of(log, first) if first >= end else None

    def tiered_starts(self) -> Mapping[TopicPartition, LogStart]:
        """Look, and return the starts of the logs of which a remote tier alone has records.

        Raises:
            LogDirectoryError, CheckpointError: as :meth:`look`.
        """
        ends = self.look()
        known, starts = self._tiered
        if known is not ends:
            starts = {key: s for key in ends.offsets if (s := self.seen_start(key)).is_tiered}
            self._tiered = ends, starts
        return starts

    def _start_of(self, log: TrackedLog, first: int) -> LogStart:
        folder = log.where.path
        in_tier = folder.is_in_tier() if isinstance(folder, RemotePath) else None
        start = self._marks.start_of_log(log.where, log.topic_id, first)
        if in_tier:
            begin = start_of_gap(folder, first)
            if start < begin:
                say_expired(str(folder), start, begin)
            return LogStart(begin, first, has_tier=True)
        return LogStart(start, first, has_tier=in_tier is not None)


def _first_seen(log: TrackedLog) -> int:
    return max(recorded_log_start(log.said, log.seen.end), log.seen.start)


# ----------------------------------------------------------------------------------------------
# A warning of logs that have records in a remote tier alone (:mod:`.tiered`).


_LOGGER = logging.getLogger("kafkalog.source")


def say_tiered(watch: LogEndTracker) -> None:
    """Warn of the partitions of which a remote tier alone has records.

    Raises:
        LogDirectoryError, CheckpointError: as ``LogEndTracker.look``.
    """
    for key, start in watch.tiered_starts().items():
        _LOGGER.warning("%s: %s", key, start)
