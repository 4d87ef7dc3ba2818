"""Put encoded batches into staged files: what a task does before anybody decides on the batch.

A staged file lies in the root of a log directory, where a broker ignores files, so that a topic
that is not there yet needs no folder. Nobody reads it before a commit names it, and what is never
named is swept away.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from kafkalog.checkpoints.regular_file import create_exclusive, fsync_directory, write_all
from kafkalog.errors import CommitError
from kafkalog.streaming.sink.staged_run import StagedRun

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.records.builder import EncodedBatch

__all__ = ["StagingArea"]

LARGEST_FILE_BYTES: Final = 1 << 30
"""A file that would grow beyond it is continued in another one, as a segment would be."""


class StagingArea:
    """The staged files of one attempt of a task; the runs of all its partitions share them.

    ``directory`` is the number of the log directory ``folder``; ``prefix`` is what the names of the
    files start with. With ``durable``, :meth:`finish` makes them survive a power failure. Belongs
    to one thread; :meth:`finish` or :meth:`discard` ends it.
    """

    def __init__(self, folder: Path, directory: int, prefix: str, *, durable: bool) -> None:
        self._folder = folder
        self._directory = directory
        self._prefix = prefix
        self._durable = durable
        self._files: list[Path] = []
        self._descriptor = -1
        self._size = 0
        self._runs: list[StagedRun] = []

    def add(self, topic_partition: TopicPartition, batches: Sequence[EncodedBatch]) -> None:
        """Write batches of one partition behind those added before.

        Raises:
            CommitError: the file cannot be made or written (disk full, no permission, …).
        """
        data = b"".join(batch.data for batch in batches)
        if self._descriptor < 0 or self._size + len(data) > LARGEST_FILE_BYTES:
            self._start_file()
        path = self._files[-1]
        try:
            write_all(self._descriptor, data, self._size)
        except OSError as error:
            raise _failed(path, "written", error) from error
        self._runs.append(
            StagedRun(
                topic_partition=topic_partition,
                directory=self._directory,
                file=path.name,
                position=self._size,
                size=len(data),
                crc32c=crc32c(data),
                batches=StagedRun.pack(batches),
            )
        )
        self._size += len(data)

    def finish(self) -> tuple[StagedRun, ...]:
        """Close the files and give what is in them.

        Raises:
            CommitError: they cannot be made durable.
        """
        self._end_file()
        if self._durable and self._files:
            fsync_directory(self._folder)
        return tuple(self._runs)

    def discard(self) -> None:
        """Remove the files of an attempt that failed; what cannot be removed is swept later."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        for path in self._files:
            with suppress(OSError):
                path.unlink()

    def _start_file(self) -> None:
        self._end_file()
        path = self._folder / f"{self._prefix}{uuid.uuid4().hex}"
        try:
            self._descriptor = create_exclusive(path)
        except OSError as error:
            raise _failed(path, "made", error) from error
        self._files.append(path)
        self._size = 0

    def _end_file(self) -> None:
        if self._descriptor < 0:
            return
        try:
            if self._durable:
                os.fsync(self._descriptor)
        except OSError as error:
            raise _failed(self._files[-1], "made durable", error) from error
        finally:
            os.close(self._descriptor)
            self._descriptor = -1


def _failed(path: Path, what: str, error: OSError) -> CommitError:
    return CommitError(f"the staged file {path} cannot be {what}: {error.strerror}")
