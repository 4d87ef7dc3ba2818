"""Where the partitions of a query end now: what ``latestOffset`` is asked 90 times a second.

The end is the committed one: the larger of what our own commit state and a broker's
``replication-offset-checkpoint`` say, never beyond the log end. Of a partition that an unfinished
commit names, only the commit state counts. Of one that the ``replication-offset-checkpoint`` of its
directory does not name, nothing is committed yet, as for a broker: on a live one it is a new one.
Where nobody knows the partition (a bare copy of its folder), and with ``readUpTo=logEnd``, it is
the log end, found by walking the active segment from its last index entry. With ``logEnd`` the walk
starts from the committed end or a broker's recovery point, if that is earlier: the first bytes
behind it that are no valid batch are the end of the log, as for a broker that recovers; below the
committed end, only zeros are.

Of a query that reads committed records, the end is the last stable offset below that. What lies
between belongs to open transactions, and is neither unread nor missing.

A partition costs one ``stat``, if its active segment has not changed. Where a commit or a broker
tells the end and the log has it, no look is needed until they tell another one; to find logs that
were cut or swapped all the same, each look takes some of these partitions in turn.

The order in which the files are read, and why a walk must be followed by another look at the commit
state, is explained at :class:`kafkalog.checkpoints.commit_state.Committed`.
"""

from __future__ import annotations

import logging
import time
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.boot import boot_id
from kafkalog.checkpoints.broker import CLEANER_OFFSET
from kafkalog.checkpoints.topic_ids import is_changed_id
from kafkalog.errors import DataLossError, LogDirectoryError, UnknownTopicOrPartitionError
from kafkalog.files.remote_path import RemotePath
from kafkalog.files.watch import Watched
from kafkalog.streaming.log.log_dir import LogDirs
from kafkalog.streaming.log.log_start import log_start_text
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.records.compression import DEFAULT_LIMIT
from kafkalog.streaming.source.gaps import OffsetGap, say_gaps
from kafkalog.streaming.source.known_ends import KnownEnds
from kafkalog.streaming.source.missing_parts import NOTHING, MissingParts, find_missing_parts
from kafkalog.streaming.source.partition_tail import PartitionTail
from kafkalog.streaming.store.unsynced import find_lost, lost_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.source.offsets import PartitionOffsets

__all__ = ["LogTail"]

_LOGGER = logging.getLogger("kafkalog.source")

_ATTEMPTS: Final = 100
"""A look is taken again when a commit or a deletion got in between; each takes milliseconds."""

_TAKEN_IN_TURN: Final = 50
"""Partitions looked at each time, of those that nothing is known to have happened to."""

_LISTING_INTERVAL_S: Final = 0.05
"""How often folders of partitions that are walked are looked at for a new segment."""


