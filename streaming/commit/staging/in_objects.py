"""Put encoded batches into data objects: what a task does for a log in an object store.

An object has batches of all partitions that the task met, one partition after the other. What no
commit names does not exist, and is swept. A small batch is handed over in the staged runs instead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from kafkalog.checkpoints.bucket_state import MAX_INLINE_BYTES, data_name, object_path
from kafkalog.files.system import system
from kafkalog.streaming.commit.staging.staged_run import StagedRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.commit.staging.staged_files import Home
    from kafkalog.streaming.objects.bucket_store import BucketRoot
    from kafkalog.streaming.records.builder import EncodedBatch

__all__ = ["StagingInObjects", "run_in_object"]

_FLUSH_BYTES: Final = 64 << 20
"""What a task holds of finished batches before it puts them into an object."""


class StagingInObjects:
    """The staged batches of one attempt of a task; see ``Staging``.

    ``newest`` is the newest commit of the log ``log_id`` that the batch's job knew when it began.
    """

    def __init__(self, root: BucketRoot, log_id: str, newest: int) -> None:
        self._root = root
        self._log_id = log_id
        self._newest = newest
        self._waiting: dict[TopicPartition, list[EncodedBatch]] = {}
        self._waiting_bytes = 0
        self._runs: list[StagedRun] = []

    def add(
        self,
        topic_partition: TopicPartition,
        batches: Sequence[EncodedBatch],
        home: Home,  # noqa: ARG002 - objects lie nowhere
    ) -> None:
        """Keep batches of one partition after those added before."""
        self._waiting.setdefault(topic_partition, []).extend(batches)
        self._waiting_bytes += sum(len(batch.data) for batch in batches)
        if self._waiting_bytes >= _FLUSH_BYTES:
            self._put()

    def finish(self) -> tuple[StagedRun, ...]:
        """Return what was staged, runs of one partition in their order.

        Raises:
            LogDirectoryError: an object cannot be put.
        """
        if self._runs or self._waiting_bytes > MAX_INLINE_BYTES:
            self._put()
        else:
            self._runs += self._taken("", inline=True)
        return tuple(self._runs)

    def discard(self) -> None:
        """Forget what was staged: what no commit names does not exist, and is swept."""
        self._waiting.clear()

    def _put(self) -> None:
        if self._waiting:
            name = data_name(self._newest, system.random_id().hex)
            content = b"".join(b.data for some in self._waiting.values() for b in some)
            objects = self._root.open_store().objects
            objects.put(object_path(self._log_id, name), content)
            self._runs += self._taken(name, inline=False)

    def _taken(self, name: str, *, inline: bool) -> list[StagedRun]:
        runs, position = [], 0
        for topic_partition, batches in self._waiting.items():
            run = run_in_object(topic_partition, batches, name, position, inline=inline)
            run = replace(run, whole_file=len(self._waiting) == 1)
            runs.append(run)
            position += run.size
        self._waiting, self._waiting_bytes = {}, 0
        return runs


def run_in_object(
    topic_partition: TopicPartition,
    batches: Sequence[EncodedBatch],
    name: str = "",
    position: int = 0,
    *,
    inline: bool = True,
) -> StagedRun:
    """Return the run of encoded batches that lie in an object, or that go into the commit's."""
    data = b"".join(batch.data for batch in batches)
    return StagedRun(
        topic_partition=topic_partition,
        directory=0,
        file=name,
        position=position,
        size=len(data),
        crc32c=crc32c(data),
        batches=StagedRun.pack(batches),
        data=data if inline else b"",
    )
