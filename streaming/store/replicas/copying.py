"""Copy to a replica what it lacks from its leader's log; cut it where it differs."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import (
    CLEANER_OFFSET,
    LEADER_EPOCHS,
    read_offset_checkpoint,
    read_topic_id,
    write_offset_checkpoint,
)
from kafkalog.errors import (
    CheckpointError,
    CorruptIndexError,
    CorruptRecordError,
    KafkaLogError,
    LogDirectoryError,
)
from kafkalog.files.atomic import write_atomically
from kafkalog.files.open_file import read_at
from kafkalog.files.regular import (
    create_exclusive,
    fsync_directory,
    open_regular,
    read_whole,
    sync,
    write_all,
)
from kafkalog.files.timeouts import at
from kafkalog.streaming.log.append.recovery import remove_segment
from kafkalog.streaming.log.files import (
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
)
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.log.valid_batches import find_valid_end

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition


__all__ = [
    "CopyBudget",
    "Copying",
    "LeaderUnreadableError",
    "SeenFiles",
    "copy_bytes",
    "copy_cleaner_offset",
    "equal_bytes",
    "of_leader",
    "own_topic_id",
    "was_away",
]


# ----------------------------------------------------------------------------------------------
# Which files were compared and copied: a directory may be away for a moment amid that.
#
# Example: a mount fails, and is back after 3 ms. Meanwhile a replica's folder is not there, so it
# is made and gets a first segment, below the mount. The segments after that one get into the log
# itself, which has a hole then. What each name stood for is noted here, and is the same in the
# end, or the replica is not in sync.


class SeenFiles:
    """The device and inode of each file by the path under which it was opened last."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[int, int]] = {}

    def note(self, path: Path, descriptor: int) -> None:
        """Take note of a file that is open."""
        self._seen[path] = _identity(os.fstat(descriptor))

    def read(self, path: Path, *, limit: int) -> bytes:
        """Read a small file whole, and take note of it.

        Raises:
            FileNotFoundError: nothing has that name.
            LogDirectoryError: not a regular file, not readable, or longer than ``limit`` bytes.
        """
        descriptor = open_regular(path)
        try:
            self.note(path, descriptor)
            return read_whole(descriptor, path, limit=limit)
        finally:
            os.close(descriptor)

    def check(self) -> None:
        """See that each path names the file that it named.

        Raises:
            LogDirectoryError: one does not.
        """
        for path, seen in self._seen.items():
            try:
                with at(path):
                    found = _identity(path.stat())
            except FileNotFoundError:
                found = None
            if found != seen:
                raise was_away(path)


def was_away(path: Path) -> LogDirectoryError:
    """Say that a file of a partition's folder is not the one that it was."""
    return LogDirectoryError(
        f"{path} is another file than a moment ago, or gone. Was {path.parent.parent} away, or did "
        "somebody replace it? It is compared again by the next write, or if this is run again"
    )


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


# ----------------------------------------------------------------------------------------------

_PIECE_BYTES: Final = 1 << 20
_LARGEST_SMALL_FILE: Final = 1 << 30
_BESIDE: Final = (OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)
_TORN: Final = "torn"
"""In place of the topic id that a file should have and has not."""


class LeaderUnreadableError(KafkaLogError):
    """The log that is copied cannot be read: it is not the replica's fault."""


class CopyBudget:
    """How many bytes may still be copied, and as many compared.

    A segment that is begun is compared whole, and copied as far as there is room.
    """

    def __init__(self, size: int) -> None:
        self.left = size
        self._to_compare = size

    @property
    def is_used_up(self) -> bool:
        """Whether no other segment is begun."""
        return self.left <= 0 or self._to_compare <= 0

    def take(self, size: int) -> int:
        """Return how many of ``size`` bytes may be copied, which are taken."""
        taken = min(size, self.left)
        self.left -= taken
        return taken

    def compare(self, size: int) -> None:
        """Take note of ``size`` bytes that were compared."""
        self._to_compare -= size


@dataclass(frozen=True)
class Copying:
    """Files of the leader's log in ``source``, which ends at ``log_end``, and of a replica's."""

    source: Path
    target: Path
    log_end: int
    room: CopyBudget
    seen: SeenFiles = field(default_factory=SeenFiles)

    def copy_log(self, base: int, *, trusted: bool, sealed: bool) -> bool:
        """Let a segment's log be equal as far as there is room; returns whether all of it is.

        One that the replica has ``sealed`` is not cut but recreated: somebody may read it.
        """
        name = file_name(base, LOG)
        with of_leader(self.source):
            reading = open_regular(self.source / name)
        try:
            size = os.fstat(reading).st_size
            self.seen.note(self.source / name, reading)
            writing = _opened_or_made(self.target / name)
            try:
                found = os.fstat(writing).st_size
                self.seen.note(self.target / name, writing)
                if trusted and found == size:
                    return True
                equal = equal_bytes(self.source, reading, writing, min(found, size))
                self.room.compare(equal)
                if equal < size:
                    _check_sound(self.source, base, equal, self.log_end)
                if found > equal and sealed:
                    closing, writing = writing, -1  # never twice, whatever closing it raises
                    os.close(closing)
                    remove_segment(self.target, base)
                    writing, found, equal = create_exclusive(self.target / name), 0, 0
                    self.seen.note(self.target / name, writing)
                if found > equal:
                    os.ftruncate(writing, equal)
                end = equal + self.room.take(size - equal)
                copy_bytes(self.source, reading, writing, equal, end)
                if end == size:
                    _keep_time(reading, writing)
                sync(writing)
                return end == size
            finally:
                if writing >= 0:
                    os.close(writing)
        finally:
            os.close(reading)

    def copy_beside(self, base: int, *, durable: bool) -> None:
        """Copy a segment's indexes and snapshot."""
        for suffix in _BESIDE:
            self.copy_small(file_name(base, suffix), durable=durable)

    def copy_small(self, name: str, *, durable: bool = False) -> None:
        """Copy a small file; one that the leader does not have goes."""
        own = self.target / name
        try:
            with of_leader(self.source):
                data = self.seen.read(self.source / name, limit=_LARGEST_SMALL_FILE)
        except FileNotFoundError:
            own.unlink(missing_ok=True)
            return
        try:
            if self.seen.read(own, limit=_LARGEST_SMALL_FILE) == data:
                return
        except FileNotFoundError:
            pass
        write_atomically(own, data, fsync=durable)  # the folder is synced when all is there
        if self.seen.read(own, limit=_LARGEST_SMALL_FILE) != data:
            raise was_away(own)

    def copy_rest(self, key: TopicPartition) -> None:
        """Let what lies beside the logs be as the leader has it, durably."""
        for path in list(self.target.iterdir()):
            if path.suffix in _BESIDE and not (self.source / path.name).exists():
                path.unlink()
        self.copy_small(LEADER_EPOCHS)
        fsync_directory(self.target)
        copy_cleaner_offset(self.source, self.target, key)

    def check_place(self, bases: Sequence[int], topic_id: str | None) -> None:
        """See that all that was copied lies in one place, and nothing else.

        Raises:
            LogDirectoryError: it does not.
        """
        self.seen.check()
        if list_base_offsets(self.target) != bases or own_topic_id(self.target) != topic_id:
            raise was_away(self.target / file_name(max(bases, default=0), LOG))


