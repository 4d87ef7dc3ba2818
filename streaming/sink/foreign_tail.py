"""The end of a log that others have appended to: a torn tail, an open transaction.

A broker that was killed leaves its last batch half written. A recovering broker cuts the log there,
and so does a writer of ours before it appends; but only above what is committed, and only where no
valid batch lies behind, which would mean damage in the middle and not a tail.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.errors import CommitError, CorruptRecordError, LogDirectoryError
from kafkalog.streaming.log.appender import PartitionAppender
from kafkalog.streaming.log.log_end import find_valid_end
from kafkalog.streaming.log.page_reader import read_at
from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.recovery import recover_segment
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.segment_files import list_base_offsets
from kafkalog.streaming.log.transactions import last_stable_offset
from kafkalog.streaming.sink.proof import is_valid_batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.config import LogConfig
    from kafkalog.streaming.records.arrow_buffers import Bytes

__all__ = ["open_appender"]

_LOG: Final = logging.getLogger("kafkalog.sink")

_PIECE_BYTES: Final = 1 << 20
_PREFIX_BYTES: Final = 17
_MAGIC_POSITION: Final = 16
_SIZE_POSITION: Final = 8
_SMALLEST_SIZE: Final = 14
_LAST_MAGIC: Final = 2
_MAX_RELATIVE_OFFSET: Final = 2**31 - 1


def open_appender(
    folder: Path,
    key: TopicPartition,
    config: LogConfig,
    *,
    now_ms: int,
    topic_id: str | None,
    committed_end: int | None,
    first_offset: int = 0,
) -> PartitionAppender:
    """Open the end of a partition's log, after cutting a torn tail off it.

    ``committed_end`` is what the commit state knows; None if it does not know the partition.
    ``first_offset`` is where a log begins that is yet to be made.

    Raises:
        CommitError: the log ends below what is committed, or with an open transaction.
        LogDirectoryError: damage in the middle of the log.
    """

    def opened() -> PartitionAppender:
        return PartitionAppender(
            folder, key, config, now_ms=now_ms, topic_id=topic_id, first_offset=first_offset
        )

    try:
        appender = opened()
    except CorruptRecordError:
        _cut_torn_tail(folder, committed_end, config)
        appender = opened()
    end = appender.log_end_offset
    if committed_end is not None and end < committed_end:
        raise CommitError(
            f"{folder}: the log of {key} ends at offset {end}, yet everything below "
            f"{committed_end} is committed. Restore it: appended records would get offsets that "
            "readers have seen already. Or, if what it holds is all that there is to be, move the "
            "kafkalog.* files of all log directories away, and run `kafkalog takeover`: it forgets "
            "what was committed, and by whom"
        )
    if folder.is_dir() and end != committed_end:
        _check_no_open_transaction(folder, key, end)
    return appender


def _check_no_open_transaction(folder: Path, key: TopicPartition, end: int) -> None:
    with PartitionLog(folder, key) as log:
        stable = last_stable_offset(log, end)
    if stable < end:
        raise CommitError(
            f"{folder}: a transaction that began at offset {stable} of {key} is still open at the "
            f"end of the log, offset {end}: what is appended behind it, readers of committed "
            "records would never come to. Let the broker end it first (it aborts it when "
            "transaction.timeout.ms is over)"
        )


def _cut_torn_tail(folder: Path, committed_end: int | None, config: LogConfig) -> None:
    base = list_base_offsets(folder)[-1]
    with LogSegment(folder, base) as segment:
        end = find_valid_end(segment, 0)
        if end.problem is None:
            return
        if committed_end is not None and end.next_offset < committed_end:
            raise CommitError(
                f"{segment.path}: committed records are damaged, the log is whole up to offset "
                f"{end.next_offset} only and committed up to {committed_end}: {end.problem}"
            ) from end.problem
        behind = _valid_batch_behind(segment.path, end.position, end.next_offset)
        if behind is not None:
            raise LogDirectoryError(
                f"{segment.path}: {end.problem}, but at byte {behind} there is a valid batch "
                "again: the log is damaged in its middle. Restore it; nothing was cut off"
            )
        _LOG.warning(
            "%s is cut off at byte %d, offset %d; %d bytes of a torn batch go: %s",
            segment.path,
            end.position,
            end.next_offset,
            segment.size - end.position,
            end.problem,
        )
    recover_segment(folder, base, index_interval_bytes=config.index_interval_bytes)


def _valid_batch_behind(path: Path, position: int, next_offset: int) -> int | None:
    """Search a tail for a valid batch at any byte; give its position."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        for start in range(position, size, _PIECE_BYTES):
            data = read_at(descriptor, start, _PIECE_BYTES + _PREFIX_BYTES)
            for candidate in _candidates(data, next_offset):
                if is_valid_batch(descriptor, start + candidate):
                    return start + candidate
    finally:
        os.close(descriptor)
    return None


def _candidates(data: Bytes, next_offset: int) -> Iterator[int]:
    """Give the places where magic, size and offset are those of a batch that could follow."""
    magics = data[_MAGIC_POSITION:]
    sizes = np.zeros(len(magics), np.int64)
    for position in range(_SIZE_POSITION, _SIZE_POSITION + 4):
        sizes = sizes << 8 | data[position : position + len(magics)]
    places = np.flatnonzero((magics <= _LAST_MAGIC) & (sizes >= _SMALLEST_SIZE) & (sizes < 1 << 31))
    words = np.ascontiguousarray(data[places[:, None] + np.arange(8)]).view(">i8")[:, 0]
    offsets = words.astype(np.int64)
    fits = (offsets >= next_offset) & (offsets - next_offset <= _MAX_RELATIVE_OFFSET)
    yield from places[fits].tolist()
