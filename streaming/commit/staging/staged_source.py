"""Give staged batches their offsets; copy their file into the log, or adopt it as a segment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, overload

import numpy as np
from crc32c import crc32c

from kafkalog.errors import CommitError, CorruptRecordError, LogDirectoryError, RecordTooLargeError
from kafkalog.files.open_file import fill_from, read_at
from kafkalog.files.regular import (
    close_quietly,
    copy_range,
    follow_folder,
    open_regular,
    try_to_link,
    write_all,
)
from kafkalog.files.system import system
from kafkalog.model import NO_EPOCH, NO_TIMESTAMP
from kafkalog.streaming.commit.staging.formats import BatchFormat
from kafkalog.streaming.commit.staging.staged_files import Home
from kafkalog.streaming.records.batch import (
    BatchTable,
    heads_of,
    scan_batches,
    stamp_heads,
    unstamp_heads,
)
from kafkalog.streaming.records.builder import EncodedBatch, assign_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.commit.staging.staged_files import Staging
    from kafkalog.streaming.commit.staging.staged_run import StagedRun
    from kafkalog.streaming.options.topic_settings import LogConfig
    from kafkalog.streaming.records.arrow_buffers import Bytes


__all__ = [
    "LateEncoding",
    "LogTables",
    "MessageSource",
    "StagedFiles",
    "StagedSource",
    "check_as_staged",
    "must_wait",
]


# ----------------------------------------------------------------------------------------------
# A staged run on its way into a log: checked, numbered, and copied or adopted.
#
# The batches get their offsets on the way. Small pieces pass through a buffer. The kernel copies
# large ones, which are numbered afterwards. A file that becomes a segment is numbered where it
# is, before it gets its new name. At any moment, staged bytes can be recognised: everything but
# offsets and leader epochs is under the checksum that the task gave.


_BUFFER_BYTES: Final = 1 << 20
"""A run of up to this size passes through a buffer; the kernel copies larger ones."""

_KEPT_OPEN: Final = 256
"""How many staged files stay open: there is one for each task at least."""


class StagedFiles:
    """The staged files of one commit, each opened once; used by several threads.

    ``directories`` are those that runs count in.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._opened: dict[Path, int] = {}
        self._guard = system.lock()

    def path_of(self, run: StagedRun) -> Path:
        """Return the file that a run is in."""
        return self._directories[run.directory] / run.file

    @contextmanager
    def opened(self, path: Path) -> Iterator[int]:
        """Lend the descriptor of a file, open for reading.

        Raises:
            CommitError: it is gone.
        """
        with self._guard:
            descriptor = self._opened.get(path)
            kept = descriptor is not None or len(self._opened) < _KEPT_OPEN
            if descriptor is None:
                descriptor = _open(path)
                if kept:
                    self._opened[path] = descriptor
        try:
            yield descriptor
        finally:
            if not kept:
                close_quietly(descriptor)

    def close(self) -> None:
        """Close them all."""
        while self._opened:
            close_quietly(self._opened.popitem()[1])


def _open(path: Path) -> int:
    try:
        return open_regular(path)
    except FileNotFoundError:
        raise CommitError(
            f"the staged file {path} is gone: it was swept away because its batch was taken for "
            "finished, or the machine that wrote it does not share this directory"
        ) from None


