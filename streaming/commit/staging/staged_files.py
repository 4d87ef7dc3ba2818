"""Write encoded batches into staged files, on each node that will hold them.

A staged file lies in the root of a log directory. A broker ignores files there, and a topic that
does not exist yet needs no folder. Nobody reads a staged file until a commit names it. One that is
never named is swept away.

Small runs share a file. A partition that has staged many bytes continues in files of its own, none
larger than a segment may be, and a new partition with much to write begins with one. A commit can
make such a file a segment without copying it.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from kafkalog.errors import CommitError
from kafkalog.files.regular import close_quietly, create_exclusive, fsync_directory, write_all
from kafkalog.files.system import once_per_process, system
from kafkalog.files.timeouts import at, run_with_timeout
from kafkalog.model import TopicPartition
from kafkalog.streaming.commit.staging.formats import BatchFormat
from kafkalog.streaming.commit.staging.staged_run import StagedRun
from kafkalog.streaming.options.bridge import what_to_do
from kafkalog.streaming.records.batch_layout import MAGIC_POSITION
from kafkalog.streaming.records.builder import RecordColumns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kafkalog.streaming.records.builder import EncodedBatch
    from kafkalog.streaming.store.policy import TopicPolicy
    from kafkalog.streaming.store.topics import Topic

__all__ = [
    "AttachedRecords",
    "AttachedRecordsStaging",
    "Home",
    "OpenRun",
    "StagedFileWriter",
    "StagedTogether",
    "Staging",
    "StagingArea",
    "StagingOnNodes",
    "encode_attached",
]

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
            CommitError: it cannot be made durable, or a file system says as late as at its end that
                it was not written (close(2)).
        """
        if not self.is_open:
            return
        self.is_open = False
        try:
            try:
                if durable:
                    os.fsync(self._descriptor)
            finally:
                os.close(self._descriptor)
        except OSError as error:
            raise self._failed("made durable" if durable else "written", error) from error

    def discard(self) -> None:
        """Remove the file; if it cannot be removed, it is swept later."""
        if self.is_open:
            self.is_open = False
            close_quietly(self._descriptor)
        with suppress(OSError):
            self.path.unlink()

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


# ----------------------------------------------------------------------------------------------

LARGEST_FILE_BYTES: Final = 1 << 30
"""A shared file that would grow beyond it is continued in another one."""

OWN_FILE_BYTES: Final = 16 << 20
"""A partition that has staged so much continues in files of its own; copying as much takes 5 ms."""

FIRST_OWN_BYTES: Final = 1 << 20
"""A new partition that begins with so much has files of its own from then on: the first one becomes
its first segment. Less is copied, which costs no more than a file."""

SMALLEST_OWN_FILE_BYTES: Final = 1 << 20
"""Where segments are smaller than this, no partition gets files of its own."""

OPEN_OWN_FILES: Final = 128
"""How many partitions may have one open at a time; the others continue in the shared file."""


@dataclass(frozen=True, slots=True)
class Home:
    """What staging needs to know of a partition.

    ``directory`` is the number of the log directory it lives in, None for a new one;
    ``segment_bytes`` is its topic's ``segment.bytes``.
    """

    directory: int | None
    segment_bytes: int


@dataclass(slots=True)
class _Growing:
    """How much a partition has staged, and the file of its own, if it has one."""

    size: int = 0
    file: StagedFileWriter | None = None


class Staging(Protocol):
    """Where batches are staged, on one node or on several; each method as that of an area."""

    def add(
        self, topic_partition: TopicPartition, batches: Sequence[EncodedBatch], home: Home
    ) -> None:
        """Write batches of one partition after those added before."""
        ...

    def finish(self) -> Sequence[StagedRun]:
        """Close the files and return what is in them."""
        ...

    def discard(self) -> None:
        """Remove the files."""
        ...


