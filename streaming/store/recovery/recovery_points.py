"""A recovery point says how far a log is on the disk: what lies below it is not checked again.

A commit makes durable what it writes itself, and then moves the recovery point to its end. Between
the two may be records that nobody has made durable: of commits with ``flush=os``, and of a broker
that was killed. A loss of power would leave a hole there, before a batch that must survive it, and
a broker would not notice. So these records are made durable first.

Source: Kafka ``LogManager.checkpointLogRecoveryOffsets``, ``UnifiedLog.flush``.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import LEADER_EPOCHS, RECOVERY_POINT, read_offset_checkpoint
from kafkalog.files.parallel import for_each
from kafkalog.files.regular import fsync_directory, fsync_file
from kafkalog.streaming.log.append.recovery import correct_indexes_of_sound
from kafkalog.streaming.log.files import (
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
)
from kafkalog.streaming.log.segments import list_base_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition

__all__ = ["LogReach", "sync_up_to"]

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
