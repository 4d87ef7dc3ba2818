"""Log starts of tiered topics, whose first records lie in a remote tier alone (KIP-405).

A broker that tiers a topic copies its segments to an object store and deletes them here. Its
``log-start-offset-checkpoint`` still has the start of the whole log, which lies below the first
segment. Whoever reads from the start and does not name the tier (``remote.path``) has to be told.
A log that goes on in a tier which is named starts where the tier has its first segment; a warning
says so where its broker says that it starts before: that has expired since, or it is missing.

=============  ==========  =================================================================
line           broker      the log starts
=============  ==========  =================================================================
0              any         at 0: only a tiered log has a line that is not above its first segment
1 to first     tiers       at the line, unless its first leader epoch starts after that, see below
1 to first     does not    at its first segment, with a warning: the line is older than a deletion
-              tiers       where its first leader epoch does: the file was not written yet
-              does not    at its first segment
=============  ==========  =================================================================

A broker tiers if it has made the folder of its remote indexes, or if the topic's settings say so.
It may tier other topics alone. It cuts leader epochs off where the whole log starts: those that
begin with the first segment here tell that nothing lies before it, and that the line is old.

Source: Kafka ``LogManager.checkpointLogStartOffsetsInDir``, ``UnifiedLog``, ``RemoteIndexCache``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.broker import LOG_START_OFFSET, read_leader_epochs
from kafkalog.errors import KafkaLogError
from kafkalog.files.remote_path import RemotePath
from kafkalog.files.system import once_per_process
from kafkalog.files.watch import stamp_of, watchable

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.log.partition_log import PartitionLog

__all__ = [
    "LogStart",
    "TieredStarts",
    "has_remote_indexes",
    "offset_of_time",
    "say_expired",
    "start_of_gap",
]

_LOGGER = logging.getLogger("kafkalog.source")

_REMOTE_INDEXES: Final = "remote-log-index-cache"


class LogStart(NamedTuple):
    """Where a log starts: its first offset that was not deleted, and the first that is here."""

    offset: int
    here: int
    has_tier: bool = False
    """Whether a remote tier was looked into, too: it has not what lies between the two."""

    @property
    def is_tiered(self) -> bool:
        """Whether a remote tier alone has what lies between the two."""
        return self.offset < self.here

    def __str__(self) -> str:
        """Say which records are not here, and what to set to read them."""
        if self.has_tier:
            return (
                f"offsets [{self.offset}, {self.here}) are neither in the log directory nor in the "
                "remote tier: check remote.path and remote.layout, and what the store deletes"
            )
        return (
            f"offsets [{self.offset}, {self.here}) are not in the log directory: a broker has "
            "moved them to a remote tier (remote.storage.enable). Name it by the option "
            "remote.path to read them, see docs/tiers.md"
        )


@once_per_process
def say_expired(folder: str, start: int, first: int) -> None:
    """Warn that a tier begins above where a broker says that the log starts."""
    _LOGGER.warning(
        "%s: its broker says that the log starts at offset %d, and the first record in tier and "
        "log directory is at %d: what lies between has expired since, or the tier lacks it",
        *(folder, start, first),
    )


class TieredStarts:
    """Tells where logs start, and says once of each where that is not sure."""

    def __init__(self) -> None:
        self._doubted: set[Path] = set()

    def start(
        self, where: PartitionDirectory, line: int | None, first: int, *, is_tiered: bool
    ) -> int:
        """Return the first offset of a log that was not deleted.

        Args:
            where: the partition's folder.
            line: what ``log-start-offset-checkpoint`` says of it; None where it says nothing.
            first: the first offset that the folder has.
            is_tiered: whether its broker tiers topics.
        """
        if line is None:
            return min(_first_epoch(where.path, first), first) if is_tiered else first
        if line >= first or not line:
            return min(line, first)
        if is_tiered and _first_epoch(where.path, line) < first:
            return line
        if where.path not in self._doubted:
            self._doubted.add(where.path)
            _LOGGER.warning(
                "%s: the line of %s says that the log starts at offset %d, and its first segment "
                "here starts at %d: what lies between was deleted since, or is in a remote tier "
                "alone, and is not read",
                *(where.log_dir / LOG_START_OFFSET, where.topic_partition, line, first),
            )
        return first


def has_remote_indexes(directories: Iterable[Path]) -> bool:
    """Whether the broker that had these log directories tiers topics.

    One that cannot be asked now does not say so: of several nodes the others are read.
    """
    return any(map(_has_remote_indexes, directories))


def _has_remote_indexes(folder: Path) -> bool:
    try:
        return stamp_of(watchable(folder / _REMOTE_INDEXES)) is not None
    except OSError:
        return False


def _first_epoch(folder: Path, default: int) -> int:
    """Return where the first leader epoch of a log starts: a broker cuts them off at its start."""
    try:
        epochs = read_leader_epochs(folder)
    except (KafkaLogError, OSError):  # nothing is known then
        return default
    return epochs[0].start_offset if epochs else default


def offset_of_time(log: PartitionLog, start: int, time_ms: int, limit: int) -> int | None:
    """Return the offset of the first record of a time or a later one; None if there is none.

    ``start`` is where the whole log starts. If that lies in a remote tier, and the record that is
    found is the first one here, ``start`` is returned: there may be an earlier one in the tier. If
    it comes behind offsets that the tier has lost, the first of those is.

    Args:
        log: what is here.
        start: the first offset that was not deleted.
        time_ms: the time in ms.
        limit: the end that may be read.
    """
    found = log.offset_for_timestamp(time_ms, end_offset=limit)
    at = None if found is None else found.offset
    if at is None or at >= limit:
        return None
    if start < log.log_start_offset:
        first = log.offset_for_timestamp(-1, end_offset=limit)
        if first is not None and first.offset == at:
            return start
    return start_of_gap(log.directory, at)  # what is lost may have had an earlier record


def start_of_gap(folder: Path, offset: int) -> int:
    """Return where the offsets begin that a tier has lost just below one; itself without such."""
    for start, end in reversed(folder.gaps() if isinstance(folder, RemotePath) else []):
        if end == offset:
            offset = start
    return offset
