"""Files of a partition that are dead: renamed to ``.deleted``, and unlinked some time after that.

Whoever has listed or opened a segment meanwhile reads on. Kafka waits for ``file.delete.delay.ms``
in the process that renamed them; nothing of ours waits. Files that a killed process left go with
any later round, by the time of their rename (``ctime``). A broker unlinks all of them when it
starts.

Source: Kafka ``LogSegment.changeFileSuffixes``, ``LocalLog.deleteSegmentFiles``,
``ProducerStateManager.removeAndMarkSnapshotForDeletion``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.streaming.log.files import (
    DELETED,
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    parse_base_offset,
)

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Removed", "remove_retired", "retire_below"]

_KINDS: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT)
"""In the order in which those of one segment are renamed: without its log it is none."""


class Removed(NamedTuple):
    """How many files were unlinked, and the bytes that they had."""

    files: int = 0
    bytes: int = 0

    def plus(self, more: Removed) -> Removed:
        """Return the sums."""
        return Removed(self.files + more.files, self.bytes + more.bytes)


def retire_below(folder: Path, base_offset: int) -> None:
    """Rename all files of segments below ``base_offset``, the oldest segment first.

    So what is left is a whole log whenever this is cut off. Also takes indexes without a log, which
    that leaves.
    """
    for _, _, name in sorted(_numbered_below(folder, base_offset)):
        with suppress(FileNotFoundError):
            (folder / name).replace(folder / (name + DELETED))


def _numbered_below(folder: Path, base_offset: int) -> list[tuple[int, int, str]]:
    return [
        (base, rank, name)
        for name in (path.name for path in folder.iterdir())
        for rank, kind in enumerate(_KINDS)
        if (base := parse_base_offset(name, kind)) is not None and base < base_offset
    ]


def remove_retired(folder: Path, renamed_before_ms: int) -> Removed:
    """Unlink the files of a folder that were renamed before a time, in ms by the system's clock."""
    files = size = 0
    for path in [path for path in folder.iterdir() if _is_retired(path.name)]:
        with suppress(FileNotFoundError):
            found = path.lstat()
            if found.st_ctime_ns < renamed_before_ms * 1_000_000:
                path.unlink()
                files, size = files + 1, size + found.st_size
    return Removed(files, size)


def _is_retired(name: str) -> bool:
    stem = name.removesuffix(DELETED)
    return stem != name and any(parse_base_offset(stem, kind) is not None for kind in _KINDS)