def copy_cleaner_offset(source: Path, target: Path, key: TopicPartition) -> None:
    """Durably let the log directory of a replica say how far it is clean, as its leader's does.

    Raises:
        LeaderUnreadableError: that one cannot be read.
        OSError, CheckpointError: the checkpoint cannot be replaced.
    """
    with of_leader(source):
        clean_to = read_offset_checkpoint(source.parent, CLEANER_OFFSET).get(key, 0)
    if read_offset_checkpoint(target.parent, CLEANER_OFFSET).get(key, 0) != clean_to:
        write_offset_checkpoint(target.parent, CLEANER_OFFSET, {key: clean_to})


@contextmanager
def of_leader(path: Path) -> Iterator[None]:
    """Tell what cannot be read of a leader, in ``path``, from what cannot be done on the replica.

    Raises:
        LeaderUnreadableError: for any error but that a file is not there.
    """
    try:
        with at(path):
            yield
    except FileNotFoundError:
        raise
    except (OSError, KafkaLogError) as error:
        raise LeaderUnreadableError(f"{path} cannot be copied: {error}") from error


def own_topic_id(target: Path) -> str | None:
    """Return the id of the topic whose partition lies in a folder; a word if that is torn."""
    try:
        return read_topic_id(target)
    except CheckpointError:
        return _TORN  # by a loss of power


def _opened_or_made(path: Path) -> int:
    try:
        return open_regular(path, os.O_RDWR)
    except FileNotFoundError:
        return create_exclusive(path)


def copy_bytes(source: Path, reading: int, writing: int, start: int, end: int) -> None:
    """Copy the bytes ``[start, end)`` of an open file of a leader, in the folder ``source``.

    Raises:
        LeaderUnreadableError: they cannot be read.
        OSError: they cannot be written.
    """
    for position in range(start, end, _PIECE_BYTES):
        with of_leader(source):
            data = read_at(reading, position, min(_PIECE_BYTES, end - position))
        write_all(writing, data.data, position)


def _keep_time(reading: int, writing: int) -> None:
    """Let a log have the time of the one that it is a copy of.

    Records without timestamps expire by it, as for a broker. Only its owner may set it, and a log
    may be another one's, who writes the set too: then it has the time of the copy.
    """
    found = os.fstat(reading)
    with suppress(PermissionError):
        os.utime(writing, ns=(found.st_atime_ns, found.st_mtime_ns))


def _check_sound(source: Path, base: int, position: int, log_end: int) -> None:
    """Refuse to copy what is damaged below ``log_end``: the replica may have it as it should be.

    Checksums are compared from about ``position`` on, up to the end of the segment.

    Raises:
        CorruptRecordError: a batch is damaged.
    """
    with of_leader(source), LogSegment(source, base) as segment:
        end = find_valid_end(segment, _indexed_before(segment, position))
    if end.problem is not None and end.next_offset < log_end:
        raise CorruptRecordError(
            f"its leader is damaged, and is not copied: {end.problem}. Run `kafkalog recover`"
        ) from end.problem


def _indexed_before(segment: LogSegment, position: int) -> int:
    """Return a position at which a batch begins, up to this one; a loss of power tears indexes."""
    index = segment.offset_index()
    if index is None:
        return 0
    try:
        known = index.between(0, position + 1).tolist()
    except CorruptIndexError:
        return 0
    offset, found = known[-1] if known else (0, 0)
    return found if found and segment.begins_by(offset, found) else 0


def equal_bytes(source: Path, one: int, other: int, size: int) -> int:
    """Return up to which multiple of a piece, or to ``size``, two open files are equal.

    ``one`` is of the leader, in the folder ``source``.

    Raises:
        LeaderUnreadableError: that one cannot be read.
        OSError: the other one cannot be.
    """
    for position in range(0, size, _PIECE_BYTES):
        length = min(_PIECE_BYTES, size - position)
        with of_leader(source):
            data = bytes(read_at(one, position, length))
        if data != bytes(read_at(other, position, length)):
            return position
    return size
