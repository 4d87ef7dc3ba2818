"""A staged run on its way into a log: checked, numbered, and copied or adopted.

The batches get their offsets on the way. Small pieces pass through a buffer. The kernel copies
large ones, which are numbered afterwards. A file that becomes a segment is numbered where it is,
before it gets its new name. At any moment, staged bytes can be recognised: everything but offsets
and leader epochs is under the checksum that the task gave.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np
from crc32c import crc32c

from kafkalog.errors import CommitError, LogDirectoryError
from kafkalog.files.copies import copy_range, try_to_link
from kafkalog.files.open_file import fill_from
from kafkalog.files.regular import follow_folder, open_regular, write_all
from kafkalog.files.system import system
from kafkalog.streaming.records.batch_header import heads_of, stamp_heads, unstamp_heads

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kafkalog.streaming.commit.staging.staged_run import StagedRun
    from kafkalog.streaming.records.arrow_buffers import Bytes
    from kafkalog.streaming.records.batch import BatchTable

__all__ = ["StagedFiles", "StagedSource"]

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
                os.close(descriptor)

    def close(self) -> None:
        """Close them all."""
        while self._opened:
            os.close(self._opened.popitem()[1])


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
            os.close(descriptor)
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
