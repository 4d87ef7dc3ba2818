"""Work out partition states and recovery points after a recovery: no commit has set them."""

from __future__ import annotations

import itertools
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import (
    LEADER_EPOCHS,
    META_PROPERTIES,
    RECOVERY_POINT,
    read_leader_epochs,
    read_offset_checkpoint,
    read_topic_id,
)
from kafkalog.checkpoints.commit_state import (
    UNKNOWN_EPOCH,
    PartitionState,
    topic_key,
)
from kafkalog.errors import CheckpointError
from kafkalog.files.parallel import for_each
from kafkalog.files.regular import fsync_directory, fsync_file
from kafkalog.streaming.log.files import (
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
)
from kafkalog.streaming.log.recovery import correct_indexes_of_sound
from kafkalog.streaming.log.segments import list_base_offsets

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState, TopicState
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory


__all__ = [
    "LogReach",
    "PartitionEnd",
    "ended_at",
    "epochs_problem",
    "known_topic_id",
    "last_epoch",
    "sync_up_to",
]


# ----------------------------------------------------------------------------------------------
# A partition whose log was brought into order.


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """A partition whose log is in order: where it lies, and its offsets ``[start, end)``.

    ``key`` is what the commit state keeps its topic under; ``corrected`` are the index files that
    held something else than their log calls for. ``log_start`` is what Kafka's checkpoint says, 0
    without; ``leader_epoch`` the latest, unknown where nobody looked.
    """

    topic_partition: TopicPartition
    where: PartitionDirectory
    key: str
    start: int
    end: int
    corrected: tuple[str, ...] = ()
    log_start: int = 0
    leader_epoch: int = UNKNOWN_EPOCH

    @property
    def committed(self) -> PartitionState:
        """Where the partition stands once all that its log holds is committed."""
        whole = PartitionState(min(self.start, self.end), self.end, self.end, self.leader_epoch)
        return whole.starting_at(self.log_start)


# ----------------------------------------------------------------------------------------------

_LOGGER: Final = logging.getLogger("kafkalog.sink")


def ended_at(
    topic: TopicState, number: int, end: int, folder: Path, directories: Collection[Path]
) -> TopicState:
    """Return a topic after the log of one of its partitions was cut at ``end``.

    What is appended next is of a new leader epoch, so that readers that were further recognise
    the cut (KIP-320): see :mod:`kafkalog.streaming.log.history`. Not so where a broker lived in
    one of ``directories``, those of the set: it may start there again as it is, and would hold
    that epoch against the one that its cluster knows.

    Raises:
        CheckpointError: the partition's leader epochs cannot be read.
    """
    before = topic.partitions[number]
    epoch = last_epoch(folder)
    epochs = dict(topic.cluster_epochs)
    if not any((each / META_PROPERTIES).exists() for each in directories):
        known = max(epoch, before.leader_epoch)
        epochs.setdefault(number, known)
        epoch = known + 1
    cut = before.ended_at(end, epoch)
    partitions = {**topic.partitions, number: cut}
    return replace(topic, partitions=partitions, cluster_epochs=epochs)


def last_epoch(folder: Path) -> int:
    """Return the epoch that what is appended next is of; 0 where none was noted.

    Raises:
        CheckpointError: the file breaks the format.
    """
    epochs = read_leader_epochs(folder)
    return epochs[-1].epoch if epochs else 0


def epochs_problem(folder: Path, end: int) -> str | None:
    """Say what is wrong with the leader epochs that are noted of a log that ends at ``end``.

    A broker drops epochs above the end of a log (Kafka ``LeaderEpochFileCache.truncateFromEnd``).
    """
    try:
        epochs = read_leader_epochs(folder)
    except CheckpointError as error:
        return str(error)
    if epochs and epochs[-1].start_offset > end:
        return (
            f"{folder / LEADER_EPOCHS}: leader epoch {epochs[-1].epoch} begins at offset "
            f"{epochs[-1].start_offset}, and the log ends at {end}"
        )
    return None


