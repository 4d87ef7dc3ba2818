"""Validate a position: does it belong to this log's history, by the last batch below it?

A position is a number, and a log that ended lower gives its numbers again. Example: a reader has
come to offset 100; the log is cut at 60, or an older copy is put back, and grows to 130. At 100
begins another record than the one that the reader waits for, and 60 to 99 were never read.

So a position goes with the last batch below it (:class:`LastBatch`, one read of a header). When
somebody continues there, the batch is looked up again:

=====================================================  ===========================================
the log holds, as its last batch below the position    the history is
=====================================================  ===========================================
the same: offset and CRC                               the same
one at another offset that overlaps it                 another: a history has each offset once
one in the gap between it and the position             the same: a cleaner made the gap, and has
                                                       not been at this replica; if what is at its
                                                       own place says so too
one at its offset with fewer records and no later      the same: a cleaner removed records, in
time, or with a delete horizon; or the reverse         this replica or in the other
one at its offset, otherwise                           another
an earlier one, and later batches lie above            the same: a cleaner or ``salvage --drop``
                                                       removed the batch; both leave a gap
an earlier one, which is the last of the log           another: the log was cut
none at all                                            not told: retention removed all of it
=====================================================  ===========================================

Before that leader epochs are asked, as in KIP-320: whoever cuts a log raises its epoch. If a later
epoch than the batch's begins at or below the batch, the log was cut there, whatever compaction has
made of it since. Epochs of a log that was given to a cluster may have been set down: an epoch that
the log does not know, or a lower one, tells nothing.

Source: Kafka ``SubscriptionState.maybeCompleteValidation``, ``LeaderEpochFileCache``,
``MemoryRecords.filterTo`` (what a cleaner keeps of a batch); KIP-320.
"""

from __future__ import annotations

import re
from collections import deque
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import LeaderEpoch, read_leader_epochs
from kafkalog.errors import CheckpointError
from kafkalog.files.remote_path import RemotePath
from kafkalog.streaming.log.segments import retrying
from kafkalog.streaming.records.batch_layout import (
    CODEC_MASK,
    DELETE_HORIZON_MASK,
    HEADER,
    HEADER_SIZE,
    LEADER_EPOCH_POSITION,
    MAGIC,
    MAGIC_POSITION,
)
from kafkalog.streaming.records.message_sets.layout import ATTRIBUTES_POSITION

if TYPE_CHECKING:
    from kafkalog.streaming.log.partition_log import PartitionLog
    from kafkalog.streaming.log.segment import LogSegment
    from kafkalog.streaming.records.batch import BatchHeader

__all__ = ["Divergence", "LastBatch", "find_divergence", "find_last_batch"]

_NO_CRC: Final = -1
_NO_EPOCH: Final = -1
_TEXT: Final = re.compile(r"-?\d+(?::-?\d+){8}")


class LastBatch(NamedTuple):
    """The last batch of a log whose header names an offset below a position."""

    offset: int
    """The base offset in magic 2, the last offset before."""
    last_offset: int
    crc: int
    """-1 where the leader epoch alone is known."""
    leader_epoch: int
    """-1 for none, and below magic 2."""
    magic: int
    attributes: int
    size: int
    """In bytes."""
    record_count: int
    """-1 below magic 2."""
    max_timestamp: int

    @classmethod
    def from_epoch(cls, position: int, leader_epoch: int) -> LastBatch:
        """Make one from an offset commit of a Kafka client, which has only the leader epoch."""
        last = position - 1
        return cls(last, last, _NO_CRC, leader_epoch, MAGIC, 0, 0, 0, 0)

    @classmethod
    def from_text(cls, text: str) -> LastBatch | None:
        """Read back what :meth:`to_text` wrote; None from another text."""
        if not _TEXT.fullmatch(text):
            return None
        return cls(*map(int, text.split(":")))

    def to_text(self) -> str:
        """Return it in one word, for files that keep positions."""
        return ":".join(map(str, self))

    def __str__(self) -> str:
        """Show it for a message."""
        if self.crc == _NO_CRC:
            return f"leader epoch {self.leader_epoch}"
        epoch = "" if self.leader_epoch == _NO_EPOCH else f", leader epoch {self.leader_epoch}"
        return f"the batch at offset {self.offset} (CRC {self.crc:08x}{epoch})"


class Divergence(NamedTuple):
    """A position in a log that has another history now: ``known`` is gone, ``found`` is there."""

    position: int
    known: LastBatch
    found: LastBatch | None
    cut_at: int | None
    """The offset at which a later leader epoch begins: from there on nothing is as it was.

    None where the epochs do not tell.
    """

    def __str__(self) -> str:
        """Show it for a message."""
        found = "nothing below it is left" if self.found is None else f"now it is {self.found}"
        cut = "" if self.cut_at is None else f"; cut at offset {self.cut_at}"
        return f"{self.position}, below which {self.known} was the last, and {found}{cut}"


