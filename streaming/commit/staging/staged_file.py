"""One staged file while a task writes it, and the runs in it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from kafkalog.errors import CommitError
from kafkalog.files.regular import create_exclusive, write_all
from kafkalog.files.system import system
from kafkalog.streaming.border import what_to_do
from kafkalog.streaming.commit.staging.staged_run import StagedRun
from kafkalog.streaming.records.batch_layout import MAGIC_POSITION

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.records.builder import EncodedBatch

__all__ = ["OpenRun", "StagedFileWriter"]

LONGEST_MESSAGE_RUN: Final = 16 << 20
"""Bytes after which a run of magic 0 or 1 ends: the commit looks at each message of a run at once,
and holds about as many bytes for that."""

LARGE_BATCH_BYTES: Final = 64 << 10
"""To write as much costs more than a call: there is no gain in joining it with others first."""


@dataclass(slots=True)
class OpenRun:
    """A run that may still grow: batches of one partition back to back in one file."""

    topic_partition: TopicPartition
    file: StagedFileWriter
    position: int
    size: int = 0
    crc32c: int = 0
    batches: bytearray = field(default_factory=bytearray)

    def continues_with(self, topic_partition: TopicPartition, batch: EncodedBatch) -> bool:
        """Whether a batch belongs to it. Runs of message sets are kept short: see above."""
        is_long = self.size >= LONGEST_MESSAGE_RUN and batch.data[MAGIC_POSITION] < 2
        return self.topic_partition == topic_partition and not is_long

    def close(self) -> StagedRun:
        """Return the run as the commit gets to know it."""
        return StagedRun(
            topic_partition=self.topic_partition,
            directory=self.file.directory,
            file=self.file.path.name,
            position=self.position,
            size=self.size,
            crc32c=self.crc32c,
            batches=bytes(self.batches),
            whole_file=self.size == self.file.size,
        )


class StagedFileWriter:
    """A new file in the root of the log directory ``folder``, whose number is ``directory``."""

    def __init__(self, folder: Path, directory: int, prefix: str) -> None:
        """Make the file; its name starts with ``prefix``.

        Raises:
            CommitError: it cannot be made.
        """
        self.directory = directory
        self.path = folder / f"{prefix}{system.random_id().hex}"
        self.size = 0
        self.is_open = True
        self._last: OpenRun | None = None
        try:
            self._descriptor = create_exclusive(self.path)
        except OSError as error:
            raise self._failed("made", error) from error

    def append(
        self, topic_partition: TopicPartition, batches: Sequence[EncodedBatch]
    ) -> OpenRun | None:
        """Write batches after those that are there; return the run that they begin, if they do.

        Raises:
            CommitError: they cannot be written.
        """
        begun = None
        if self._last is None or not self._last.continues_with(topic_partition, batches[0]):
            begun = self._last = OpenRun(topic_partition, self, self.size)
        run = self._last
        for data in _pieces(batches):
            try:
                write_all(self._descriptor, data, self.size)
            except OSError as error:
                raise self._failed("written", error) from error
            run.size += len(data)
            run.crc32c = crc32c(data, run.crc32c)
            self.size += len(data)
        run.batches += StagedRun.pack(batches)
        return begun

    def end(self, *, durable: bool) -> None:
        """Close the file, with ``durable`` so that it survives a power failure.

        Raises:
            CommitError: it cannot be made durable.
        """
        if not self.is_open:
            return
        try:
            if durable:
                os.fsync(self._descriptor)
        except OSError as error:
            raise self._failed("made durable", error) from error
        finally:
            self._close()

    def discard(self) -> None:
        """Remove the file; if it cannot be removed, it is swept later."""
        if self.is_open:
            self._close()
        with suppress(OSError):
            self.path.unlink()

    def _close(self) -> None:
        self.is_open = False
        os.close(self._descriptor)

    def _failed(self, what: str, error: OSError) -> CommitError:
        return CommitError(
            f"the staged file {self.path} cannot be {what}: {error.strerror}{what_to_do(error)}"
        )


def _pieces(batches: Sequence[EncodedBatch]) -> list[bytes]:
    """Return what to write at once: large batches as they are, small ones joined."""
    size = sum(len(batch.data) for batch in batches)
    if size >= LARGE_BATCH_BYTES * len(batches):
        return [batch.data for batch in batches]
    return [b"".join(batch.data for batch in batches)]
