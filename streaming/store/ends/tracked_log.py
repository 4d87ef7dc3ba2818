"""Tracked logs: what they hold, read again only when their files have changed."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.errors import UnknownTopicOrPartitionError
from kafkalog.files.remote_path import RemotePath
from kafkalog.files.system import system
from kafkalog.files.watch import Watch, stamp_of, watchable
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.read.transactions import StableOffset
from kafkalog.streaming.log.segments import SegmentListing
from kafkalog.streaming.store.ends.rule import RecordedOffsets, SeenEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kafkalog.files.watch import Stamp
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.ends.rule import End


__all__ = ["TrackedLog", "TrackedLogs"]


# ----------------------------------------------------------------------------------------------
# What the log of one partition holds, looked up again only when its files have changed.


_EMPTY: Final = SeenEnd(0, 0)
_NOTHING: Final = RecordedOffsets()


class TrackedLog:
    """A partition's log as it was last seen, and stamps that show if its files have changed.

    ``end`` is what the rule has made of it and of what files ``said``; None after the log was read,
    until :mod:`.tracker` asks the rule again.
    """

    __slots__ = (
        "_active",
        "_as_recovered",
        "_directory",
        "_is_read",
        "_looked_for",
        "_stable",
        "_stable_ends",
        "_stamp",
        "end",
        "listing",
        "said",
        "seen",
        "topic_id",
        "version",
        "where",
    )

    def __init__(self, where: PartitionDirectory, *, as_recovered: bool = False) -> None:
        self.where = where
        self._as_recovered = as_recovered
        self.topic_id: str | None = None
        self.version = object()
        """Another one each time that the log was read, which is when its files have changed."""
        self.seen = _EMPTY
        self.said = _NOTHING
        self.end: End | None = None
        self._directory = Watch(where.path)
        self.listing = SegmentListing(where.path)
        self._active: str | RemotePath = ""
        self._stamp: Stamp | None = None
        self._is_read = False
        self._looked_for = -1
        self._stable: StableOffset | None = None
        self._stable_ends: tuple[int, Stamp | None, int] | None = None

    @property
    def confirmed(self) -> int | None:
        """The committed end, if the log was last seen to reach it; until files say another."""
        end = self.end
        return end.committed if self._is_read and end is not None and end.is_confirmed else None

    @property
    def has_segments(self) -> bool:
        """Whether there was any when the log was last read."""
        return self._is_read and self._active != ""

    def has_changed(self, *, listing_is_due: bool) -> bool:
        """Return whether the active segment has changed, or is no longer the last.

        A new segment shows in the folder alone. The folder has to be looked at if no commit tells
        of new segments, and after a commit too: in a mirror a segment may come after the commit's
        files.
        """
        if not self._is_read:
            return True
        stamp = stamp_of(self._active)
        end = self.end
        may_grow = end is None or not end.is_confirmed
        looks_new = listing_is_due and may_grow and self._directory.changed()
        if looks_new or stamp is None or stamp != self._stamp:
            self._is_read = False
        return not self._is_read

    def read_again_if_changed(self) -> bool:
        """Have the log read again at the next look if its files have changed; tells whether."""
        if self._directory.changed() or stamp_of(self._active) != self._stamp:
            self._is_read = False
        return not self._is_read

    def refresh(self, verify_from: Callable[[TrackedLog], int | None]) -> None:
        """Read the log again if need be.

        ``verify_from`` gives the offset from which on batches are not known to be whole.
        """
        if self.confirmed is not None:
            self.has_changed(listing_is_due=False)
        if not self._is_read:
            self._read(verify_from)

    def last_stable(self, end: int, *, around_damage: bool) -> int:
        """Find the last stable offset below an end; the one found last, if nothing has changed."""
        known = self._stable_ends
        if known is not None and known[:2] == (end, self._stamp):
            return known[2]
        if self._stable is None:
            self._stable = StableOffset(self.where.path, around_damage=around_damage)
        found = self._stable.find(end)
        self._stable_ends = (end, self._stamp, found)
        return found

    def is_stable(self, offset: int, *, around_damage: bool) -> bool:
        """Return whether the log has the end of each transaction that begins below an offset.

        The marker may lie above the offset: a limit may cut a batch within a transaction that has
        ended.
        """
        try:
            if self.last_stable(offset, around_damage=around_damage) >= offset:
                return True
            with PartitionLog(self.where.path, self.where.topic_partition) as log:
                end = log.log_end(past_damage=True).offset
            return StableOffset(self.where.path, around_damage=around_damage).find(end) >= offset
        except UnknownTopicOrPartitionError:  # deleted or moved since the last look
            return False

    def folder(self, directories: Sequence[Path]) -> Path:
        """Return the folder where the log is now, if a broker has moved it since the last look.

        Planning many partitions takes longer than a broker needs to move the next replica.
        """
        folder = self.where.path
        if len(directories) > 1 and stamp_of(watchable(folder)) is None:
            for other in (directory / folder.name for directory in directories):
                if stamp_of(watchable(other)) and read_topic_id(other) == self.topic_id:
                    return other
        return folder

    def look_for(self, offset: int) -> None:
        """Look into the folder for an offset that is committed but was not seen yet, once."""
        if offset != self._looked_for:
            self._looked_for = offset
            self._read(lambda _: None)

    def _read(self, verify_from: Callable[[TrackedLog], int | None]) -> None:
        # stamps come before what they vouch for: a change in between shows at the next look
        self._directory.changed()
        folder = self.where.path
        self._is_read = False
        self.end = None
        self.version = object()
        self._take_id(read_topic_id(folder))
        self._read_log(folder, verify_from)
        if self._directory.may_have_changed() and read_topic_id(folder) != self.topic_id:
            # the folder of another topic by now, or one that had its id after the first read
            raise UnknownTopicOrPartitionError(f"{folder} was recreated while it was read")
        self._is_read = True

    def _take_id(self, topic_id: str | None) -> None:
        if topic_id != self.topic_id:
            self.topic_id = topic_id
            self.seen = _EMPTY  # whatever was verified, was of another topic's log
            self._stable = self._stable_ends = None

    def _read_log(self, folder: Path, verify_from: Callable[[TrackedLog], int | None]) -> None:
        with PartitionLog(folder, self.where.topic_partition, listing=self.listing) as log:
            # a folder that has no segment yet will have one soon, and is read until then
            self._active = log.segments[-1].place() if log.segments else ""
            self._stamp = stamp_of(self._active)
            unverified = verify_from(self)
            if unverified is not None:
                # what an earlier look has verified need not be walked over again
                unverified = max(unverified, self.seen.end)
            told = folder.log_end() if isinstance(folder, RemotePath) else None
            if told is not None:
                self.seen = SeenEnd(log.log_start_offset, told, False, False)
                return
            end = log.log_end(verify_from=unverified, past_damage=not self._as_recovered)
            self.seen = SeenEnd(log.log_start_offset, end.offset, end.is_damage, end.is_torn)


# ----------------------------------------------------------------------------------------------
# The logs of all partitions that are followed, and which of them to look at now.
#
# A log costs one ``stat``, if its active segment has not changed. Where a commit or a broker
# tells the end and the log has it, no look is needed until they tell another one; to find logs
# that were cut or swapped all the same, each look takes some of these logs in turn.


_TAKEN_IN_TURN: Final = 50
"""Logs looked at each time, of those that nothing is known to have happened to."""

_LISTING_INTERVAL_S: Final = 0.05
"""How often folders of partitions whose end no file confirms are looked at for a new segment."""


class TrackedLogs:
    """The logs by partition. Those of partitions that stay where they were are kept."""

    def __init__(self, *, as_recovered: bool) -> None:
        self._as_recovered = as_recovered
        self.by_partition: dict[TopicPartition, TrackedLog] = {}
        self._unconfirmed: list[TrackedLog] = []
        """Those that have to be looked at each time."""
        self._in_turn: Iterator[TrackedLog] = iter(())
        self._next_listing = 0.0

    def take(self, found: Mapping[TopicPartition, PartitionDirectory]) -> None:
        """Follow the partitions that were found, and no others."""
        known = self.by_partition
        self.by_partition = {
            key: known[key]
            if key in known and known[key].where == where
            else TrackedLog(where, as_recovered=self._as_recovered)
            for key, where in found.items()
        }
        self._in_turn = iter(())
        self.refresh_all()

    def refresh_all(self) -> None:
        """Have the next look take all logs, until :meth:`confirm` says which need not."""
        self._unconfirmed = list(self.by_partition.values())

    def confirm(self) -> None:
        """From now on take those only in turn whose ends are confirmed."""
        self._unconfirmed = [log for log in self._unconfirmed if log.confirmed is None]

    def have_changed(self) -> bool:
        """Look at the logs that are due; returns whether any of them has changed."""
        now = system.monotonic()
        listing_is_due = now >= self._next_listing
        if listing_is_due:
            self._next_listing = now + _LISTING_INTERVAL_S
        in_turn = list(islice(self._in_turn, _TAKEN_IN_TURN))
        if len(in_turn) < _TAKEN_IN_TURN:
            self._in_turn = iter(self.by_partition.values())
            in_turn += islice(self._in_turn, _TAKEN_IN_TURN - len(in_turn))
        changed = False
        for log in dict.fromkeys(chain(self._unconfirmed, in_turn)):
            changed |= log.has_changed(listing_is_due=listing_is_due)
        return changed
