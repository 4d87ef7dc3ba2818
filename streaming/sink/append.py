"""The runs of one partition on their way from staged files into its log."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from crc32c import crc32c

from kafkalog.checkpoints.intent import (
    IntendedPartition,
    IntendedPiece,
    IntendedSegment,
    StagedFile,
)
from kafkalog.checkpoints.regular_file import fsync_directory, open_regular, write_all
from kafkalog.errors import CommitError
from kafkalog.streaming.log.page_reader import read_at
from kafkalog.streaming.records.offsets import assign_offsets

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kafkalog.streaming.log.appender import AppendPlan, PartitionAppender
    from kafkalog.streaming.records.arrow_buffers import Bytes
    from kafkalog.streaming.records.batch import BatchTable
    from kafkalog.streaming.sink.staged_run import StagedRun
    from kafkalog.streaming.sink.topics import Topic

__all__ = ["PartitionAppend"]

_PIECE_BYTES: Final = 8 << 20


@dataclass(frozen=True)
class PartitionAppend:
    """What a commit does to one partition: planned when made, done by :meth:`apply`."""

    topic: Topic
    appender: PartitionAppender
    plan: AppendPlan
    runs: tuple[StagedRun, ...]
    tables: tuple[BatchTable, ...]
    member_id: str

    @classmethod
    def of(
        cls, topic: Topic, appender: PartitionAppender, runs: Sequence[StagedRun], member_id: str
    ) -> PartitionAppend:
        """Give the batches of ``runs`` their offsets and plan where they go; touches nothing.

        Raises:
            RecordTooLargeError: a batch that exceeds ``segment.bytes``.
        """
        tables = []
        offset = appender.log_end_offset
        for run in runs:
            table = run.table(offset, appender.leader_epoch)
            offset = int(table.last_offset[-1]) + 1
            tables.append(table)
        plan = appender.plan(tables)
        return cls(topic, appender, plan, tuple(runs), tuple(tables), member_id)

    def intended(self, staged_members: Sequence[str]) -> IntendedPartition:
        """Give what the intent says; ``staged_members`` are the directories that runs count in."""
        return IntendedPartition(
            topic=self.topic.name,
            key=self.topic.key,
            partition=self.plan.topic_partition.partition,
            member_id=self.member_id,
            created=self.plan.creates_directory,
            leader_epoch=self.appender.leader_epoch,
            starts_epoch=self.plan.starts_leader_epoch is not None,
            start_offset=self.plan.start_offset,
            end_offset=self.plan.end_offset,
            snapshots=self.plan.snapshots,
            pieces=tuple(
                IntendedPiece(
                    StagedFile(staged_members[run.directory], run.file),
                    run.position,
                    run.size,
                    run.crc32c,
                    run.records,
                )
                for run in self.runs
            ),
            segments=tuple(
                IntendedSegment(
                    segment.base_offset,
                    segment.position,
                    segment.position + segment.size,
                    segment.creates,
                )
                for segment in self.plan.segments
            ),
        )

    def apply(self, directories: Sequence[Path]) -> None:
        """Append; ``directories`` are those that the runs count in.

        Raises:
            CommitError: a staged file is gone, or its bytes are not what the task wrote.
            OSError: as the system says.
        """
        with ExitStack() as opened:
            sources = []
            for run, table in zip(self.runs, self.tables, strict=True):
                source = _StagedSource(directories[run.directory] / run.file, run, table)
                opened.callback(source.close)
                sources.append(source)
            self.appender.apply(self.plan, sources)
            for source in sources:
                source.check()

    def sync(self) -> None:
        """Make durable what was appended; of the indexes only those of sealed segments.

        An index of the active segment is rebuilt from the log by whoever finds it wrong.
        """
        indexes = set(self.plan.index_files(sealed=False))
        created = [path for path in self.plan.created_files() if path not in indexes]
        files = dict.fromkeys(
            [*self.plan.log_files(), *created, *self.plan.index_files(sealed=True)]
        )
        for path in files:
            _fsync_file(path)
        if self.plan.created_files():
            fsync_directory(self.plan.directory)


class _StagedSource:
    """A run in its staged file; its batches get their offsets while they are copied."""

    def __init__(self, path: Path, run: StagedRun, table: BatchTable) -> None:
        self._path = path
        self._run = run
        self._ends = table.end_position
        self._table = table
        self._crc = 0
        try:
            self._descriptor = open_regular(path)
        except FileNotFoundError:
            raise CommitError(
                f"the staged file {path} is gone: it was swept away because its batch was taken "
                "for finished, or the machine that wrote it does not share this directory"
            ) from None

    def close(self) -> None:
        os.close(self._descriptor)

    def copy(self, position: int, size: int, target: int, target_position: int) -> None:
        """Copy whole batches, as :class:`~kafkalog.streaming.log.appender.Source` asks."""
        end = position + size
        while position < end:
            data, row = self._read(position, end)
            offset = int(self._table.base_offset[row])
            assign_offsets(data, offset, int(self._table.leader_epoch[row]))
            write_all(target, data.data, target_position)
            position += len(data)
            target_position += len(data)

    def check(self) -> None:
        """Compare the checksum of all that was copied with the one that the task gave."""
        if self._crc != self._run.crc32c:
            raise CommitError(
                f"{self._path}: bytes {self._run.position} to "
                f"{self._run.position + self._run.size} have the checksum {self._crc:08x}, the "
                f"task that staged them said {self._run.crc32c:08x}"
            )

    def _read(self, position: int, end: int) -> tuple[Bytes, int]:
        """Read whole batches from ``position``, and say which row of the table is the first."""
        row = int(np.searchsorted(self._ends, position, side="right"))
        last = int(np.searchsorted(self._ends, min(end, position + _PIECE_BYTES), side="right"))
        size = int(self._ends[max(last - 1, row)]) - position
        data = read_at(self._descriptor, position, size)
        if len(data) < size:
            raise CommitError(
                f"the staged file {self._path} ends at byte {position + len(data)}, within a run"
            )
        self._crc = crc32c(data.data, self._crc)
        return data, row


def _fsync_file(path: Path) -> None:
    descriptor = open_regular(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
