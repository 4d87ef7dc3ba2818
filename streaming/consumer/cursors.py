"""Positions of a member in its partitions, and which of them are not committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkalog.streaming.groups.group_commits import Move

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kafkalog.model import TopicPartition

__all__ = ["Cursors"]


@dataclass(slots=True)
class _Cursor:
    """One partition: held since a generation; where the group stands, and what comes next."""

    since: int
    begin: int
    position: int
    is_paused: bool = False

    @property
    def move(self) -> Move:
        """What a commit publishes: a group does not go back, whatever is read again."""
        return Move(self.begin, max(self.begin, self.position), self.since)


class Cursors:
    """The partitions that a member reads. Knows no files.

    What was returned of a partition that was taken away before it was committed stays known, until
    somebody has dealt with that: rows of it may be among those that are about to be published.
    """

    def __init__(self) -> None:
        self._cursors: dict[TopicPartition, _Cursor] = {}
        self._moved: set[TopicPartition] = set()
        """Those whose position changed since the last commit."""
        self.taken: dict[TopicPartition, Move] = {}
        """What was returned of partitions that were taken away, and was not committed."""

    @property
    def since(self) -> dict[TopicPartition, int]:
        """The partitions, and since which generation it has each."""
        return {key: cursor.since for key, cursor in self._cursors.items()}

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The offset that comes next in each."""
        return {key: cursor.position for key, cursor in self._cursors.items()}

    @property
    def wanted(self) -> dict[TopicPartition, int]:
        """Where to read on, in those that are not paused."""
        return {key: each.position for key, each in self._cursors.items() if not each.is_paused}

    def __contains__(self, key: object) -> bool:
        return key in self._cursors

    def add(self, key: TopicPartition, since: int, position: int) -> None:
        """Begin with a partition where the group stands."""
        self._cursors[key] = _Cursor(since, position, position)

    def drop(self, key: TopicPartition) -> None:
        """Read a partition no more; nothing if it is not read."""
        cursor = self._cursors.pop(key, None)
        if cursor is not None and key in self._moved:
            self._moved.discard(key)
            self.taken[key] = cursor.move

    def position(self, key: TopicPartition) -> int:
        """Return the offset that comes next."""
        return self._cursors[key].position

    def go_to(self, key: TopicPartition, position: int) -> None:
        """Read on at another offset."""
        self._moved.add(key)
        self._cursors[key].position = position

    def back(self, key: TopicPartition, end: int) -> Move | None:
        """Return how the group goes back to where a log ends; None if it stands no further."""
        cursor = self._cursors[key]
        return Move(cursor.begin, end, cursor.since) if end < cursor.begin else None

    def pause(self, keys: Iterable[TopicPartition], *, is_paused: bool) -> None:
        """Leave partitions out for a while, or not any more."""
        for key in keys:
            self._cursors[key].is_paused = is_paused

    def moves(self) -> dict[TopicPartition, Move]:
        """Return what a commit publishes now."""
        return {key: self._cursors[key].move for key in sorted(self._moved)}

    def committed(self, moves: Mapping[TopicPartition, Move]) -> None:
        """Take note of what was published."""
        for key, move in moves.items():
            cursor = self._cursors[key]
            cursor.begin = move.end
            if cursor.move.end == move.end:
                self._moved.discard(key)
        self.taken.clear()

    def go_back(self, stands: Mapping[TopicPartition, int]) -> None:
        """Read everything again that the group does not know, from where it stands."""
        self._moved.clear()
        self.taken.clear()
        for key, cursor in self._cursors.items():
            cursor.begin = cursor.position = stands.get(key, cursor.begin)
