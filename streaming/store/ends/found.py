"""What a look at the ends of partitions finds, and where it prefers to look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from kafkalog.streaming.store.file_systems import is_shared

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kafkalog.model import TopicPartition
    from kafkalog.streaming.store.ends.rule import OffsetGap

    Offsets = Mapping[TopicPartition, int]
    Gaps = Mapping[TopicPartition, OffsetGap]

__all__ = ["Ends", "NewGaps", "Unread", "directory_of", "is_any", "is_local"]


@dataclass(frozen=True, slots=True)
class Ends:
    """Where partitions end, in their order, as of one look."""

    offsets: Offsets
    unread: Gaps
    """Offsets that lie in the log above the end."""
    missing: Gaps
    """Offsets that are said to be committed and that the log lacks."""
    lost: Gaps
    """The missing offsets that our own commits had put into the log."""
    damaged: Offsets
    """Logs that end where damage follows, of which nothing says that it is committed."""


class Unread(NamedTuple):
    """What logs hold above their ends: whose it is decides what can be done about it.

    ``uncommitted`` are offsets that nothing says are committed; ``unfinished`` are those of a
    commit of ours that has not ended. ``broker_lived``: whether a broker may have appended them.
    """

    uncommitted: Gaps
    unfinished: Gaps
    broker_lived: bool


class NewGaps(dict["TopicPartition", "OffsetGap"]):
    """Gaps of partitions, of those that have one."""

    def add(self, key: TopicPartition, gap: OffsetGap | None) -> None:
        """Note the gap of a partition, if it has one."""
        if gap is not None:
            self[key] = gap


def directory_of(path: Path | None, directories: Iterable[Path]) -> Path | None:
    """Return the log directory that a path lies in; None if there is none, or no path."""
    inside = (each for each in directories if path is not None and path.is_relative_to(each))
    return next(inside, None)


def is_local(folder: Path) -> bool:
    """Whether a log directory is of this host alone."""
    return not is_shared(folder)


def is_any(_: Path) -> bool:
    """Whether a log directory is as good as others: each is."""
    return True
