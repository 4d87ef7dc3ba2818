"""Staged runs of message sets (formats v0 and v1) on their way into a log.

To a log, each plain message is a batch with an offset of its own. A task reports one row for a set,
which is not enough to plan with: the messages are looked up in the staged file. And no such file
becomes a segment as it is: the bytes pass through a buffer, where they are numbered. Runs whose
offsets are final are only copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, overload

from crc32c import crc32c

from kafkalog.errors import CommitError, CorruptRecordError
from kafkalog.files.local_file import read_at
from kafkalog.files.regular import write_all
from kafkalog.model import NO_EPOCH
from kafkalog.streaming.records.batch import BatchTable, scan_batches
from kafkalog.streaming.records.offsets import assign_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kafkalog.streaming.commit.staging.staged_run import StagedRun
    from kafkalog.streaming.commit.staging.staged_source import StagedFiles
    from kafkalog.streaming.records.arrow_buffers import Bytes

__all__ = ["LogTables", "MessageSource", "check_as_staged"]

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