def known_topic_id(
    state: CommitState | None, found: PartitionDirectory, siblings: Collection[str] = ()
) -> str | None:
    """Return the topic id that a folder has lost; None if it has one, or nothing tells for sure.

    It is the only one under which the commit state knows a topic of that name with that partition,
    or, of a topic that it does not know, the only one of ``siblings``: other folders of the topic.
    """
    name, number = found.topic_partition
    with suppress(CheckpointError):
        if read_topic_id(found.path) is not None:
            return None
    if state is not None and state.is_replicated:
        return None  # another node has it
    topics = {} if state is None else state.topics
    keys = {key for key, topic in topics.items() if topic.name == name} or set(siblings)
    if len(keys) != 1 or not keys >= set(siblings) or topic_key(name, None) in keys:
        return None
    key = keys.pop()
    known = topics.get(key)
    return None if known is not None and number not in known.partitions else key


# ----------------------------------------------------------------------------------------------
# A recovery point says how far a log is on the disk: what lies below it is not checked again.
#
# A commit makes durable what it writes itself, and then moves the recovery point to its end.
# Between the two may be records that nobody has made durable: of commits with ``flush=os``, and
# of a broker that was killed. A loss of power would leave a hole there, before a batch that must
# survive it, and a broker would not notice. So these records are made durable first.
#
# Source: Kafka ``LogManager.checkpointLogRecoveryOffsets``, ``UnifiedLog.flush``.


_NOTHING: Final = -1


class LogReach(NamedTuple):
    """A log, by its partition's folder, and how far its recovery point may have to pass."""

    folder: Path
    topic_partition: TopicPartition
    end_offset: int
    index_interval_bytes: int


def sync_up_to(logs: Iterable[LogReach], *, whole: bool = False) -> None:
    """Make durable what logs hold between their recovery points and these ends.

    If all recovery points are there already, it costs a look only. A recovery point above the end
    of its log counts as none: it belongs to an earlier topic of the same name. With ``whole`` all
    count as none, and the logs are made durable from their starts.

    Raises:
        OSError: it is not durable.
    """
    points: dict[Path, dict[TopicPartition, int]] = {}
    unsynced = []
    for log in logs:
        log_dir = log.folder.parent
        if log_dir not in points:
            points[log_dir] = read_offset_checkpoint(log_dir, RECOVERY_POINT)
        point = points[log_dir].get(log.topic_partition, _NOTHING)
        if whole or point > log.end_offset:
            point = _NOTHING
        if point < log.end_offset:
            unsynced.append((log, point))
    for_each(lambda pair: _sync(*pair), unsynced)


def _sync(log: LogReach, point: int) -> None:
    """Make durable what a log holds from ``point`` on, and that it is there.

    That is everything but the indexes of its active segment. The segment in which the recovery
    point lies, or ends, may have been the active one at an earlier loss of power, which may have
    torn its indexes. If it is sealed by now, they are compared with its batches.
    """
    bases = list_base_offsets(log.folder)
    for base, following in itertools.pairwise(bases):
        if base < point <= following:
            correct_indexes_of_sound(
                log.folder, base, index_interval_bytes=log.index_interval_bytes
            )
    for path in _files(log.folder, bases, point):
        fsync_file(path, missing_ok=True)
    fsync_directory(log.folder)
    fsync_directory(log.folder.parent)


def _files(folder: Path, bases: Sequence[int], point: int) -> Iterator[Path]:
    yield folder / LEADER_EPOCHS
    for base, following in zip(bases, [*bases[1:], None], strict=True):
        if following is None or following >= point:
            sealed = () if following is None else (OFFSET_INDEX, TIME_INDEX, TXN_INDEX)
            for suffix in (LOG, *sealed, SNAPSHOT):
                yield folder / file_name(base, suffix)
