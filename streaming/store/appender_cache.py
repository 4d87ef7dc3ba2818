"""Appender cache: the ends of the logs written last, for the next commit.

Spark keeps the process in which it commits, and so does a program that appends by itself. What was
derived for one commit is kept for the next, and believed only if

- nobody has published since: the commit state is still that of our last commit; and
- nothing has changed in the partition's folder: neither the folder itself (no file made, removed or
  renamed) nor the log and the indexes of the active segment, by their ``stat``.

That takes four ``stat`` calls instead of some twenty-five calls and a walk over the last batches.
On file systems that hosts share nothing is kept, since they may show an older ``stat``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.files.timeouts import at
from kafkalog.streaming.log.files import LOG, OFFSET_INDEX, TIME_INDEX, file_name
from kafkalog.streaming.store.file_systems import is_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitStamp, CommitState
    from kafkalog.streaming.log.append.appender import PartitionAppender

__all__ = ["AppenderCache", "AppendersOfSet"]

_SETS_KEPT: Final = 8
_PARTITIONS_KEPT: Final = 10_000
"""For each set: a few kilobytes of memory for each of them."""

_Stamp = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    appender: PartitionAppender
    folder: _Stamp
    files: tuple[_Stamp, ...]


@dataclass(slots=True)
class _Set:
    stamp: CommitStamp | None = None
    kept: dict[Path, _Kept] = field(default_factory=dict)


class AppenderCache:
    """The appenders of one process; who uses those of a set holds the locks of its directories."""

    def __init__(self) -> None:
        self._sets: dict[str, _Set] = {}

    def begin(self, state: CommitState) -> AppendersOfSet:
        """Return what is known of a set; nothing if somebody else has committed since."""
        known = self._sets.pop(state.set_id, None)
        if known is None or known.stamp != state.stamp:
            known = _Set()
        self._sets[state.set_id] = known
        while len(self._sets) > _SETS_KEPT:
            self._sets.pop(next(iter(self._sets)))
        return AppendersOfSet(known)


class AppendersOfSet:
    """What is known of one set during one commit."""

    def __init__(self, known: _Set) -> None:
        self._known = known

    def take(self, folder: Path) -> PartitionAppender | None:
        """Take the appender of a partition's folder, if nothing has changed there.

        It is forgotten: :meth:`keep` it again once what it did is committed.
        """
        kept = self._known.kept.pop(folder, None)
        with at(folder):
            if kept is None or _stamp(folder) != kept.folder:
                return None
            return kept.appender if _stamps(kept.appender) == kept.files else None

    def topic_id(self, folder: Path) -> str | None:
        """Return the topic id in a partition's folder, reading it only if it may have changed."""
        kept = self._known.kept.get(folder)
        with at(folder):
            if kept is not None and _stamp(folder) == kept.folder:
                return kept.appender.topic_id
        return read_topic_id(folder)

    def keep(
        self,
        state: CommitState,
        appenders: Iterable[PartitionAppender],
        is_shared: Callable[[Path], bool] = is_shared,
    ) -> None:
        """Keep what has just been published with ``state``, for the next commit.

        ``is_shared`` tells of a log directory.
        """
        self._known.stamp = state.stamp
        for appender in appenders:
            folder = appender.directory
            with at(folder):
                if len(self._known.kept) < _PARTITIONS_KEPT and not is_shared(folder.parent):
                    kept = _Kept(appender, _stamp(folder), _stamps(appender))
                    self._known.kept[folder] = kept


def _stamps(appender: PartitionAppender) -> tuple[_Stamp, ...]:
    folder, base = str(appender.directory), appender.active_base_offset
    names = (file_name(base, suffix) for suffix in (LOG, OFFSET_INDEX, TIME_INDEX))
    return tuple(_stamp(f"{folder}/{name}") for name in names)


def _stamp(path: Path | str) -> _Stamp:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
