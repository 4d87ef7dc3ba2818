"""Open, read, write and copy the files of a log directory safely, whatever lies there."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kafkalog.errors import LogDirectoryError
from kafkalog.files.remote_path import RemotePath
from kafkalog.files.system import remembered
from kafkalog.files.timeouts import at

if TYPE_CHECKING:
    from collections.abc import Iterator


__all__ = [
    "close_quietly",
    "copy_range",
    "create_exclusive",
    "follow_folder",
    "fsync_directory",
    "fsync_file",
    "make_directory",
    "name_file",
    "naming",
    "open_known",
    "open_regular",
    "read_regular",
    "read_whole",
    "replace_end",
    "sync",
    "try_to_link",
    "write_all",
]


# ----------------------------------------------------------------------------------------------
# Open the files of a log directory safely, whatever lies there.
#
# A folder may hold a FIFO, a device or a link under a name that we expect to be a plain file:
# opening a FIFO blocks until somebody writes, a device may never end, and a link leads out of the
# folder. So every open says ``O_NOFOLLOW | O_NONBLOCK`` and is followed by a look at what was
# opened.


_SAFE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITTEN_AGAIN_BYTES: Final = 1 << 20
_NO_REGULAR_FILE: Final = frozenset({errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENODEV})


@contextmanager
def naming(descriptor: int) -> Iterator[None]:
    """Let errors of the system name the open file, as they do only where a call has its path.

    Where the system does not tell what a descriptor is (``/proc``, man 5 proc), they stay as they
    are.
    """
    try:
        yield
    except OSError as error:
        name_file(error, descriptor)
        raise


def name_file(error: OSError, descriptor: int) -> None:
    """Let an error of the system name the open file, as :func:`naming` does."""
    if error.filename is None:
        with suppress(OSError):
            error.filename = str(Path(f"/proc/self/fd/{descriptor}").readlink())


def open_regular(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """Open an existing regular file and return its descriptor, which the caller closes.

    Raises:
        FileNotFoundError: nothing has that name.
        LogDirectoryError: it is a link, FIFO, device, socket or folder, or may not be opened.
    """
    return open_known(path, flags)[0]


def open_known(path: Path | str, flags: int = os.O_RDONLY) -> tuple[int, os.stat_result]:
    """Open as :func:`open_regular`; also return what was opened, as it was then.

    Raises:
        FileNotFoundError, LogDirectoryError: as there.
    """
    try:
        descriptor = os.open(path, flags | _SAFE)
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise LogDirectoryError(f"{path}: may not be opened: {error.strerror}") from error
    except OSError as error:
        if error.errno not in _NO_REGULAR_FILE:
            raise
        raise LogDirectoryError(
            f"{path}: is a link, FIFO, device or folder where a regular file is expected; "
            "remove it or name another log directory"
        ) from error
    try:
        found = os.fstat(descriptor)
    except OSError as error:
        close_quietly(descriptor)
        raise OSError(error.errno, error.strerror, str(path)) from error
    if not stat.S_ISREG(found.st_mode):
        close_quietly(descriptor)
        raise LogDirectoryError(
            f"{path}: is a FIFO, device or folder where a regular file is expected; "
            "remove it or name another log directory"
        )
    return descriptor, found


def read_regular(path: Path | str, *, limit: int) -> bytes:
    """Read a small file whole.

    Raises:
        FileNotFoundError: nothing has that name.
        LogDirectoryError: not a regular file, not readable, or longer than ``limit`` bytes.
    """
    if isinstance(path, RemotePath):
        return path.read_small(limit)
    with at(path):
        return _read_small(path, limit)


def _read_small(path: Path | str, limit: int) -> bytes:
    descriptor, found = open_known(path)
    try:
        return _read_whole(descriptor, found.st_size, path, limit)
    finally:
        close_quietly(descriptor)


def read_whole(descriptor: int, path: Path, *, limit: int) -> bytes:
    """Read a small file that was just opened under this path.

    What is appended meanwhile is not read.

    Raises:
        LogDirectoryError: it is not readable, or longer than ``limit`` bytes.
    """
    return _read_whole(descriptor, os.fstat(descriptor).st_size, path, limit)


def _read_whole(descriptor: int, size: int, path: Path | str, limit: int) -> bytes:
    if size > limit:
        raise LogDirectoryError(f"{path}: has {size} bytes, expected at most {limit}")
    data = b""
    with naming(descriptor):
        while len(data) < size and (part := os.read(descriptor, size - len(data))):
            data += part
    return data


def create_exclusive(path: Path) -> int:
    """Create a file that must not exist yet, open for reading and writing.

    Its mode and group follow its folder's, so that all who share a log directory can continue
    working in it whatever their umask. A group that we may not give is left as it is.

    Raises:
        FileExistsError: the name is taken, by a dangling link too.
    """
    folder = path.parent.stat()
    mode = _mode_of_file(folder)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFE, mode)
    try:
        _follow_folder(descriptor, folder, mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_directory(path: Path) -> None:
    """Create a folder whose mode and group follow its parent's.

    Raises:
        FileExistsError: the name is taken.
    """
    parent = path.parent.stat()
    mode = stat.S_IMODE(parent.st_mode) & ~stat.S_ISVTX
    path.mkdir(mode)
    if _follows(path.lstat(), parent, mode):
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _SAFE)
    try:
        _follow_folder(descriptor, parent, mode)
    finally:
        os.close(descriptor)


def follow_folder(descriptor: int, folder: Path) -> None:
    """Give an open file the mode and group that :func:`create_exclusive` would give it there."""
    found = folder.stat()
    _follow_folder(descriptor, found, _mode_of_file(found))


def _mode_of_file(folder: os.stat_result) -> int:
    return folder.st_mode & 0o666


def _follows(made: os.stat_result, folder: os.stat_result, mode: int) -> bool:
    """Whether what was just made has its mode and group already, by the umask of the process."""
    return made.st_gid == folder.st_gid and stat.S_IMODE(made.st_mode) == mode


def _follow_folder(descriptor: int, folder: os.stat_result, mode: int) -> None:
    made = os.fstat(descriptor)
    if _follows(made, folder, mode):
        return
    if made.st_gid != folder.st_gid:
        with suppress(PermissionError), naming(descriptor):
            os.fchown(descriptor, -1, folder.st_gid)
    # File systems without modes refuse; there is nothing to follow then.
    with suppress(PermissionError), naming(descriptor):
        os.fchmod(descriptor, mode)


def write_all(descriptor: int, data: bytes | memoryview, position: int) -> None:
    """Write every byte at ``position``: a single ``pwrite`` may stop short."""
    view = memoryview(data).cast("B")
    with naming(descriptor):
        while view:
            written = os.pwrite(descriptor, view, position)
            view = view[written:]
            position += written


def replace_end(descriptor: int, position: int, data: bytes) -> None:
    """Let an open file end with ``data`` at ``position``.

    It is written first and cut after that: a reader sees the old bytes there or the new ones.
    """
    write_all(descriptor, data, position)
    if os.fstat(descriptor).st_size != position + len(data):
        with naming(descriptor):
            os.ftruncate(descriptor, position + len(data))


def sync(descriptor: int) -> None:
    """Make the content of an open file, or the names in an open folder, durable.

    REQUIRES: nobody else writes to the file.

    Raises:
        OSError: it may be lost; asking again would not tell.
    """
    failed = remembered(_FailedSyncs)
    with naming(descriptor):
        if failed and _number(descriptor) in failed:
            _write_again(descriptor, failed)
        try:
            os.fsync(descriptor)
        except OSError:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                with suppress(OSError):
                    _write_again(descriptor, failed)
            raise


def close_quietly(descriptor: int) -> None:
    """Close a file, and ignore an error: it was only read, is synced, or its content is not needed.

    A network file system may report an error at close (close(2)). The file is closed all the same,
    and what was synced is there.
    """
    with suppress(OSError):
        os.close(descriptor)


class _FailedSyncs(set[tuple[int, int]]):
    """The files that are to be written again, since an fsync of this process failed."""


def _number(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _write_again(descriptor: int, failed: _FailedSyncs) -> None:
    """Write what a file has over itself, after an fsync that failed.

    Linux counts pages as written then that never reached the disk: the next fsync would leave them
    out, and succeed. Others may have left some of them to the system. While memory has them, this
    lets the next fsync write them. A file that is open for reading only is left to who writes it.
    """
    number, position = _number(descriptor), 0
    failed.add(number)
    while data := os.pread(descriptor, _WRITTEN_AGAIN_BYTES, position):
        try:
            write_all(descriptor, data, position)
        except OSError as error:
            if error.errno == errno.EBADF:
                break
            raise
        position += len(data)
    failed.discard(number)


def fsync_file(path: Path, *, missing_ok: bool = False) -> None:
    """Make the content of a regular file durable; its name is once its folder is.

    Raises:
        FileNotFoundError: nothing has that name, and not ``missing_ok``.
        LogDirectoryError: not a regular file.
        OSError: the content may be lost; asking again would not tell.
    """
    try:
        descriptor = open_regular(path, os.O_RDWR)
    except FileNotFoundError:
        if missing_ok:
            return
        raise
    try:
        sync(descriptor)
    finally:
        close_quietly(descriptor)


def fsync_directory(path: Path) -> None:
    """Make the names in a folder durable: a new or renamed file is not before this."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    finally:
        close_quietly(descriptor)


# ----------------------------------------------------------------------------------------------
# Copy bytes from one file to another without passing them through this process's memory.
#
# If the file system can, the kernel copies, shares blocks (XFS, Btrfs) or asks the server to (NFS
# 4.2). A whole file gets a second name instead. What a file system can do is found out by trying.


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
