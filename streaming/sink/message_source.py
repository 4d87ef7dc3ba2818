"""A staged run of message sets (formats v0 and v1) on its way into a log.

Each message has an offset of its own, so the bytes pass through a buffer, where they are numbered:
no file of them becomes a segment as it is. Runs whose offsets are final are only copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from crc32c import crc32c

from kafkalog.checkpoints.regular_file import write_all
from kafkalog.errors import CommitError
from kafkalog.model import NO_EPOCH
from kafkalog.streaming.log.page_reader import read_at
from kafkalog.streaming.records.offsets import assign_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kafkalog.streaming.records.arrow_buffers import Bytes
    from kafkalog.streaming.records.batch import BatchTable
    from kafkalog.streaming.sink.staged_run import StagedRun
    from kafkalog.streaming.sink.staged_source import StagedFiles

__all__ = ["MessageSource"]

_PIECE_BYTES: Final = 1 << 20


class MessageSource:
    """An ``appender.Source``, for one thread; ``table`` has the wrappers and stretches of the run.

    The checksum of the whole run is compared before the first byte of it is written anywhere.
    """

    def __init__(self, files: StagedFiles, run: StagedRun, table: BatchTable) -> None:
        self._files = files
        self._path = files.path_of(run)
        self._run = run
        self._base_offsets = table.base_offset
        self._ends = table.end_position
        self._checked = False

    def copy(self, position: int, size: int, target: int, target_position: int) -> None:
        """Copy whole messages, numbered, into the open file ``target``.

        Raises:
            CommitError: the file is gone, or holds something else than what was staged.
        """
        with self._files.opened(self._path) as source:
            self._check(source)
            for row, data in self._pieces(source, position, position + size):
                if self._run.first_offset < 0:
                    assign_offsets(data, int(self._base_offsets[row]), NO_EPOCH)
                write_all(target, data.data, target_position)
                target_position += len(data)

    def become(self, path: Path) -> bool:
        """Decline, see the module."""
        del path
        return False

    def _check(self, source: int) -> None:
        if self._checked:
            return
        start, end = self._run.position, self._run.position + self._run.size
        crc = 0
        for _, data in self._pieces(source, start, end):
            crc = crc32c(data.data, crc)
        if crc != self._run.crc32c:
            raise CommitError(
                f"{self._path}: bytes {start} to {end} have the checksum {crc:08x}, the task that "
                f"staged them said {self._run.crc32c:08x}"
            )
        self._checked = True

    def _pieces(self, source: int, position: int, end: int) -> Iterator[tuple[int, Bytes]]:
        """Read rows of the table, some at a time: the number of the first one, and their bytes."""
        while position < end:
            row = int(np.searchsorted(self._ends, position, side="right"))
            limit = min(end, position + _PIECE_BYTES)
            last = max(int(np.searchsorted(self._ends, limit, side="right")) - 1, row)
            size = int(self._ends[last]) - position
            data = read_at(source, position, size)
            if len(data) < size:
                raise CommitError(
                    f"the staged file {self._path} ends at byte {position + len(data)}, in a run"
                )
            yield row, data
            position += size