class StagingArea:
    """The staged files of one attempt of a task.

    ``folders`` are the log directories; files that partitions share, and those of new partitions,
    go to number ``directory``. ``prefix`` is what names start with. With ``durable``,
    :meth:`finish` makes the files survive a power failure. Belongs to one thread; :meth:`finish`
    or :meth:`discard` ends it.
    """

    def __init__(
        self, folders: Sequence[Path], directory: int, prefix: str, *, durable: bool
    ) -> None:
        self._folders = folders
        self._directory = directory
        self._prefix = prefix
        self._durable = durable
        self._files: list[StagedFileWriter] = []
        self._shared: StagedFileWriter | None = None
        self._growing: dict[TopicPartition, _Growing] = {}
        self._runs: list[OpenRun] = []

    def add(
        self, topic_partition: TopicPartition, batches: Sequence[EncodedBatch], home: Home
    ) -> None:
        """Write batches of one partition after those added before.

        Raises:
            CommitError: a file cannot be made or written (disk full, no permission, …).
        """
        growing = self._growing.setdefault(topic_partition, _Growing())
        size = sum(len(batch.data) for batch in batches)
        if growing.file is not None or self._deserves_own_file(growing, size, home):
            self._add_to_own(topic_partition, batches, home, growing)
        else:
            if self._shared is None or self._shared.size + size > LARGEST_FILE_BYTES:
                self._end(self._shared)
                self._shared = self._new_file(self._directory)
            self._append(self._shared, topic_partition, batches)
        growing.size += size

    def finish(self) -> tuple[StagedRun, ...]:
        """Close the files and return what is in them, runs of one partition in their order.

        Raises:
            CommitError: they cannot be made durable.
        """
        for file in self._files:
            self._end(file)
        if self._durable:
            self._sync_folders()
        return tuple(run.close() for run in self._runs)

    def _sync_folders(self) -> None:
        for directory in sorted({file.directory for file in self._files}):
            try:
                fsync_directory(self._folders[directory])
            except OSError as error:
                raise CommitError(f"staged files cannot be made durable: {error}") from error

    def discard(self) -> None:
        """Remove the files of an attempt that failed; what cannot be removed is swept later."""
        for file in self._files:
            file.discard()

    def _deserves_own_file(self, growing: _Growing, size: int, home: Home) -> bool:
        begins = home.directory is None and not growing.size and size >= FIRST_OWN_BYTES
        return (
            (begins or growing.size >= OWN_FILE_BYTES)
            and home.segment_bytes >= SMALLEST_OWN_FILE_BYTES
            and sum(each.file is not None for each in self._growing.values()) < OPEN_OWN_FILES
        )

    def _add_to_own(
        self,
        topic_partition: TopicPartition,
        batches: Sequence[EncodedBatch],
        home: Home,
        growing: _Growing,
    ) -> None:
        """Fill files one after the other, each up to the size of a segment."""
        start, size = 0, 0 if growing.file is None else growing.file.size
        for slot, batch in enumerate(batches):
            if growing.file is None or size + len(batch.data) > home.segment_bytes:
                if growing.file is not None:
                    self._append(growing.file, topic_partition, batches[start:slot])
                    self._end(growing.file)
                growing.file = self._new_file(
                    self._directory if home.directory is None else home.directory
                )
                start, size = slot, 0
            size += len(batch.data)
        if growing.file is not None:
            self._append(growing.file, topic_partition, batches[start:])

    def _append(
        self,
        file: StagedFileWriter,
        topic_partition: TopicPartition,
        batches: Sequence[EncodedBatch],
    ) -> None:
        if not batches:
            return
        begun = file.append(topic_partition, batches)
        if begun is not None:
            self._runs.append(begun)

    def _new_file(self, directory: int) -> StagedFileWriter:
        file = StagedFileWriter(self._folders[directory], directory, self._prefix)
        self._files.append(file)
        return file

    def _end(self, file: StagedFileWriter | None) -> None:
        if file is not None:
            file.end(durable=self._durable)


# ----------------------------------------------------------------------------------------------
# Stage the rows of a task on every node that will hold them: each recovers from its own copy.
#
# A node on which that fails is left out by this task. The commit notices that it lacks runs which
# others have, and takes it out of the in-sync sets.


_T = TypeVar("_T")

_LOGGER: Final = logging.getLogger("kafkalog.sink")


