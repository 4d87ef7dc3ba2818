"""Bring a replica up to date with its leader: what differs is cut, what lacks is copied.

Example: a node was away for an hour, and its log ends at offset 900, where a commit was cut off;
the leader's ends at 1,500. Up to 880 the two are equal, byte for byte. The replica is cut there,
and gets the leader's bytes from there on.

A follower of Kafka cuts its log by leader epochs (KIP-101), since it cannot see its leader's bytes.
Here one process sees both, so it compares them. What lies below the replica's own recovery point
was made durable after it was committed, so it is not compared where the segment has the right size.
Where the leader's segments were replaced since, its recovery point was taken back before
(:mod:`~kafkalog.streaming.store.replicas.rewriting`). So all is compared, in bounded steps, too:
the recovery point follows each segment that is equal.

Whatever is cut off amid this leaves a replica that is not in sync. The next one continues: copied
bytes count once they are equal.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import (
    CLEANER_OFFSET,
    LEADER_EPOCHS,
    PARTITION_METADATA,
    RECOVERY_POINT,
    read_offset_checkpoint,
    read_topic_id,
    write_offset_checkpoint,
    write_topic_id,
)
from kafkalog.errors import (
    CheckpointError,
    CorruptIndexError,
    CorruptRecordError,
    KafkaLogError,
    LogDirectoryError,
)
from kafkalog.files.atomic import write_atomically
from kafkalog.files.local_file import read_at
from kafkalog.files.regular import (
    create_exclusive,
    fsync_directory,
    make_directory,
    open_regular,
    read_regular,
    sync,
    write_all,
)
from kafkalog.files.shield import check_interrupt
from kafkalog.files.stalling import at
from kafkalog.streaming.log.append.recovery import remove_segment
from kafkalog.streaming.log.files import (
    CLEANED,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
)
from kafkalog.streaming.log.log_end import find_valid_end
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segment_files import list_base_offsets
from kafkalog.streaming.log.swap import finish_swap
from kafkalog.streaming.store.clearing import WrittenEnd, write_ends
from kafkalog.streaming.store.stale_lines import drop_lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition

__all__ = [
    "LeaderUnreadableError",
    "Room",
    "catch_up",
    "copy_bytes",
    "copy_cleaner_offset",
    "equal_bytes",
    "of_leader",
]

_PIECE_BYTES: Final = 1 << 20
_LARGEST_SMALL_FILE: Final = 1 << 30
_BESIDE: Final = (OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)
_TORN: Final = "torn"
"""In place of the topic id that a file should have and has not."""


class LeaderUnreadableError(KafkaLogError):
    """The log that is copied cannot be read: it is not the replica's fault."""


class Room:
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


def catch_up(
    source: Path,
    target: Path,
    key: TopicPartition,
    log_end: int,
    room: Room,
    *,
    trusts: bool = True,
) -> bool:
    """Let the log in the folder ``target`` become that of its leader in ``source``.

    REQUIRES: the locks of both are held, and no commit is unfinished in the source, which ends at
    ``log_end``. Unless this ``trusts`` it, all is compared, whatever its recovery point says.
    Returns whether it has; else ``room`` was too little, and the next call continues.

    Raises:
        LeaderUnreadableError: a file of the source cannot be read.
        CorruptRecordError: a batch of the source is damaged, and was not copied.
        OSError, KafkaLogError: one of the target cannot be read or written.
    """
    with of_leader(source):
        finish_swap(source)
        bases, topic_id = list_base_offsets(source), read_topic_id(source)
    if _make(target, topic_id):
        drop_lines([target.parent], {key})
    own = _drop_others(target, bases)
    equal_to, point = 0, read_offset_checkpoint(target.parent, RECOVERY_POINT).get(key, 0)
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        check_interrupt()
        trusted, sealed = trusts and following is not None and following <= point, base in own[:-1]
        is_full = room.is_used_up and not trusted
        told = {"trusted": trusted, "sealed": sealed}
        if is_full or not _copy_log(source, target, base, room, log_end, **told):
            _note_progress(target, key, equal_to, point)
            return False
        _copy_beside(source, target, base, durable=following is not None)
        equal_to = following or log_end
    _copy_rest(source, target, key)
    write_ends([WrittenEnd(target.parent, key, log_end)], durable=True)  # and the folder's name
    return True


