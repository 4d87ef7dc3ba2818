"""The group's lock: who holds it decides the next generation, and nobody else does meanwhile.

A file beside those of the members. It is locked as the set's are (:mod:`~kafkalog.streaming.store.
locks`): for one open file where the system has such locks, else for the process, with a mutex
beside it. It is taken before the locks of the set, and only if nobody has it: who finds it held
leaves the decision to its holder.

It saves work, no more: of two that decide the same generation one does, by the condition of the
commit (:class:`~.group_commits.Unchanged`).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from kafkalog.streaming.groups.member_files import GROUP_LOCK_PREFIX, INSTANCE_LOCK_PREFIX
from kafkalog.streaming.store.identity import staging_hash
from kafkalog.streaming.store.locks import DirectoryLocks

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["GroupLock", "InstanceLock"]


class _FileLock(DirectoryLocks):
    """The lock of one file in the directory of the set's first member id."""

    def __init__(self, folder: Path, name: str, holder: str) -> None:
        super().__init__([folder], holder=holder, timeout_ms=0)
        self._name = name

    def try_to_take(self) -> bool:
        """Take the lock; return whether nobody else has it.

        Raises:
            LogDirectoryError: its file cannot be made, or the file system has no locks.
        """
        (folder,) = self.directories
        with ExitStack() as undo:
            if self._try_file(folder, self._name, undo):
                self._undo = undo.pop_all()
                return True
        return False


class GroupLock(_FileLock):
    """Held from ``with`` to its end if ``is_held`` says so. To be used in a shielded thread."""

    def __init__(self, folder: Path, group: str) -> None:
        """Take the directory of the set's first member id, and a group's id."""
        name = f"{GROUP_LOCK_PREFIX}{staging_hash(group)}"
        super().__init__(folder, name, f"group {group!r}")
        self.is_held = False

    def __enter__(self) -> Self:
        """Take the lock if nobody has it.

        Raises:
            LogDirectoryError: its file cannot be made, or the file system has no locks.
        """
        self.is_held = self.try_to_take()
        return self

    def close(self) -> None:
        """Give the lock back."""
        self.is_held = False
        super().close()


class InstanceLock(_FileLock):
    """Of two queries with one ``kafka.group.instance.id`` one joins.

    Held from a :meth:`try_to_take` that says so to :meth:`close`; the system gives it back when the
    process ends, however it does.
    """

    def __init__(self, folder: Path, group: str, instance: str) -> None:
        """Take the directory of the set's first member id, a group's id and a member's name."""
        name = f"{INSTANCE_LOCK_PREFIX}{staging_hash(group)}.{staging_hash(instance)}"
        super().__init__(folder, name, f"{instance!r} of group {group!r}")
