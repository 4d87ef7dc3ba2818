"""Verify that bytes after the former end of a log are ours, before a rollback."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from crc32c import crc32c

from kafkalog.errors import KafkaLogError, LogDirectoryError
from kafkalog.files.open_file import next_data_at, read_at
from kafkalog.files.regular import close_quietly, open_regular
from kafkalog.model import MAX_OFFSET
from kafkalog.streaming.log.files import LOG, file_name
from kafkalog.streaming.log.segments import list_base_offsets
from kafkalog.streaming.log.valid_batches import ends_in_zeros
from kafkalog.streaming.records.batch import (
    HEAD_BYTES,
    invalid_checksums,
    scan_batches,
    unstamp_heads,
)
from kafkalog.streaming.records.batch_layout import (
    HEADER_SIZE,
    MAGIC,
    MAGIC_POSITION,
    OVERHEAD,
    PREFIX_SIZE,
    PREFIX_WITH_DELTA,
    SIZE_POSITION,
)
from kafkalog.streaming.store.recovery.unsynced import advice

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from kafkalog.checkpoints.intent import IntendedPartition, IntendedPiece, IntendedSegment
    from kafkalog.streaming.log.segment import LogSegment
    from kafkalog.streaming.log.valid_batches import ValidEnd
    from kafkalog.streaming.records.arrow_buffers import Bytes
    from kafkalog.streaming.records.batch import BatchTable
    from kafkalog.streaming.store.log_set import LogSet


__all__ = ["check_ours", "find_valid_batch", "is_valid_batch", "reach_of"]


# ----------------------------------------------------------------------------------------------
# Prove that bytes after the former end of a log are ours, before they are rolled back.
#
# The staged file proves it: it holds a run of the size and checksum that the intent names, and
# the log holds the same batches in the same order. Offsets and leader epochs are not compared.
# They are written last, so a commit that was cut off may have written any part of them: into the
# log, or into the staged file itself if that becomes a segment.


_SEARCHED_BYTES: Final = 1 << 20
_CHUNK_BYTES: Final = 1 << 20
_LENGTH: Final = slice(SIZE_POSITION, OVERHEAD)


class _Planned(NamedTuple):
    """A batch that the commit would have written; ``data`` is None if its staged file is gone."""

    size: int
    data: Bytes | None


class _Expected:
    """Batches in order; the bytes of a lost staged file are taken in any sizes."""

    def __init__(self, batches: Iterator[_Planned]) -> None:
        self._batches = batches
        self._unknown = 0

    def take(self, room: int) -> _Planned:
        """Return the next batch, or as many unknown bytes as there is room for."""
        if not self._unknown:
            batch = next(self._batches)
            if batch.data is not None:
                return batch
            self._unknown = batch.size
        size = min(self._unknown, room)
        self._unknown -= size
        return _Planned(size, None)


def check_ours(
    log_set: LogSet,
    intended: IntendedPartition,
    folder: Path,
    *,
    staged_may_be_lost: bool = False,
) -> None:
    """Compare what segments hold beyond their former sizes with what a commit meant to put there.

    With ``staged_may_be_lost``, batches whose staged file is gone count as the commit's.

    Raises:
        LogDirectoryError: there is a valid batch that the commit would not have written, or one
            that cannot be told because the staged file is gone; or a log is shorter than before.
    """
    _check_no_other_segments(intended, folder)
    # Closed here: what an error keeps alive would close its file at any later time.
    with closing(_planned_batches(log_set, intended)) as batches:
        _check_segments(
            log_set, intended, folder, _Expected(batches), proves=not staged_may_be_lost
        )


def _check_segments(
    log_set: LogSet,
    intended: IntendedPartition,
    folder: Path,
    planned: _Expected,
    *,
    proves: bool,
) -> None:
    for segment in intended.segments:
        path = folder / file_name(segment.base_offset, LOG)
        try:
            descriptor = open_regular(path)
        except FileNotFoundError:
            if not segment.created:
                raise LogDirectoryError(f"{path} is gone: restore it") from None
            _pass_over(planned, segment)
            continue
        try:
            size = os.fstat(descriptor).st_size
            if size < segment.size_before:
                raise LogDirectoryError(
                    f"{path} has {size} bytes and had {segment.size_before} before a commit that "
                    "was cut off began: committed records are gone; restore it"
                    + advice(log_set.state.topics.get(intended.key), intended.partition)
                )
            _check_segment(path, descriptor, segment, planned, proves=proves)
        finally:
            close_quietly(descriptor)


def _check_no_other_segments(intended: IntendedPartition, folder: Path) -> None:
    ours = [segment.base_offset for segment in intended.segments]
    others = [
        base
        for base in list_base_offsets(folder)
        if base > ours[0] and base not in ours and not _was_started(intended, folder, base)
    ]
    if others:
        raise LogDirectoryError(
            f"{folder / file_name(others[0], LOG)} was not made by the commit that was cut off "
            "before it: another writer or a broker has appended. Nothing was changed; move that "
            "segment away, or give the directory up to its writer"
        )


def _was_started(intended: IntendedPartition, folder: Path, base_offset: int) -> bool:
    """Whether a segment is the empty one in which a recovery lets the log continue."""
    return (
        base_offset == intended.start_offset
        and (folder / file_name(base_offset, LOG)).lstat().st_size == 0
    )


def _check_segment(
    path: Path, descriptor: int, segment: IntendedSegment, planned: _Expected, *, proves: bool
) -> None:
    position = segment.size_before
    while position < segment.size_after:
        batch = planned.take(segment.size_after - position)
        if proves or batch.data is not None:
            _check_batch(path, descriptor, position, batch)
        position += batch.size
    _check_batch(path, descriptor, segment.size_after, _Planned(0, None))


def _check_batch(path: Path, descriptor: int, position: int, planned: _Planned) -> None:
    found = read_at(descriptor, position, planned.size or HEADER_SIZE)
    if planned.data is not None and _are_same(found, planned.data):
        return
    if is_valid_batch(descriptor, position):
        raise LogDirectoryError(
            f"{path}: at byte {position} there is a valid batch that the commit that was cut off "
            "did not write, or whose staged file is gone. Nothing was changed. If another writer "
            "or a broker appended it, its records would be lost: copy the directory, and cut the "
            f"file at byte {position} by hand if the batch is not wanted. If it was written with "
            "flush=os, and the machine lost power, run `kafkalog recover --accept-os-loss`"
        )


def _are_same(found: Bytes, planned: Bytes) -> bool:
    """Compare all but what a commit writes last of a batch: its offset and leader epoch."""
    return (
        len(found) == len(planned)
        and np.array_equal(found[HEAD_BYTES:], planned[HEAD_BYTES:])
        and np.array_equal(found[_LENGTH], planned[_LENGTH])
    )


def is_valid_batch(descriptor: int, position: int) -> bool:
    """Whether a whole batch with a right checksum starts at ``position``."""
    left = max(0, os.fstat(descriptor).st_size - position)
    length = min(left, _SEARCHED_BYTES)
    while True:
        data = read_at(descriptor, position, length)
        scan = scan_batches(data, file_position=position)
        if len(scan.table):
            return not bool(invalid_checksums(data, scan.table[:1], file_position=position)[0])
        if not length < scan.needed <= left:
            return False
        length = scan.needed


def _pass_over(planned: _Expected, segment: IntendedSegment) -> None:
    left = segment.size_after - segment.size_before
    while left > 0:
        left -= planned.take(left).size


def _planned_batches(log_set: LogSet, intended: IntendedPartition) -> Generator[_Planned]:
    """Yield the batches that the commit would have appended, in order."""
    for piece in intended.pieces:
        folder = log_set.members.get(piece.file.member_id)
        if folder is None:  # of a node that is away
            yield _Planned(piece.size, None)
            continue
        try:
            descriptor = open_regular(folder / piece.file.name)
        except (FileNotFoundError, KafkaLogError):
            yield _Planned(piece.size, None)
            continue
        try:
            if _is_as_staged(descriptor, piece):
                yield from _batches(descriptor, piece)
            else:
                yield _Planned(piece.size, None)
        finally:
            close_quietly(descriptor)


def _is_as_staged(descriptor: int, piece: IntendedPiece) -> bool:
    """Whether a staged run is what the task wrote, wherever the commit that adopts it stopped."""
    crc, size = 0, 0
    for data, table in _chunks(descriptor, piece):
        batches = table.position[table.magic == 2]  # of older messages no file becomes a segment
        unstamp_heads(data, batches, keep_offsets=piece.keeps_offsets)
        crc = crc32c(data.data, crc)
        size += len(data)
    return size == piece.size and crc == piece.crc32c


def _batches(descriptor: int, piece: IntendedPiece) -> Iterator[_Planned]:
    for data, table in _chunks(descriptor, piece):
        for start, size in zip(table.position.tolist(), table.size.tolist(), strict=True):
            yield _Planned(size, data[start : start + size])


def _chunks(descriptor: int, piece: IntendedPiece) -> Iterator[tuple[Bytes, BatchTable]]:
    """Read a staged run in pieces of whole batches, whose positions count in the piece."""
    position, end = piece.position, piece.position + piece.size
    length = _CHUNK_BYTES
    while position < end:
        data = read_at(descriptor, position, min(length, end - position))
        scan = scan_batches(data)
        if scan.consumed:
            yield data[: scan.consumed], scan.table
            position += scan.consumed
            length = _CHUNK_BYTES
        elif scan.needed > len(data) and len(data) == length:
            length = scan.needed
        else:
            return


# ----------------------------------------------------------------------------------------------
# Find valid batches after bytes that are none, and how far damaged ones reached.


_PIECE_BYTES: Final = 1 << 20
_SMALLEST_SIZE: Final = 14
_MAX_RELATIVE_OFFSET: Final = 2**31 - 1


def find_valid_batch(path: Path, position: int, next_offset: int) -> int | None:
    """Search a segment from a position on for a valid batch that starts at an offset or above it.

    Returns:
        its position; None if there is none.
    """
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        start = _next_piece(descriptor, position, position)
        while start is not None and start < size:
            data = read_at(descriptor, start, _PIECE_BYTES + PREFIX_SIZE)
            for candidate in _candidates(data, next_offset):
                if is_valid_batch(descriptor, start + candidate):
                    return start + candidate
            start = _next_piece(descriptor, start + _PIECE_BYTES, position)
    finally:
        close_quietly(descriptor)
    return None


def _next_piece(descriptor: int, start: int, least: int) -> int | None:
    """Pass over a hole: of what it reads as, zeros, a batch begins with its offset at most."""
    found = next_data_at(descriptor, start)
    if found is None or found == start:
        return found
    return max(start, found - SIZE_POSITION, least)


def reach_of(segment: LogSegment, end: ValidEnd) -> int:
    """Return where the log ended before the damage, as the headers of damaged batches say.

    It is the largest possible offset if there are bytes that say nothing. Zeros, and bytes that are
    too few for a header, are no batch.
    """
    position, reach = end.position, end.next_offset
    while segment.size - position >= PREFIX_WITH_DELTA.size and not ends_in_zeros(
        segment, position
    ):
        data = segment.opened.peek(position, PREFIX_WITH_DELTA.size)
        if not any(True for _ in _candidates(np.frombuffer(data[:PREFIX_SIZE], np.uint8), reach)):
            return MAX_OFFSET
        offset, size, magic, delta = PREFIX_WITH_DELTA.unpack(data)
        last = offset + delta if magic == MAGIC else offset
        if last < reach:
            return MAX_OFFSET
        position, reach = position + OVERHEAD + size, last + 1
    return reach


def _candidates(data: Bytes, next_offset: int) -> Iterator[int]:
    """Yield the places where magic, size and offset are those of a batch that could follow."""
    magics = data[MAGIC_POSITION:]
    sizes = np.zeros(len(magics), np.int64)
    for position in range(SIZE_POSITION, OVERHEAD):
        sizes = sizes << 8 | data[position : position + len(magics)]
    places = np.flatnonzero((magics <= MAGIC) & (sizes >= _SMALLEST_SIZE) & (sizes < 1 << 31))
    words = np.ascontiguousarray(data[places[:, None] + np.arange(8)]).view(">i8")[:, 0]
    offsets = words.astype(np.int64)
    fits = (offsets >= next_offset) & (offsets - next_offset <= _MAX_RELATIVE_OFFSET)
    yield from places[fits].tolist()