class LogTail:
    """Follows the ends of the partitions that a query has chosen. Not thread safe, not picklable.

    ``selects`` tells which of the existing partitions are meant; new ones are found at every look.
    With ``every_batch`` logs start where their first segment does, though a broker has moved the
    log start offset since. With ``around_damage``, damage does not keep the last stable offset, or
    records by their timestamps, from being found. ``max_decompressed_bytes`` bounds what batches
    that are searched for a timestamp hold.
    """

    def __init__(
        self,
        paths: Iterable[str],
        selects: Callable[[TopicPartition], bool],
        *,
        to_log_end: bool = False,
        committed_only: bool = False,
        every_batch: bool = False,
        around_damage: bool = False,
        max_decompressed_bytes: int = DEFAULT_LIMIT,
    ) -> None:
        self._log_dirs = LogDirs(paths)
        self._selects = selects
        self._to_log_end = to_log_end
        self._committed_only = committed_only
        self._every_batch = every_batch
        self._around_damage = around_damage
        self._max_decompressed_bytes = max_decompressed_bytes
        self._listing = Watched(self._log_dirs.paths, self._log_dirs.partitions)
        self._listed: Mapping[TopicPartition, PartitionDirectory] | None = None
        self._partitions: dict[TopicPartition, PartitionTail] = {}
        self._restless: list[PartitionTail] = []
        """Those that have to be looked at each time."""
        self._in_turn: Iterator[PartitionTail] = iter(())
        self._ends_found: PartitionOffsets | None = None
        """As of the last look; None where more has happened since than partitions tell."""
        self._topic_ids: dict[TopicPartition, str | None] = {}
        self._topic_ids_are_due = False
        self._directories: list[Path] = []
        self._known: KnownEnds
        self._checked: dict[tuple[str, int], int] = {}
        """Up to where logs are whole that a loss of power may have torn."""
        self._checked_for = -1
        self._listed_for: tuple[int, int] | None = None
        """The newest commit that the listing is known to have come after."""
        self._next_listing = 0.0
        self._missing_parts: tuple[MissingParts, object, object] = (NOTHING, None, None)
        self.missing: dict[TopicPartition, OffsetGap] = {}
        """As of the last look: offsets that are said to be committed and that the log lacks."""
        self.lost: dict[TopicPartition, OffsetGap] = {}
        """As of the last look: the missing offsets that our own commits had put into the log."""
        self.unread: dict[TopicPartition, OffsetGap] = {}
        """As of the last look: offsets that lie in the log above the committed end."""

    def look(self, reached: PartitionOffsets | None = None) -> PartitionOffsets:
        """Find the ends of the partitions now, in order of the partitions.

        ``reached`` are offsets that a query has come to already: a log that did not go so far when
        it was last read is read again, if it has changed, for :meth:`reaches` to tell.

        Raises:
            LogDirectoryError: a log directory cannot be listed, or is of another set.
            CheckpointError: a commit state or topic id that cannot be trusted.
            CorruptRecordError: bytes of the log that cannot be walked over.
        """
        for _ in range(_ATTEMPTS):
            ends = self._ends_now()
            if ends is None:
                continue
            if not (reached and self._read_again(reached, ends)):
                return ends
            reached = None
        raise LogDirectoryError(
            "commits and deletions follow each other so fast that no moment between them was found "
            f"in {_ATTEMPTS} looks at {', '.join(map(str, self._log_dirs.paths))}"
        )

    def _ends_now(self) -> PartitionOffsets | None:
        """Find the ends; None where a commit or a deletion got in between."""
        if self._read_files():
            self._ends_found = None
        before = self._known.sequence
        if not self._stirred() and self._ends_found is not None:
            return self._ends_found
        self._ends_found = None
        try:
            ends, walked = self._ends()
        except UnknownTopicOrPartitionError:  # deleted since it was listed
            self._listing.forget()
            return None
        if walked:
            self._known.refresh_committed()
        if walked and self._known.sequence != before:
            return None
        self._ends_found = ends
        return ends

    def _read_again(self, reached: PartitionOffsets, ends: PartitionOffsets) -> bool:
        """Have logs read again that were not seen to reach an offset; gives whether any is."""
        short = [key for key, offset in reached.items() if ends.get(key, offset) < offset]
        found = [
            partition.expect_more()
            for key in short
            if (partition := self._partitions[key]).log_end < reached[key]
        ]
        if any(found):
            self._ends_found = None
        return any(found)

    def reaches(self, topic_partition: TopicPartition, offset: int) -> bool:
        """Whether a log goes up to an offset, be it known to be committed or not.

        As of the last look, at the very files that its ends are of. What an unfinished commit has
        appended may be taken back, and counts as not there.
        """
        partition = self._partitions.get(topic_partition)
        if partition is None:
            return False
        if self._known.committed.in_progress(*topic_partition):
            return offset <= min(partition.log_end, self._known.end_before_commit(topic_partition))
        return offset <= partition.log_end

    def is_stable(self, topic_partition: TopicPartition, offset: int) -> bool:
        """Whether no transaction is open below an offset that a log reaches, if that matters."""
        if not self._committed_only:
            return True
        partition = self._partitions[topic_partition]
        return partition.is_stable(offset, around_damage=self._around_damage)

    def report(self) -> None:
        """Say in numbers what the last look found beside the ends, where there is something."""
        say_gaps(self.unread, self.missing, list(self._ending_at_damage()))

    def _ending_at_damage(self) -> Iterator[str]:
        ends = self._ends_found or {}
        for key, partition in self._partitions.items():
            if partition.walked and partition.is_damaged and ends.get(key, 0) <= partition.log_end:
                yield f"{key} at offset {partition.log_end}"

    def existing(self) -> Iterable[TopicPartition]:
        """List all partitions that exist, chosen or not, as of the last look."""
        return self._listing.value.keys()

    def missing_parts(self) -> MissingParts:
        """Give what the commit state names and the last look did not find."""
        known, committed, listed = self._missing_parts
        if committed is not self._known.committed or listed is not self._listed:
            committed, listed = self._known.committed, self._listed
            folders = {where.path for where in (listed or {}).values()}
            directories = [path for path in self._log_dirs.paths if path not in folders]
            known = find_missing_parts(committed, directories, listed or {}, self._selects)
            self._missing_parts = known, committed, listed
        return known

    def list_anew(self) -> None:
        """Have the next look ask stores again, whatever is kept of an earlier listing."""
        for path in self._log_dirs.paths:
            if isinstance(path, RemotePath):
                path.store.forget_listing()

    def topic_ids(self) -> dict[TopicPartition, str | None]:
        """Give the ids of the partitions' topics, as of the last look; None for one without.

        The very same dictionary comes again as long as they are the same.
        """
        if self._topic_ids_are_due:
            self._topic_ids_are_due = False
            ids = {key: partition.topic_id for key, partition in self._partitions.items()}
            if ids != self._topic_ids:
                self._topic_ids = ids
        return self._topic_ids

    def is_changed_id(self, topic: str, before: str, now: str) -> bool:
        """Whether a topic got another id and kept its records, as when directories change hands."""
        places = (place for place in self._directories if isinstance(place, Path))
        return any(is_changed_id(place, topic, before, now) for place in places)

    def topic_id(self, topic_partition: TopicPartition) -> str | None:
        """Give the id of a partition's topic, as of the last look; None if it has none."""
        partition = self._partitions.get(topic_partition)
        return None if partition is None else partition.topic_id

    def open(self, topic_partition: TopicPartition) -> PartitionLog:
        """Open the log of a partition that the last look found.

        Raises:
            UnknownTopicOrPartitionError: it did not.
        """
        if topic_partition not in self._partitions:
            raise UnknownTopicOrPartitionError(
                f"{topic_partition} is in none of {', '.join(map(str, self._log_dirs.paths))}"
            )
        directory = self._partitions[topic_partition].folder(self._log_dirs.paths)
        start = self._known.log_start(topic_partition)
        return PartitionLog(
            directory,
            topic_partition,
            start,
            around_damage=self._around_damage,
            max_decompressed_bytes=self._max_decompressed_bytes,
            may_overlap=self._to_log_end,
        )

    def log_start(self, topic_partition: TopicPartition) -> int:
        """Give the first offset that a partition of the last look has now."""
        with self.open(topic_partition) as log:
            return log.log_start_offset

    def log_start_if_there(self, topic_partition: TopicPartition) -> int | None:
        """Give the first offset of a partition; None if it was deleted since the last look."""
        try:
            return self.log_start(topic_partition)
        except UnknownTopicOrPartitionError:
            return None

    def _read_files(self) -> bool:
        """Read what tells of all partitions; gives whether any of it may be new."""
        news = self._read_once()
        # A commit that came after the listing may have made partitions that the listing lacks.
        while self._listed_for != self._known.sequence:
            self._listed_for = self._known.sequence
            news |= self._read_once()
        self._refuse_os_loss()
        return self._known.refresh_log_starts() or news

    def _read_once(self) -> bool:
        news = False
        if self._listing.refresh() and self._listing.value is not self._listed:
            self._listed = self._listing.value
            self._take_listing(self._listed)
            news = True
        return self._known.refresh() or news

    def _stirred(self) -> bool:
        """Look at the partitions that have to be looked at; gives whether any has changed."""
        now = time.monotonic()
        listing_is_due = now >= self._next_listing
        if listing_is_due:
            self._next_listing = now + _LISTING_INTERVAL_S
        in_turn = list(islice(self._in_turn, _TAKEN_IN_TURN))
        if len(in_turn) < _TAKEN_IN_TURN:
            self._in_turn = iter(self._partitions.values())
            in_turn += islice(self._in_turn, _TAKEN_IN_TURN - len(in_turn))
        stirred = False
        for partition in dict.fromkeys(chain(self._restless, in_turn)):
            stirred |= partition.stirs(listing_is_due=listing_is_due)
        return stirred

    def _take_listing(self, found: Mapping[TopicPartition, PartitionDirectory]) -> None:
        known = self._partitions
        self._partitions = {
            topic_partition: known[topic_partition]
            if topic_partition in known and known[topic_partition].where == where
            else PartitionTail(where, as_recovered=self._to_log_end)
            for topic_partition, where in found.items()
            if self._selects(topic_partition)
        }
        self._restless = list(self._partitions.values())
        self._in_turn = iter(())
        for gaps in (self.missing, self.lost, self.unread):
            for key in gaps.keys() - self._partitions.keys():
                del gaps[key]
        folders = {where.path for where in found.values()}
        roots = {path for path in self._log_dirs.paths if path not in folders}
        directories = sorted(roots | {where.log_dir for where in found.values()})
        if directories != self._directories:
            self._directories = directories
            self._known = KnownEnds(
                directories,
                lambda name, unnamed: self._log_dirs.checkpoint(
                    name, self._listing.value.values(), unnamed=unnamed
                ),
                to_log_end=self._to_log_end,
                every_batch=self._every_batch,
            )
        else:
            self._known.forget_checkpoints()

    def _refuse_os_loss(self) -> None:
        """Refuse to read what flush=os left to a machine that has started again, and lost it.

        Raises:
            DataLossError: it lacks committed records.
        """
        state = self._known.committed.state
        is_local = all(isinstance(place, Path) for place in self._directories)
        if state is None or state.boot in {None, boot_id()} or not is_local or self._to_log_end:
            return
        if state.sequence != self._checked_for:
            chosen = {k: where for k, where in self._listing.value.items() if self._selects(k)}
            compacted = self._log_dirs.checkpoint(CLEANER_OFFSET, chosen.values())
            found = find_lost(state, chosen, compacted=compacted, checked=self._checked)
            if lost := list(found):
                raise DataLossError(lost_text(lost))
            self._checked_for = state.sequence

    def _ends(self) -> tuple[PartitionOffsets, bool]:
        """Give the ends, and whether any of them is known from walking the log alone."""
        ends: PartitionOffsets = {}
        walked = False
        self._restless = list(self._partitions.values())
        self._topic_ids_are_due = True
        for topic_partition, partition in self._partitions.items():
            committed = self._committed_end(partition)
            if committed is None or committed != partition.settled_at:
                for gaps in (self.missing, self.lost, self.unread):
                    gaps.pop(topic_partition, None)
                partition.refresh(self._verify_from)
                committed = self._committed_end(partition)  # by its topic's id of now
                end = self._end_of(partition, committed)
                walked |= partition.walked and not self._to_log_end
            else:
                end = committed
            if self._committed_only:
                end = partition.last_stable(end, around_damage=self._around_damage)
            start = self._start(partition)
            if max(end, partition.log_end) < start and not self._to_log_end:
                start = self._checked_start(partition)
            ends[topic_partition] = max(end, start)
        self._restless = [each for each in self._restless if each.settled_at is None]
        return ends, walked

    def _end_of(self, partition: PartitionTail, committed: int | None) -> int:
        """Give the end of a partition that was looked at, and settle it if it is the committed."""
        partition.walked = committed is None or self._to_log_end
        partition.settled_at = None
        if committed is None:
            return partition.log_end
        if partition.walked:
            has_all = committed <= partition.log_end
            return partition.log_end if has_all else self._end_without_tail(partition, committed)
        end = self._clamped(partition, committed)
        if committed <= partition.log_end:
            partition.settled_at = committed
        return end

    def _verify_from(self, partition: PartitionTail) -> int | None:
        """Give the offset from which on a log that is read to its end is checked.

        As a broker that recovers it, that does not trust what was not flushed.
        """
        if not self._to_log_end:
            return None
        flushed = self._known.recovery_point(partition.where.topic_partition)
        known = [each for each in (self._committed_end(partition), flushed) if each is not None]
        return min(known, default=None)

    def _committed_end(self, partition: PartitionTail) -> int | None:
        known = self._known.committed_end(partition.where.topic_partition, partition.topic_id)
        if known is None and self._known.has_state(partition.where.log_dir):
            return 0  # of a set of ours, the commit state knows all that is committed
        return known

    def _clamped(self, partition: PartitionTail, committed: int) -> int:
        """Give the end to read up to where the log ends elsewhere than what is committed says."""
        if committed > partition.log_end:
            partition.look_for(committed)
        if committed > partition.log_end:
            return self._end_without_tail(partition, committed)
        start = max(committed, self._start(partition))
        if start < partition.log_end:
            gap = OffsetGap(start, partition.log_end)
            self.unread[partition.where.topic_partition] = gap
        return committed

    def _end_without_tail(self, partition: PartitionTail, committed: int) -> int:
        """Give the end to read up to of a log that ends below what is committed.

        A broker's checkpoint may be ahead of a log that lost its tail with the machine's power, and
        the broker that recovers it goes on from there. What our own commit state names was in the
        log. Damage with valid batches behind it, or in place of what we committed, is no end: the
        task that comes to it fails, or passes it over.
        """
        partition.is_behind = True
        ours = self._known.our_end(partition.where.topic_partition, partition.topic_id)
        is_ours = ours is not None and ours > partition.log_end
        if partition.is_damaged or (is_ours and partition.is_torn):
            return committed
        self.missing[partition.where.topic_partition] = OffsetGap(partition.log_end, committed)
        if ours is not None and is_ours:
            self.lost[partition.where.topic_partition] = OffsetGap(partition.log_end, ours)
        return partition.log_end

    def _start(self, partition: PartitionTail) -> int:
        topic_partition = partition.where.topic_partition
        return max(partition.first_offset, self._known.log_start(topic_partition))

    def _checked_start(self, partition: PartitionTail) -> int:
        """Look again at a log that was seen to end below its start: both move on a live broker.

        Raises:
            LogDirectoryError: it still does, so that its records would be hidden.
        """
        self._known.refresh_log_starts()
        start = self._start(partition)
        partition.look_for(start)
        if partition.log_end < start:
            raise LogDirectoryError(log_start_text(partition.where, start, partition.log_end))
        return start
