"""A reader, and a writer that gets ahead of it between any two of its looks at the disk.

Readers hold no lock. Here one reads through the states that a disk goes through while batches are
staged and committed: at each look it sees the state that the writer has come to, and between two
looks the writer may make any number of changes. What the reader does next depends on what it has
seen; so the search goes over pairs of what was seen so far and how far the writer is, each once.
The writer gets ahead only to where the look that follows sees something else: changes that it does
not see may as well come after it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from tests.support.commit_model import (
    LOG_DIR,
    UNTOLD,
    Bounds,
    Broken,
    Query,
    commit_next,
    first_world,
    visible,
)
from tests.support.disk_calls import Machine, simulated

from kafkalog.errors import KafkaLogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.support.disk import Disk

__all__ = ["look_during_commits"]


class _EnoughError(BaseException):
    """Ends a reader whose way on from here is known."""


def look_during_commits(commits: int, *, jumps: int) -> int:
    """Let a reader look while a query commits batches; give how many different looks there are.

    The writer gets ahead up to ``jumps`` times while the reader looks, by any number of changes.

    Raises:
        Broken: a look gave a part of a batch, or failed.
    """
    return _Looks(_states(first_world(Bounds(), "a").disk, range(commits)), jumps).search()


def _states(disk: Disk, batches: Iterable[int]) -> list[Disk]:
    """List what a disk goes through while a query commits batches; the first makes the topic."""
    states = []
    for batch in batches:
        machine = Machine(disk.copy())
        machine.process = batch + 1
        with simulated(machine):
            commit_next(Query("a", batch=batch))
        states += _prefixes(disk, machine)
        disk = states[-1]
    different = {state.digest(without=UNTOLD): state for state in states}
    return list(different.values())


def _prefixes(before: Disk, machine: Machine) -> list[Disk]:
    disk = before.copy()
    for inode in machine.disk.folders:
        disk.folders.setdefault(inode, {})
    for inode in machine.disk.files:
        disk.files.setdefault(inode, b"")
    found = [disk.copy()]
    for change in machine.disk.changes:
        disk.apply(change)
        found.append(disk.copy())
    return found


@dataclass
class _Looks:
    """The search: ``known`` are hashes of what was seen, numbers of a state, numbers of jumps."""

    states: list[Disk]
    jumps: int
    known: set[tuple[bytes, int, int]] = field(default_factory=set)

    def search(self) -> int:
        """Try every way of going on, from every state on."""
        waiting: list[list[int]] = [[state] for state in range(len(self.states))]
        while waiting:
            waiting += self._read(waiting.pop())
        return len(self.known)

    def _read(self, schedule: list[int]) -> list[list[int]]:
        """Read by a schedule: which state each look sees; the last one for all looks beyond it.

        Gives the schedules that leave this one at a look.
        """
        machine = Machine(self.states[schedule[0]])
        seen = blake2b(digest_size=16)
        followed: list[int] = []
        branches: list[list[int]] = []

        def look(answer: Callable[[Disk], object]) -> None:
            slot = len(followed)
            state = schedule[min(slot, len(schedule) - 1)]
            machine.disk = self.states[state]
            if slot >= len(schedule):
                jumped = len(set(schedule)) - 1
                key = (seen.digest(), state, jumped)
                if key in self.known:
                    raise _EnoughError
                self.known.add(key)
                if jumped < self.jumps:
                    branches.extend([*followed, ahead] for ahead in self._ahead(state, answer))
            followed.append(state)
            seen.update(repr(answer(machine.disk)).encode())

        machine.looking = look
        try:
            with simulated(machine):
                contents = visible()
        except _EnoughError:
            return branches
        except KafkaLogError as error:
            raise Broken(f"a reader fails, by the schedule {schedule}: {error}") from error
        values = [value for each in contents.values() for value in each]
        counts = Counter(value.rpartition("/")[0] for value in values)
        if len(values) != len(set(values)) or any(count != 2 for count in counts.values()):
            raise Broken(f"a reader sees {contents} in {LOG_DIR}, by the schedule {schedule}")
        return branches

    def _ahead(self, state: int, answer: Callable[[Disk], object]) -> Iterator[int]:
        """Find the later states at which the answer to a look changes, once or again."""
        before = answer(self.states[state])
        for later in range(state + 1, len(self.states)):
            now = answer(self.states[later])
            if now != before:
                yield later
                before = now
