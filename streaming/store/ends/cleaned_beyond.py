"""Whether a broker's cleaner has looked beyond the end that a view is about to be read to.

A running broker writes down what is committed every few seconds only, in
``replication-offset-checkpoint``. Its cleaner knows more: it takes a record away because of a newer
one of its key, which may lie above that. A view up to that end would then have no row of the key.
A cleaner never looks into the active segment, so all is well while the end lies in that.

A cleaner renames the files of the segments that it replaces, one group after the other, and at last
notes how far it looked in ``cleaner-offset-checkpoint``. So both are looked at.

Source: Kafka ``LogCleaner``, ``LogCleanerManager.cleanableOffsets``,
``ReplicaManager.checkpointHighWatermarks``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import CLEANER_OFFSET, HIGH_WATERMARK
from kafkalog.files.remote_path import RemotePath
from kafkalog.streaming.log.files import CLEANED, DELETED, LOG, SWAP, parse_base_offset
from kafkalog.streaming.log.log_dir import LogDirs, PartitionDirectory

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.log.partition_log import PartitionLog

__all__ = ["cleaned_beyond"]

_DECIDED_NS: Final = 1_000_000_000
"""How long before it was written what a checkpoint says may have been true."""


def cleaned_beyond(log: PartitionLog, start: int, end: int) -> str:
    """Return what shows that a cleaner may have looked beyond ``end``; nothing if nothing does.

    ``start`` and ``end`` are the bounds of a view, which ends where what is known to be committed
    does. Ask after its segments were listed: what is cleaned later is noticed by who reads them.
    What is returned is for a message, and has no full stop.

    Raises:
        UnknownTopicOrPartitionError: the folder of the partition is gone.
    """
    log.refresh()
    if not log.segments or log.segments[-1].base_offset <= end:
        return ""
    folder, key = log.directory, log.topic_partition
    here = PartitionDirectory(key, folder, folder.parent)
    cleaned = LogDirs.checkpoint(CLEANER_OFFSET, [here]).get(key, 0)
    if cleaned > end:
        return (
            f"{end} is committed by {HIGH_WATERMARK}, and a cleaner has compacted up to {cleaned}"
        )
    written = _changed_at(folder.parent / HIGH_WATERMARK)
    if isinstance(folder, RemotePath) or written is None:  # no broker runs here
        return ""
    for path in folder.iterdir():
        changed = _changed_at(path) if _is_replaced(path.name, start, end) else None
        if changed is not None and changed > written - _DECIDED_NS:
            return (
                f"{end} is committed by {HIGH_WATERMARK}, and a cleaner replaced {path.name} since"
            )
    return ""


def _is_replaced(name: str, start: int, end: int) -> bool:
    """Whether a file is a segment of the range on its way in or out; retention's lie below it."""
    for suffix in (CLEANED, SWAP, DELETED):
        base_offset = parse_base_offset(name.removesuffix(suffix), LOG)
        if name.endswith(suffix) and base_offset is not None:
            return start <= base_offset < end
    return False


def _changed_at(path: Path) -> int | None:
    """Return when a file was written or renamed, in ns; None if it is not there."""
    try:
        return path.lstat().st_ctime_ns
    except FileNotFoundError:
        return None