def _copy_rest(source: Path, target: Path, key: TopicPartition) -> None:
    """Let what lies beside the logs be as the leader has it, durably."""
    for path in list(target.iterdir()):
        if path.suffix in _BESIDE and not (source / path.name).exists():
            path.unlink()
    _copy_small(source / LEADER_EPOCHS, target / LEADER_EPOCHS)
    fsync_directory(target)
    copy_cleaner_offset(source, target, key)


def _drop_others(target: Path, bases: Sequence[int]) -> Sequence[int]:
    """Remove segments that the leader does not have; returns the base offsets of all there were.

    What somebody has left who replaced segments goes, too: all of it is copied, if it counts.
    """
    for path in list(target.iterdir()):
        if path.suffix in {CLEANED, SWAP}:
            path.unlink()
    own = list_base_offsets(target)
    for base in reversed(own):
        if base not in bases:
            remove_segment(target, base)
    return own


def _note_progress(target: Path, key: TopicPartition, equal_to: int, point: int) -> None:
    """Durably say up to where nothing is to be compared again: with its indexes, that is synced."""
    if equal_to > point:
        write_offset_checkpoint(target.parent, RECOVERY_POINT, {key: equal_to})


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


def _make(target: Path, topic_id: str | None) -> bool:
    """Make the folder of a replica; one of another topic's id held what was deleted since.

    Returns whether what is noted of the partition in the directory is of no use any more.
    """
    if target.is_symlink():
        raise LogDirectoryError(f"{target} is a link, and no replica is kept behind one")
    is_other = not target.is_dir() or _own_id(target) != topic_id
    if is_other and target.is_dir():
        for base in reversed(list_base_offsets(target)):
            remove_segment(target, base)
        for name in (PARTITION_METADATA, LEADER_EPOCHS):
            (target / name).unlink(missing_ok=True)
    if not target.is_dir():
        make_directory(target)
    if topic_id is not None:
        write_topic_id(target, topic_id)
    return is_other


def _own_id(target: Path) -> str | None:
    try:
        return read_topic_id(target)
    except CheckpointError:
        return _TORN  # by a loss of power


def _copy_log(
    source: Path, target: Path, base: int, room: Room, log_end: int, *, trusted: bool, sealed: bool
) -> bool:
    """Let a segment's log be equal as far as there is room; returns whether all of it is.

    One that the replica has ``sealed`` is not cut but recreated: somebody may read it.
    """
    name = file_name(base, LOG)
    with of_leader(source):
        reading = open_regular(source / name)
    try:
        size = os.fstat(reading).st_size
        writing = _opened_or_made(target / name)
        try:
            found = os.fstat(writing).st_size
            if trusted and found == size:
                return True
            equal = equal_bytes(source, reading, writing, min(found, size))
            room.compare(equal)
            if equal < size:
                _check_sound(source, base, equal, log_end)
            if found > equal and sealed:
                os.close(writing)
                writing = -1
                remove_segment(target, base)
                writing, found, equal = create_exclusive(target / name), 0, 0
            if found > equal:
                os.ftruncate(writing, equal)
            end = equal + room.take(size - equal)
            copy_bytes(source, reading, writing, equal, end)
            sync(writing)
            return end == size
        finally:
            if writing >= 0:
                os.close(writing)
    finally:
        os.close(reading)


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
        )


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


def _copy_beside(source: Path, target: Path, base: int, *, durable: bool) -> None:
    for suffix in _BESIDE:
        name = file_name(base, suffix)
        _copy_small(source / name, target / name, durable=durable)


def _copy_small(source: Path, target: Path, *, durable: bool = False) -> None:
    """Copy a small file; one that the leader does not have goes."""
    try:
        with of_leader(source):
            data = read_regular(source, limit=_LARGEST_SMALL_FILE)
    except FileNotFoundError:
        target.unlink(missing_ok=True)
        return
    try:
        if read_regular(target, limit=_LARGEST_SMALL_FILE) == data:
            return
    except FileNotFoundError:
        pass
    write_atomically(target, data, fsync=durable)  # the folder is synced when all is there
