"""Copy bytes from one file to another without passing them through this process's memory.

If the file system can, the kernel copies, shares blocks (XFS, Btrfs) or asks the server to (NFS
4.2). A whole file gets a second name instead. What a file system can do is found out by trying.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Final

from kafkalog.files.regular import naming, write_all

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["copy_range", "try_to_link"]

_COPY_BYTES: Final = 1 << 20

_CANNOT_COPY_IN_KERNEL: Final = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}
)
_CANNOT_LINK: Final = frozenset(
    {errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP}
)


def copy_range(source: int, position: int, size: int, target: int, target_position: int) -> int:
    """Copy ``size`` bytes between two open files; return how many there were."""
    left = size
    while left:
        try:
            count = _copy_in_kernel(source, position, left, target, target_position)
        except OSError as error:
            if error.errno not in _CANNOT_COPY_IN_KERNEL:
                with naming(target):  # which of the two it was, the system does not tell
                    raise
            count = _copy_some(source, position, left, target, target_position)
        if count == 0:
            break
        position, target_position, left = position + count, target_position + count, left - count
    return size - left


def _copy_in_kernel(
    source: int, position: int, size: int, target: int, target_position: int
) -> int:
    if not hasattr(os, "copy_file_range"):  # Linux alone has it
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return os.copy_file_range(source, target, size, position, target_position)


def _copy_some(source: int, position: int, size: int, target: int, target_position: int) -> int:
    with naming(source):
        data = os.pread(source, min(size, _COPY_BYTES), position)
    write_all(target, data, target_position)
    return len(data)


def try_to_link(source: Path, target: Path) -> bool:
    """Give the file ``source`` a second name; return False if its file system cannot.

    Raises:
        FileExistsError: ``target`` is there already.
    """
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        return False
    return True
