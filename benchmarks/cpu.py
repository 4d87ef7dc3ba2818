"""CPU time of this process and all that it has started: other work on the machine hardly shows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["tree_cpu_seconds"]

_TICKS: Final = os.sysconf("SC_CLK_TCK")


class _Process(NamedTuple):
    parent: int
    seconds: float


def tree_cpu_seconds() -> float:
    """Give user and system time of the tree, of processes that have ended too; 0 without /proc."""
    found = {
        int(folder.name): process
        for folder in Path("/proc").glob("[0-9]*")
        if (process := _process(folder)) is not None
    }
    mine = os.getpid()
    return sum(one.seconds for pid, one in found.items() if _descends(pid, mine, found))


def _process(folder: Path) -> _Process | None:
    """Read ``stat``, of which the name, in parentheses, may hold anything."""
    try:
        fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None  # it has ended
    return _Process(int(fields[1]), sum(map(int, fields[11:15])) / _TICKS)


def _descends(pid: int, ancestor: int, found: dict[int, _Process]) -> bool:
    while pid != ancestor and pid in found:
        pid = found[pid].parent
    return pid == ancestor
