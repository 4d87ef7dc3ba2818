"""Compress at commit what could not be compressed before: message sets of format v0.

Offsets inside a wrapper of magic 0 are absolute and lie under its checksum. So it can only be made
once they are known. Tasks stage such sets plain. The commit compresses them into staged files of
its own, before it writes its intent, which names these files. From then on they are runs whose
offsets are final. All bytes are read and written once more, set by set, on the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.errors import RecordTooLargeError
from kafkalog.files.local_file import read_at
from kafkalog.model import NO_TIMESTAMP
from kafkalog.streaming.commit.staging.formats import BatchFormat
from kafkalog.streaming.commit.staging.message_source import check_as_staged
from kafkalog.streaming.commit.staging.staged_files import Home
from kafkalog.streaming.records.open_batch import EncodedBatch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.commit.staging.staged_files import Staging
    from kafkalog.streaming.commit.staging.staged_run import StagedRun
    from kafkalog.streaming.commit.staging.staged_source import StagedFiles
    from kafkalog.streaming.log.config import LogConfig

__all__ = ["LateEncoding", "must_wait"]


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
