"""Who cleans a partition: a lock of its own, and the files that a cleaner writes.

Both lie in the root of the log directory, where readers and brokers pass over them:

``.kafkalog.cleaner.<hash>``
    is locked by whoever cleans a partition, and names him; ``<hash>`` is of the partition. It goes
    when he is done.
``.kafkalog.cleaned.<hash>.<uuid>.<segment>``
    is what he has written. What nobody's lock belongs to is an orphan: its writer was killed.

The lock says nothing about the partition's folder: only a session may change that.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Self

from kafkalog.errors import LockTimeoutError
from kafkalog.files.system import system
from kafkalog.streaming.store.locks import DirectoryLocks

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.model import TopicPartition

__all__ = ["CLEANED_PREFIX", "CLEANER_PREFIX", "CleanerBusyError", "CleanerLock", "remove_orphans"]

CLEANER_PREFIX: Final = ".kafkalog.cleaner."
CLEANED_PREFIX: Final = ".kafkalog.cleaned."

_HASH_BYTES: Final = 8


class CleanerBusyError(LockTimeoutError):
    """Another cleaner works on the partition."""


class CleanerLock(DirectoryLocks):
    """The right to clean one partition, from ``with`` to its end.

    ``holder`` is what others are told who would clean it, too. What an earlier cleaner has left is
    removed at the beginning, and what this one has, at the end.
    """

    def __init__(self, log_dir: Path, digest: str, *, holder: str) -> None:
        super().__init__([log_dir], holder=holder, timeout_ms=0)
        (self._log_dir,) = self.directories
        self._file = self._log_dir / f"{CLEANER_PREFIX}{digest}"
        self._written = f"{CLEANED_PREFIX}{digest}."

    @classmethod
    def of(cls, log_dir: Path, key: TopicPartition, *, holder: str) -> Self:
        """Make the lock of a partition."""
        digest = blake2b(str(key).encode(), digest_size=_HASH_BYTES).hexdigest()
        return cls(log_dir, digest, holder=f"{holder} of {key}")

    def __enter__(self) -> Self:
        """Take the lock.

        Raises:
            CleanerBusyError: another cleaner has it.
            LogDirectoryError: the file system has no locks.
        """
        with ExitStack() as undo:
            holder = self._take(self._file, undo)
            if holder is not None:
                raise CleanerBusyError(f"it is cleaned at this moment by {holder}")
            self._sign(self._held[-1])
            self._remove_written()
            self._undo = undo.pop_all()
        return self

    def close(self) -> None:
        """Remove what was written and is not needed, and give the lock back."""
        with suppress(OSError):
            self._remove_written()
            self._file.unlink()  # still locked: who waits for it notices, and makes another one
        super().close()

    def new_prefix(self) -> str:
        """Return what the names of new files begin with."""
        return f"{self._written}{system.random_id().hex}."

    def _remove_written(self) -> None:
        for path in self._log_dir.iterdir():
            if path.name.startswith(self._written):
                path.unlink(missing_ok=True)


def remove_orphans(log_dir: Path) -> None:
    """Remove what cleaners have left that were killed, of any partition."""
    names = [path.name for path in log_dir.iterdir()]
    prefixes = (CLEANER_PREFIX, CLEANED_PREFIX)
    found = {
        name.removeprefix(prefix).partition(".")[0]
        for name in names
        for prefix in prefixes
        if name.startswith(prefix)
    }
    for digest in sorted(found):
        with suppress(CleanerBusyError), CleanerLock(log_dir, digest, holder="a cleaner's end"):
            pass
