"""Staged runs of message sets (formats v0 and v1): compressed late, put into a log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, overload

from crc32c import crc32c

from kafkalog.errors import CommitError, CorruptRecordError, RecordTooLargeError
from kafkalog.files.open_file import read_at
from kafkalog.files.regular import write_all
from kafkalog.model import NO_EPOCH, NO_TIMESTAMP
from kafkalog.streaming.commit.staging.formats import BatchFormat
from kafkalog.streaming.commit.staging.staged_files import Home
from kafkalog.streaming.records.batch import BatchTable, scan_batches
from kafkalog.streaming.records.offsets import assign_offsets
from kafkalog.streaming.records.open_batch import EncodedBatch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.commit.staging.staged_files import Staging
    from kafkalog.streaming.commit.staging.staged_run import StagedRun
    from kafkalog.streaming.commit.staging.staged_source import StagedFiles
    from kafkalog.streaming.options.topic_settings import LogConfig
    from kafkalog.streaming.records.arrow_buffers import Bytes


__all__ = ["LateEncoding", "LogTables", "MessageSource", "check_as_staged", "must_wait"]


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
