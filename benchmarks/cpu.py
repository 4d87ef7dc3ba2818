"""This process and all that it has started, and their CPU time: other work hardly shows in it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["cpu_seconds_by_name", "cpu_seconds_of", "descendants", "tree_cpu_seconds"]

_TICKS: Final = os.sysconf("SC_CLK_TCK")


class _Process(NamedTuple):
    name: str
    parent: int
    seconds: float


def tree_cpu_seconds() -> float:
    """Return user and system time of the tree, ended processes included; 0 without /proc."""
    return sum(one.seconds for one in _tree().values())


def cpu_seconds_by_name() -> dict[str, float]:
    """Return the same by what the processes are called: ``java``, ``python``."""
    found: dict[str, float] = {}
    for one in _tree().values():
        found[one.name] = found.get(one.name, 0.0) + one.seconds
    return found


def cpu_seconds_of(pid: int) -> float:
    """Return the same of one process that runs, without what it has started; 0 without /proc."""
    found = _process(Path(f"/proc/{pid}"))
    return 0.0 if found is None else found.seconds


def descendants() -> list[int]:
    """Return the ids of this process and of all that descend from it."""
    return list(_tree())


def _tree() -> dict[int, _Process]:
    found = {
        int(folder.name): process
        for folder in Path("/proc").glob("[0-9]*")
        if (process := _process(folder)) is not None
    }
    mine = os.getpid()
    return {pid: one for pid, one in found.items() if _descends(pid, mine, found)}


def _process(folder: Path) -> _Process | None:
    """Read ``stat``, of which the name, in parentheses, may hold anything."""
    try:
        head, _, tail = (folder / "stat").read_text(encoding="utf-8").rpartition(")")
    except OSError:
        return None  # it has ended
    fields = tail.split()
    return _Process(head.partition("(")[2], int(fields[1]), sum(map(int, fields[11:15])) / _TICKS)


def _descends(pid: int, ancestor: int, found: dict[int, _Process]) -> bool:
    while pid != ancestor and pid in found:
        pid = found[pid].parent
    return pid == ancestor
