"""What a loss of power leaves at least: what fsync has covered, and no more."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.support.disk import Disk, Renamed
from tests.support.disk_calls import Machine, simulated
from tests.support.power_loss import Unsynced

from kafkalog.files.regular import open_regular, write_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.disk import Change

__all__ = ["Files", "KilledError", "acted", "change", "least", "logs", "made"]

Files = dict[str, bytes | None]


class KilledError(BaseException):
    """Ends a process."""


def made(*actions: Callable[[], object]) -> Disk:
    """Give a disk on which all is durable."""
    return acted(Disk(), *actions).disk.copy()


def acted(before: Disk, *actions: Callable[[], object]) -> Machine:
    """Let processes act one after the other; each may be killed."""
    machine = Machine(before.copy())
    for action in actions:
        machine.process += 1
        with simulated(machine):
            try:
                action()
            except KilledError:
                machine.end_process(machine.process)
    return machine


def least(before: Disk, machine: Machine, until: str = "", *, last: bool = False) -> Files:
    """Give what a loss of power leaves at least, by path; or right before a name changes.

    It is the first time that the name changes, or the ``last``.
    """
    changes = machine.disk.changes
    if until:
        found = [n for n, each in enumerate(changes) if _is_of(each, until)]
        changes = changes[: found[-1 if last else 0]]
    unsynced = Unsynced.after(before, list(machine.disk.folders))
    for each in changes:
        unsynced.add(each)
    return unsynced.durable.tree()


def _is_of(change: Change, name: str) -> bool:
    return isinstance(change, Renamed) and change.name == name


def logs(files: Files, *endings: str) -> Files:
    """Choose files of partitions, by how they end."""
    return {p: data for p, data in files.items() if "-0/" in p and p.endswith(endings)}


def change(path: Path, position: int, data: bytes) -> None:
    """Change a file as another process does, and leave that to the system."""
    descriptor = open_regular(path, os.O_RDWR)
    write_all(descriptor, data, position)
    os.close(descriptor)
