"""Work that is done now and then, for some partitions at a time: when, and for which."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.files.system import system

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from kafkalog.model import TopicPartition

__all__ = ["Rounds"]


class Rounds:
    """When the next round of a set is due, and after which partition it begins, by directories.

    Each kind of work has a class of its own, of which a process remembers one object.
    """

    def __init__(self) -> None:
        self._due: dict[tuple[Path, ...], float] = {}
        self._after: dict[tuple[Path, ...], TopicPartition] = {}

    def begins(self, directories: Sequence[Path], interval_s: float) -> bool:
        """Tell whether a round is due, and note when the one after it is."""
        which, now = tuple(directories), system.monotonic()
        if now < self._due.get(which, now):
            return False
        self._due[which] = now + interval_s
        return True

    def chosen(
        self, directories: Sequence[Path], partitions: Iterable[TopicPartition], most: int
    ) -> list[TopicPartition]:
        """Choose at most so many partitions, from those on that the last round has left.

        The first round begins anywhere: processes that live for one alone are to come to all.
        """
        which, found = tuple(directories), sorted(partitions)
        after = self._after.pop(which, None)
        if after is not None:
            first = sum(key <= after for key in found)
        else:
            first = system.random_id().int % len(found) if len(found) > most else 0
        chosen = found[first:] + found[:first]
        if len(chosen) > most:
            chosen = chosen[:most]
            self._after[which] = chosen[-1]
        return chosen