def find_last_batch(log: PartitionLog, position: int) -> LastBatch | None:
    """Return the last batch below a position; None if the log has none, or none that is whole.

    None too for a position above the end of the log: what comes below it is not there yet.

    Raises:
        UnknownTopicOrPartitionError: the folder is gone.
    """
    found, is_last = retrying(lambda: _find(log, position), log.refresh) or (None, False)
    is_above = found is not None and is_last and found.last_offset < position - 1
    return None if is_above else found


def find_divergence(log: PartitionLog, position: int, known: LastBatch) -> Divergence | None:
    """Tell whether a log has another history than the one in which a position was reached.

    This is the one place that decides it, for all readers.

    Args:
        log: as it is now.
        position: the next offset to read.
        known: the last batch below the position, as it was when the position was reached.

    Returns:
        None for the same history, or where nothing tells.

    Raises:
        UnknownTopicOrPartitionError: the folder is gone.
    """
    entry = retrying(lambda: _find(log, position), log.refresh)
    found, is_last = entry or (None, False)
    at_its_place = found
    if found is not None and found.offset > known.last_offset:
        entry = retrying(lambda: _find(log, known.last_offset + 1), log.refresh)
        at_its_place, is_last = (entry or (None, False))[0], False
    cut_at = _cut_at(log, known)
    is_same = at_its_place is None or _is_same(known, at_its_place, is_last=is_last)
    if cut_at is None and is_same:
        return None
    return Divergence(position, known, found, cut_at)


def _is_same(known: LastBatch, found: LastBatch, *, is_last: bool) -> bool:
    """Decide by the table above."""
    if known.crc == _NO_CRC:
        return True
    if found.offset > known.offset:  # the header of a wrapper that was compacted goes down
        return _is_wrapper(found)
    if found.offset < known.offset:
        return found.last_offset < known.offset and not is_last
    return found.crc == known.crc or _is_compacted(known, found)


def _is_compacted(known: LastBatch, found: LastBatch) -> bool:
    """Whether a cleaner may have made the one batch of the other; both are at the same offset."""
    if found.magic != known.magic:
        return found.magic < MAGIC  # brokers before 0.11 converted messages as they cleaned
    if found.magic < MAGIC:
        less, more = sorted((known, found), key=lambda each: each.size)
        return _is_wrapper(known) and less.size < more.size
    less, more = sorted((known, found), key=lambda each: each.record_count)
    has_horizon = bool((found.attributes ^ known.attributes) & DELETE_HORIZON_MASK)
    return (
        found.last_offset == known.last_offset
        and less.record_count < more.record_count + has_horizon
        and less.max_timestamp <= more.max_timestamp
    )


def _is_wrapper(batch: LastBatch) -> bool:
    return batch.magic < MAGIC and bool(batch.attributes & CODEC_MASK)


def _cut_at(log: PartitionLog, known: LastBatch) -> int | None:
    """Return where a later epoch than a batch's begins, if that is at or below the batch."""
    folder = log.directory.local() if isinstance(log.directory, RemotePath) else log.directory
    if known.leader_epoch == _NO_EPOCH or folder is None:
        return None
    later: list[LeaderEpoch] = []
    with suppress(CheckpointError):  # verify names it; the batches tell without it
        epochs = read_leader_epochs(folder)
        later = [each for each in epochs if each.epoch > known.leader_epoch]
    return later[0].start_offset if later and later[0].start_offset <= known.offset else None


def _find(log: PartitionLog, position: int) -> tuple[LastBatch, bool] | None:
    """Find the last batch below a position, and whether the log ends with it."""
    segments = log.segments
    slot = sum(each.base_offset < position for each in segments)
    has_more = slot < len(segments)
    for segment in reversed(segments[:slot]):
        with segment:
            header, follows = _last_header(segment, position)
            if header is not None:
                return _facts(segment, header), not (follows or has_more)
        has_more = True
    return None


def _last_header(segment: LogSegment, position: int) -> tuple[BatchHeader | None, bool]:
    """Return the last header below a position, and whether another one follows it."""
    start = segment.floor_position(position - 1)
    headers = takewhile(lambda each: each.offset < position, segment.headers(start))
    below = next(iter(deque(headers, maxlen=1)), None)
    if below is None:
        return None, False
    # Bytes that are no batch count as one: they are damaged, and readers are told by others.
    return below, any(segment.opened.peek(below.position + below.size, HEADER_SIZE))


def _facts(segment: LogSegment, header: BatchHeader) -> LastBatch:
    data = segment.opened.peek(header.position, HEADER_SIZE)
    magic = data[MAGIC_POSITION]
    epoch, crc, attributes = _NO_EPOCH, 0, 0
    if magic == MAGIC:
        _, _, epoch, _, crc, attributes, *_ = HEADER.unpack_from(data)
    else:  # of a message the CRC lies where a batch has its epoch
        crc = int.from_bytes(data[LEADER_EPOCH_POSITION:MAGIC_POSITION], "big")
        attributes = data[ATTRIBUTES_POSITION]
    return LastBatch(
        *(header.offset, header.last_offset, crc, epoch, magic, attributes, header.size),
        *(header.record_count, header.max_timestamp),
    )