class StagedSource:
    """A run in its staged file; ``table`` has its batches with their offsets.

    An ``appender.Source``, for one thread. The checksum of the whole run is compared before the
    first byte of it is written anywhere.
    """

    def __init__(self, files: StagedFiles, run: StagedRun, table: BatchTable) -> None:
        self._files = files
        self._path = files.path_of(run)
        self._run = run
        self._end = run.position + run.size
        self._positions = table.position
        self._ends = table.end_position
        self._heads = heads_of(table)
        self._checked = False
        self._small: Bytes | None = None

    def copy(self, position: int, size: int, target: int, target_position: int) -> None:
        """Copy whole batches, numbered, into the open file ``target``.

        Raises:
            CommitError: the file is gone, or holds something else than what the task staged.
        """
        with self._files.opened(self._path) as source:
            self._check(source)
            if self._small is not None:
                start = position - self._run.position
                write_all(target, self._small[start : start + size].data, target_position)
            else:
                copied = copy_range(source, position, size, target, target_position)
                if copied < size:
                    raise self._too_short(position + copied)
                self._stamp(target, position, position + size, target_position - position)
        if position + size == self._end:
            self._small = None

    def link_as(self, path: Path) -> bool:
        """Number the batches where they are, and give the file the name ``path`` as well.

        The staged name is removed with all staged files of the batch. Until the batch is published,
        it proves what the segment is. The file must have no other name and hold nothing else, so
        that nobody can write into the segment by another name.

        Raises:
            CommitError: as :meth:`copy`.
            FileExistsError: ``path`` is there already.
        """
        with self._files.opened(self._path) as source:
            self._check(source)
        try:
            descriptor = open_regular(self._path, os.O_RDWR)
        except LogDirectoryError:
            return False  # staged by another user: it can still be copied
        try:
            found = os.fstat(descriptor)
            if found.st_nlink != 1 or found.st_size != self._run.size:
                return False
            self._stamp(descriptor, 0, self._run.size, 0)
            follow_folder(descriptor, path.parent)
        finally:
            close_quietly(descriptor)
        return try_to_link(self._path, path)

    def _check(self, source: int) -> None:
        """Compare the checksum of the run as it was staged with the one that the task gave."""
        if self._checked:
            return
        crc, data = 0, np.empty(0, np.uint8)
        row, position = 0, self._run.position
        while position < self._end:
            limit = min(self._end, position + _BUFFER_BYTES)
            following = max(int(np.searchsorted(self._ends, limit, side="right")), row + 1)
            size = int(self._ends[following - 1]) - position
            data = data[:size] if size <= len(data) else np.empty(size, np.uint8)
            self._fill(data, source, position)
            places = self._positions[row:following] - position
            unstamp_heads(data, places, keep_offsets=self._run.first_offset >= 0)
            crc = crc32c(data.data, crc)
            row, position = following, position + size
        if crc != self._run.crc32c:
            raise CommitError(
                f"{self._path}: bytes {self._run.position} to {self._end} have the checksum "
                f"{crc:08x}, the task that staged them said {self._run.crc32c:08x}"
            )
        self._checked = True
        if len(data) == self._run.size:
            stamp_heads(data, self._positions - self._run.position, self._heads)
            self._small = data

    def _fill(self, data: Bytes, source: int, position: int) -> None:
        filled = fill_from(source, position, data)
        if filled < len(data):
            raise self._too_short(position + filled)

    def _stamp(self, target: int, position: int, end: int, shift: int) -> None:
        """Number the batches ``[position, end)`` in a file where they lie ``shift`` bytes on."""
        first, last = np.searchsorted(self._positions, (position, end)).tolist()
        rows = slice(first, last)
        for place, head in zip(self._positions[rows].tolist(), self._heads[rows], strict=True):
            write_all(target, head.data, place + shift)

    def _too_short(self, position: int) -> CommitError:
        return CommitError(f"the staged file {self._path} ends at byte {position}, within a run")


# ----------------------------------------------------------------------------------------------
# Staged runs of message sets (formats v0 and v1): compressed late, put into a log.


# ----------------------------------------------------------------------------------------------
# Staged runs of message sets (formats v0 and v1) on their way into a log.
#
# To a log, each plain message is a batch with an offset of its own. A task reports one row for a
# set, which is not enough to plan with: the messages are looked up in the staged file. And no
# such file becomes a segment as it is: the bytes pass through a buffer, where they are numbered.
# Runs whose offsets are final are only copied.


_PIECE_BYTES: Final = 1 << 20


class LogTables(Sequence[BatchTable]):
    """The tables of runs as a log sees them: where sets are plain, with a row for each message.

    Those are read from the staged files each time they are asked for, and not kept.
    """

    def __init__(
        self, files: StagedFiles, runs: Sequence[StagedRun], tables: Sequence[BatchTable]
    ) -> None:
        self._files = files
        self._runs = runs
        self._tables = tables

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._runs)

    @overload
    def __getitem__(self, index: int) -> BatchTable: ...

    @overload
    def __getitem__(self, index: slice) -> list[BatchTable]: ...

    def __getitem__(self, index: int | slice) -> BatchTable | list[BatchTable]:
        """Return the table of one run, or of some.

        Raises:
            CommitError: a staged file is gone, or holds something else than what was staged.
        """
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        run, table = self._runs[index], self._tables[index]
        return self._messages(run, int(table.base_offset[0])) if run.is_plain else table

    def _messages(self, run: StagedRun, first_offset: int) -> BatchTable:
        path = self._files.path_of(run)
        with self._files.opened(path) as source:
            data = read_at(source, run.position, run.size)
        try:
            if run.first_offset < 0:
                assign_offsets(data, first_offset, NO_EPOCH)
        except CorruptRecordError as error:
            raise _changed(path, run) from error
        scan = scan_batches(data, file_position=run.position)
        if scan.consumed != run.size:
            raise _changed(path, run)
        return scan.table


