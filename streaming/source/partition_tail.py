"""Where the log of one partition ends, looked up again only when its files have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.errors import UnknownTopicOrPartitionError
from kafkalog.files.watch import Watch, stamp_of, watchable
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.read.transactions import StableOffset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kafkalog.files.remote_path import RemotePath
    from kafkalog.files.watch import Stamp
    from kafkalog.streaming.log.log_dir import PartitionDirectory

__all__ = ["PartitionTail"]


class PartitionTail:
    """What is known of one partition's folder, and the stamps by which it is known to hold."""

    __slots__ = (
        "_active",
        "_as_recovered",
        "_directory",
        "_is_read",
        "_looked_for",
        "_stable",
        "_stable_ends",
        "_stamp",
        "first_offset",
        "is_behind",
        "is_damaged",
        "is_torn",
        "log_end",
        "settled_at",
        "topic_id",
        "walked",
        "where",
    )

    def __init__(self, where: PartitionDirectory, *, as_recovered: bool = False) -> None:
        self.where = where
        self._as_recovered = as_recovered
        self.topic_id: str | None = None
        self.first_offset = 0
        self.log_end = 0
        self.is_damaged = False
        self.is_torn = False
        self.walked = True
        """Whether the log end alone tells, as of the last look, where the partition ends."""
        self.is_behind = False
        """Whether more is said to be committed than the log was last seen to have."""
        self._directory = Watch(where.path)
        self._active: str | RemotePath = ""
        self._stamp: Stamp | None = None
        self._is_read = False
        self.settled_at: int | None = None
        """The end that a commit or a broker tells, if the log was last seen to reach it."""
        self._looked_for = -1
        self._stable: StableOffset | None = None
        self._stable_ends: tuple[int, Stamp | None, int] | None = None

    def stirs(self, *, listing_is_due: bool) -> bool:
        """Tell whether the active segment has changed, or is no longer the last.

        A new segment shows in the folder alone, which has to be looked at where no commit tells,
        and where one has told already: in a mirror the segment may come after the commit's files.
        """
        stamp = stamp_of(self._active)
        may_grow = self.walked or self.is_behind
        looks_new = listing_is_due and may_grow and self._directory.changed()
        if looks_new or stamp is None or stamp != self._stamp:
            self._is_read = False
            self.settled_at = None
        return not self._is_read

    def expect_more(self) -> bool:
        """Have the log read again at the next look if its files have changed; tells whether."""
        if self._directory.changed() or stamp_of(self._active) != self._stamp:
            self._is_read = False
            self.settled_at = None
        return not self._is_read

    def refresh(self, verify_from: Callable[[PartitionTail], int | None]) -> None:
        """Find the log end again if need be.

        ``verify_from`` gives the offset from which on batches are not known to be whole.
        """
        if self.settled_at is not None:
            self.stirs(listing_is_due=False)
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
        """Tell whether the log has the end of each transaction that begins below an offset.

        The marker may lie above it: a limit cuts a batch within a transaction that is over.
        """
        try:
            if self.last_stable(offset, around_damage=around_damage) >= offset:
                return True
            with PartitionLog(self.where.path, self.where.topic_partition) as log:
                end = log.log_end(behind_damage=True).offset
            return StableOffset(self.where.path, around_damage=around_damage).find(end) >= offset
        except UnknownTopicOrPartitionError:  # deleted or moved since the last look
            return False

    def folder(self, directories: Sequence[Path]) -> Path:
        """Give the folder where the log is now, if a broker has moved it since the last look.

        To plan many partitions takes longer than the next replica takes to move.
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

    def _read(self, verify_from: Callable[[PartitionTail], int | None]) -> None:
        # stamps come before what they vouch for: a change in between shows at the next look
        self._directory.changed()
        folder = self.where.path
        self._is_read = False
        self.is_behind = False
        self._take_id(read_topic_id(folder))
        self._read_log(folder, verify_from)
        if read_topic_id(folder) != self.topic_id:
            # the folder of another topic by now, or one that had its id after the first read
            raise UnknownTopicOrPartitionError(f"{folder} was made again while it was read")
        self._is_read = True

    def _take_id(self, topic_id: str | None) -> None:
        if topic_id != self.topic_id:
            self.topic_id = topic_id
            self.log_end = 0  # whatever was verified, was of another topic's log
            self._stable = self._stable_ends = None

    def _read_log(self, folder: Path, verify_from: Callable[[PartitionTail], int | None]) -> None:
        with PartitionLog(folder, self.where.topic_partition) as log:
            # a folder that has no segment yet will have one soon, and is read until then
            self._active = watchable(log.segments[-1].path) if log.segments else ""
            self._stamp = stamp_of(self._active)
            self.first_offset = log.log_start_offset
            unverified = verify_from(self)
            if unverified is not None:
                # what an earlier look has verified need not be walked over again
                unverified = max(unverified, self.log_end)
            end = log.log_end(verify_from=unverified, behind_damage=not self._as_recovered)
            self.log_end, self.is_damaged, self.is_torn = end.offset, end.is_damage, end.is_torn
