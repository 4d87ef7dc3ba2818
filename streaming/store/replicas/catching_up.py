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

from typing import TYPE_CHECKING

from kafkalog.checkpoints.broker import (
    LEADER_EPOCHS,
    PARTITION_METADATA,
    RECOVERY_POINT,
    is_topic_id,
    read_offset_checkpoint,
    read_topic_id,
    write_offset_checkpoint,
    write_topic_id,
)
from kafkalog.errors import LogDirectoryError
from kafkalog.files.regular import make_directory
from kafkalog.files.shield import check_interrupt
from kafkalog.streaming.log.append.recovery import remove_segment
from kafkalog.streaming.log.files import CLEANED, SWAP
from kafkalog.streaming.log.segment_files import list_base_offsets
from kafkalog.streaming.log.swap import finish_swap
from kafkalog.streaming.store.clearing import WrittenEnd, write_ends
from kafkalog.streaming.store.replicas.copying import Copying, Room, of_leader, own_topic_id
from kafkalog.streaming.store.stale_lines import drop_lines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition

__all__ = ["catch_up"]


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
        OSError, KafkaLogError: one of the target cannot be read or written, or is another by now.
    """
    with of_leader(source):
        finish_swap(source)
        bases, topic_id = list_base_offsets(source), read_topic_id(source)
    if _make(target, topic_id):
        drop_lines([target.parent], {key})
    own, copying = _drop_others(target, bases), Copying(source, target, log_end, room)
    equal_to, point = 0, read_offset_checkpoint(target.parent, RECOVERY_POINT).get(key, 0)
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        check_interrupt()
        trusted, sealed = trusts and following is not None and following <= point, base in own[:-1]
        is_full = room.is_used_up and not trusted
        if is_full or not copying.copy_log(base, trusted=trusted, sealed=sealed):
            _note_progress(copying, key, equal_to, point)
            return False
        copying.copy_beside(base, durable=following is not None)
        equal_to = following or log_end
    copying.copy_rest(key)
    copying.check_place(bases, topic_id)
    write_ends([WrittenEnd(target.parent, key, log_end)], durable=True)  # and the folder's name
    return True


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


def _note_progress(copying: Copying, key: TopicPartition, equal_to: int, point: int) -> None:
    """Durably say up to where nothing is to be compared again: with its indexes, that is synced."""
    copying.seen.check()
    if equal_to > point:
        write_offset_checkpoint(copying.target.parent, RECOVERY_POINT, {key: equal_to})


def _make(target: Path, topic_id: str | None) -> bool:
    """Make the folder of a replica; one of another topic's id held what was deleted since.

    Returns whether what is noted of the partition in the directory is of no use any more.
    """
    if target.is_symlink():
        raise LogDirectoryError(f"{target} is a link, and no replica is kept behind one")
    own = own_topic_id(target)
    is_other = not target.is_dir() or own != topic_id
    if is_other and target.is_dir():
        if own is not None and is_topic_id(own):
            write_topic_id(target, own)  # as below
        for base in reversed(list_base_offsets(target)):
            remove_segment(target, base)
        for name in (PARTITION_METADATA, LEADER_EPOCHS):
            (target / name).unlink(missing_ok=True)
    if not target.is_dir():
        make_directory(target)
    if topic_id is not None:
        # Readers that were sent here know by the new file that what comes is of two moments.
        write_topic_id(target, topic_id)
    return is_other