class MessageSource:
    """An ``appender.Source``, for one thread; its bytes are copied once, from front to back.

    The checksum of the whole run is compared before the first byte of it is written anywhere.
    """

    def __init__(self, files: StagedFiles, run: StagedRun, table: BatchTable) -> None:
        self._files = files
        self._path = files.path_of(run)
        self._run = run
        self._next_offset = int(table.base_offset[0])
        self._checked = False

    def copy(self, position: int, size: int, target: int, target_position: int) -> None:
        """Copy whole messages, numbered, into the open file ``target``.

        Raises:
            CommitError: the file is gone, or holds something else than what was staged.
        """
        with self._files.opened(self._path) as source:
            if not self._checked:
                check_as_staged(source, self._path, self._run)
                self._checked = True
            for data in self._pieces(source, position, position + size):
                if self._run.first_offset < 0:
                    self._next_offset = assign_offsets(data, self._next_offset, NO_EPOCH)
                write_all(target, data.data, target_position)
                target_position += len(data)

    def link_as(self, path: Path) -> bool:
        """Return False: see the module."""
        del path
        return False

    def _pieces(self, source: int, position: int, end: int) -> Iterator[Bytes]:
        """Read whole messages, some at a time."""
        length = _PIECE_BYTES
        while position < end:
            data = read_at(source, position, min(length, end - position))
            scan = scan_batches(data)
            if scan.consumed:
                yield data[: scan.consumed]
                position += scan.consumed
                length = _PIECE_BYTES
            elif scan.needed > length:
                length = scan.needed
            else:
                raise _changed(self._path, self._run)


def check_as_staged(source: int, path: Path, run: StagedRun) -> None:
    """Compare the checksum of a run in the open file ``source`` with the one that its task gave.

    Raises:
        CommitError: they differ.
    """
    crc, position, end = 0, run.position, run.position + run.size
    while position < end:
        data = read_at(source, position, min(_PIECE_BYTES, end - position))
        if not len(data):
            break
        crc = crc32c(data.data, crc)
        position += len(data)
    if crc != run.crc32c:
        raise _changed(path, run)


def _changed(path: Path, run: StagedRun) -> CommitError:
    return CommitError(
        f"the staged file {path}: bytes {run.position} to {run.position + run.size} are not what "
        f"was staged there, with the checksum {run.crc32c:08x}"
    )


# ----------------------------------------------------------------------------------------------
# Compress at commit what could not be compressed before: message sets of format v0.
#
# Offsets inside a wrapper of magic 0 are absolute and lie under its checksum. So it can only be
# made once they are known. Tasks stage such sets plain. The commit compresses them into staged
# files of its own, before it writes its intent, which names these files. From then on they are
# runs whose offsets are final. All bytes are read and written once more, set by set, on the
# driver.


def must_wait(runs: Sequence[StagedRun], config: LogConfig) -> bool:
    """Whether runs hold messages that are still to be compressed."""
    return BatchFormat(config).compresses_late and any(
        run.magic == 0 and run.first_offset < 0 for run in runs
    )


class LateEncoding:
    """The sets that one commit compresses; belongs to one thread.

    :meth:`finish` or :meth:`discard` ends it.
    """

    def __init__(self, files: StagedFiles, staging: Staging) -> None:
        """Take what the tasks have staged, and where the new files go."""
        self._files = files
        self._staging = staging

    def add(
        self,
        key: TopicPartition,
        runs: Sequence[StagedRun],
        config: LogConfig,
        first_offset: int,
    ) -> None:
        """Compress the runs of one partition, whose first record gets ``first_offset``.

        Raises:
            CommitError: a staged file is gone, changed, or cannot be written.
            RecordTooLargeError: a record that fits ``max.message.bytes`` in no way.
        """
        batch_format = BatchFormat(config)
        home = Home(None, config.segment_bytes)
        offset = first_offset
        for run in runs:
            for batch in self._batches(run):
                try:
                    encoded = batch_format.with_offsets(batch, offset)
                except RecordTooLargeError as error:
                    raise RecordTooLargeError(
                        f"{key}, offset {offset}: {error}, which {batch_format.limit} allows"
                    ) from error
                self._staging.add(key, [encoded], home)
                offset += batch.last_offset_delta + 1

    def finish(self) -> dict[TopicPartition, list[StagedRun]]:
        """Close the new staged files and return the runs in them, per partition in their order.

        Raises:
            CommitError: they cannot be made durable.
        """
        found: dict[TopicPartition, list[StagedRun]] = {}
        for run in self._staging.finish():
            found.setdefault(run.topic_partition, []).append(run)
        return found

    def discard(self) -> None:
        """Remove the new staged files."""
        self._staging.discard()

    def _batches(self, run: StagedRun) -> Iterator[EncodedBatch]:
        """Read the sets of a run, once it is known to be as it was staged."""
        path = self._files.path_of(run)
        table = run.table(0, 0)
        rows = zip(table.position.tolist(), table.size.tolist(), table.count.tolist(), strict=True)
        with self._files.opened(path) as source:
            check_as_staged(source, path, run)
            for position, size, count in rows:
                data = read_at(source, position, size).tobytes()
                yield EncodedBatch(data, count, count - 1, NO_TIMESTAMP, NO_TIMESTAMP)