class StagingOnNodes:
    """A :class:`StagingArea` on each node; it is used as one of them is.

    ``nodes`` has, of each node, the numbers of its directories among ``folders``. ``turn`` chooses
    the directory of shared files. A node that stalls for longer than ``limit_ms`` is left out.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        nodes: Sequence[Sequence[int]],
        turn: int,
        prefix: str,
        *,
        durable: bool,
        limit_ms: int | None,
    ) -> None:
        self._folders = folders
        self._limit_ms = limit_ms
        self._shared = {frozenset(node): node[turn % len(node)] for node in nodes}
        self._areas = {
            node: StagingArea(folders, directory, prefix, durable=durable)
            for node, directory in self._shared.items()
        }

    def add(
        self, topic_partition: TopicPartition, batches: Sequence[EncodedBatch], home: Home
    ) -> None:
        """Write batches of one partition after those added before.

        Raises:
            CommitError: that failed on every node.
        """

        def add(node: frozenset[int]) -> None:
            is_here = home.directory is None or home.directory in node
            # Else as on the node where it lives, or the runs of the two would differ.
            place = home if is_here else replace(home, directory=self._shared[node])
            self._areas[node].add(topic_partition, batches, place)

        self._on_each(add)

    def finish(self) -> tuple[StagedRun, ...]:
        """Close the files and return what is in them, of all nodes.

        Raises:
            CommitError: they cannot be made durable on any node.
        """
        runs = self._on_each(lambda node: self._areas[node].finish())
        return tuple(run for node in self._areas for run in runs[node])

    def discard(self) -> None:
        """Remove the files of an attempt that failed."""
        with suppress(CommitError):
            self._on_each(lambda node: self._areas[node].discard())

    def _on_each(self, act: Callable[[frozenset[int]], _T]) -> dict[frozenset[int], _T]:
        """Do something on each node; those on which it fails, or does not end, are left out."""
        waiting = list(self._areas)
        done: dict[frozenset[int], _T] = {}
        failed: dict[frozenset[int], CommitError] = {}

        def work() -> None:
            while waiting:
                node = waiting.pop()
                try:
                    with at(self._folders[self._shared[node]]):
                        done[node] = act(node)
                except CommitError as error:
                    failed[node] = error
                except OSError as error:
                    failed[node] = CommitError(str(error))

        run_with_timeout(work, self._folders, self._limit_ms)
        for node in [node for node in self._areas if node not in done or node in failed]:
            self._leave_out(node, failed.get(node))
        return done

    def _leave_out(self, node: frozenset[int], error: CommitError | None) -> None:
        """Leave a node out; one that stalls, of which there is no ``error``, is not touched."""
        folders = ", ".join(sorted(str(self._folders[slot]) for slot in node))
        if len(self._areas) == 1:
            raise error or CommitError(f"rows cannot be staged in {folders}, where calls stall")
        _tell_left_out(folders)
        area = self._areas.pop(node)
        if error is not None:
            _LOGGER.info("%s", error)
            area.discard()


@once_per_process
def _tell_left_out(folders: str) -> None:
    _LOGGER.warning("rows are staged on the other nodes alone, not in %s", folders)


class StagedTogether:
    """What the commit stages itself on all nodes; ``chosen`` picks one copy of each run."""

    def __init__(
        self,
        staging: StagingOnNodes,
        chosen: Callable[[Sequence[StagedRun]], Sequence[StagedRun]],
    ) -> None:
        self._staging = staging
        self._chosen = chosen

    def add(
        self, topic_partition: TopicPartition, batches: Sequence[EncodedBatch], home: Home
    ) -> None:
        """Write batches of one partition after those added before.

        Raises:
            CommitError: that failed on every node.
        """
        self._staging.add(topic_partition, batches, home)

    def finish(self) -> Sequence[StagedRun]:
        """Close the files and return what is in them: one copy of each run.

        Raises:
            CommitError: they cannot be made durable on any node.
            NotEnoughReplicasError: fewer than a majority of the nodes have them.
        """
        return self._chosen(self._staging.finish())

    def discard(self) -> None:
        """Remove the files."""
        self._staging.discard()


# ----------------------------------------------------------------------------------------------
# Records of internal topics attached to a batch, such as the positions of a group.
#
# The driver encodes them itself, once the commit holds the locks and knows the topic. They are
# staged beside the batch. So its intent names them, whoever rolls it back knows them, and the same
# rename publishes them. What they say is not known here.


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedRecords:
    """Records that one partition of an internal topic gets.

    ``partition_of`` chooses it among as many as the topic has. ``records`` are keys and values, all
    of them of ``timestamp_ms``. ``policy`` says what the topic looks like if it is yet to be made.
    """

    topic: str
    partition_of: Callable[[int], int]
    records: Sequence[tuple[bytes, bytes | None]]
    timestamp_ms: int
    policy: TopicPolicy


class AttachedRecordsStaging:
    """Stages attached records for one commit; belongs to one thread.

    :meth:`finish` or :meth:`discard` ends it.
    """

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._topics: dict[str, Topic] = {}

    def add(self, attached: AttachedRecords, topic: Topic) -> None:
        """Encode attached records as its topic wants them.

        Raises:
            RecordTooLargeError: one exceeds ``max.message.bytes``.
            CommitError: they cannot be staged.
        """
        key = TopicPartition(attached.topic, attached.partition_of(topic.partitions))
        self._topics[attached.topic] = topic
        home = Home(None, topic.config.segment_bytes)
        self._staging.add(key, encode_attached(attached, topic), home)

    def finish(self) -> list[StagedRun]:
        """Close the staged files, and return the runs in them.

        Raises:
            CommitError: they cannot be made durable.
        """
        return [self._placed(run) for run in self._staging.finish()]

    def _placed(self, run: StagedRun) -> StagedRun:
        topic = self._topics[run.topic_partition.topic]
        return replace(run, partitions=topic.partitions, topic_key=topic.known_key)

    def discard(self) -> None:
        """Remove the staged files."""
        self._staging.discard()


def encode_attached(attached: AttachedRecords, topic: Topic) -> list[EncodedBatch]:
    """Encode attached records as their topic wants them.

    Raises:
        RecordTooLargeError: one exceeds ``max.message.bytes``.
    """
    batch_format = BatchFormat(topic.config)
    builder = batch_format.builder(attached.timestamp_ms)
    keys, values = zip(*attached.records, strict=True)
    count = len(attached.records)
    columns = RecordColumns.from_arrow(
        timestamps=np.full(count, attached.timestamp_ms, np.int64),
        key=pa.array(keys, pa.binary()),
        value=pa.array(values, pa.binary()),
    )
    batches = builder.append(columns, np.arange(count))
    last = builder.finish()
    return [batch_format.staged(each) for each in (*batches, *([last] if last else []))]
