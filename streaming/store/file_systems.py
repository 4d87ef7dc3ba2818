"""File systems that may be written to: those whose locks and renames hold.

=============================  ====================================================================
local (ext4, XFS, tmpfs, …)    yes
NFS 4, CephFS, Lustre,         yes, where locks reach the server or the other nodes; a takeover
GFS2, GPFS                     from another host starts new segments, see
                               :mod:`~kafkalog.streaming.store.recovery.rollback`
NFS 2 and 3, CIFS, 9p, FUSE    no: locks are local to a machine, or none; object stores copy
                               instead of renaming
BeeGFS, OrangeFS, OCFS2,       no: locks are local to a machine, or none, or are as a setting or a
GlusterFS                      cluster stack has it, which a mount does not show
FAT, exFAT, NTFS               no: a loss of power may leave neither the old nor the new name
anything else                  yes, if a lock of one process keeps another one out, as one that
                               other hosts may share; a warning says that nothing is known of these
=============================  ====================================================================

A clustered file system may have locks that keep out processes of the same machine only. It passes
any trial that one machine can make. So such systems have to be known by their types. Source: Linux
``fs/gfs2/file.c``, ``fs/ocfs2/inode.c``, ``fs/lustre``; BeeGFS ``tuneUseGlobalFileLocks``, which is
off unless set.

The mount that a folder is on is found in ``/proc/self/mountinfo`` (``man 5 proc``). Where there is
none, as on macOS, every file system counts as one of the last line.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.commit_state import STAGED_PREFIX
from kafkalog.errors import LogDirectoryError
from kafkalog.files.regular import close_quietly, create_exclusive
from kafkalog.files.remote_path import RemotePath
from kafkalog.files.system import remembered, system
from kafkalog.files.timeouts import at

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "Mount",
    "check_file_system",
    "find_mount",
    "is_shared",
    "mount_of",
    "note_mounts",
    "refusal",
    "refuse_unmounted",
]

_LOGGER: Final = logging.getLogger("kafkalog.sink")

_LOCAL: Final = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2"}
    | {"overlay", "ramfs", "reiserfs", "rootfs", "tmpfs", "ubifs", "xfs", "zfs"}
)
_SHARED: Final = frozenset(
    {"nfs4", "ceph", "fuse.ceph", "fuse.ceph-fuse", "lustre", "gfs2", "gpfs"}
)
_LOCAL_FUSE: Final = frozenset({"fuse.fuse-overlayfs", "fuse.zfs"})

_LOCAL_LOCKS: Final = "its locks keep out writers of this machine only, or none"
_REFUSED: Final = {
    **dict.fromkeys(
        {"cifs", "smb3", "smbfs", "9p", "virtiofs", "vboxsf", "vmhgfs", "prl_fs"}
        | {"afs", "coda", "ncpfs", "orangefs", "pvfs2"},
        _LOCAL_LOCKS,
    ),
    **dict.fromkeys(
        ("beegfs", "fhgfs"),
        "its locks keep out writers of this machine only, unless every client is set to "
        "tuneUseGlobalFileLocks=true, which the mount does not show",
    ),
    "ocfs2": "whether its locks keep out writers of other machines depends on the cluster stack, "
    "which the mount does not show; with o2cb they do not",
    "fuse.glusterfs": "a client that was cut off from its servers has lost its locks, and is not "
    "told",
    **dict.fromkeys(
        ("vfat", "msdos", "exfat", "ntfs", "ntfs3", "fuseblk"),
        "a renamed file may be gone under both names after a loss of power",
    ),
}
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """Where a folder is mounted from: the type of file system, and its options."""

    point: str
    kind: str
    options: frozenset[str]


def find_mount(folder: Path, mountinfo: str) -> Mount | None:
    """Find the mount that ``folder``, a real path, is on; ``mountinfo`` is the text of the file."""
    best: Mount | None = None
    for mount in _mounts(mountinfo):
        inside = mount.point == "/" or folder.is_relative_to(mount.point)
        # Of several at one point the last one hides the others.
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def _mounts(mountinfo: str) -> Iterable[Mount]:
    for line in mountinfo.splitlines():
        before, dash, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if dash and len(fields) > 5 and len(rest) > 2:
            options = {*fields[5].split(","), *rest[2].split(",")}
            point = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4])
            yield Mount(point, rest[0], frozenset(options))


def is_shared(folder: Path) -> bool:
    """Whether other machines may write to the same files, kept out by nothing but locks.

    That counts for file systems that nothing is known of, too, and for object stores.
    """
    if isinstance(folder, RemotePath):
        return True
    mount = mount_of(folder)
    return mount is not None and mount.kind not in _LOCAL | _LOCAL_FUSE


def refusal(mount: Mount) -> str | None:
    """Say why a mount is not written to; None if nothing speaks against it."""
    kind = mount.kind
    remedy = _remedy(kind, mount.options)
    if remedy is not None:
        return f"{_LOCAL_LOCKS}; {remedy}"
    if kind in _REFUSED:
        return _REFUSED[kind]
    if kind.startswith("fuse") and kind not in _SHARED | _LOCAL_FUSE:
        return "file systems in user space, such as those over object stores, rarely have locks"
    return None


def _remedy(kind: str, options: frozenset[str]) -> str | None:
    """Say how to mount a file system whose locks are local as it is mounted now."""
    local = [option for option in options if option.startswith("local_lock=")]
    found = {
        "nfs": (True, "mount it with vers=4"),
        "nfs4": (local not in ([], ["local_lock=none"]), "mount it without local_lock"),
        "lustre": ("flock" not in options, "mount it with the option flock"),
        "gfs2": ("localflocks" in options, "mount it without localflocks"),
    }
    is_local, remedy = found.get(kind, (False, ""))
    return remedy if is_local else None


def check_file_system(folder: Path) -> None:
    """Refuse a folder on a file system whose locks or renames do not hold.

    Raises:
        LogDirectoryError: saying which, and why.
    """
    device = folder.stat().st_dev
    fit = remembered(_Devices).fit
    if device in fit:
        return
    mount = mount_of(folder)
    reason = None if mount is None else refusal(mount)
    if mount is not None and reason is not None:
        raise LogDirectoryError(
            f"log directory {folder} is on a file system of type {mount.kind} (mounted at "
            f"{mount.point}), which can be read and not written: {reason}"
        )
    if mount is None or mount.kind not in _LOCAL:
        _check_locks(folder)
    if mount is not None and mount.kind not in _LOCAL | _LOCAL_FUSE | _SHARED:
        _LOGGER.warning(
            "log directory %s is on a file system of type %s, and whether its locks keep out "
            "writers of other machines is not known: let only this machine write to it",
            folder,
            mount.kind,
        )
    fit.add(device)


def mount_of(folder: Path) -> Mount | None:
    """Find the mount that a folder is on; None where the system does not tell."""
    with at(folder):
        device = folder.stat().st_dev
        known = remembered(_Devices).mounts
        if device not in known:
            text = system.mounts()
            if text is None:
                return None
            known[device] = find_mount(Path(os.path.realpath(folder)), text)
        return known[device]


def note_mounts(folders: Iterable[Path]) -> None:
    """Remember where the file systems are mounted that have a log, as these folders do now."""
    known = remembered(_Devices).of_logs
    for folder in folders:
        device = folder.stat().st_dev
        if folder not in known or known[folder][0] != device:
            mount = find_mount(Path(os.path.realpath(folder)), system.mounts() or "")
            known[folder] = device, None if mount is None else mount.point


def refuse_unmounted(folder: Path) -> None:
    """Refuse to begin a log below a mount point from which the file system has gone that had one.

    Another file system there, or a folder that was emptied, may have a new log.

    Raises:
        LogDirectoryError: nothing is mounted where the log of this process was.
    """
    _, point = remembered(_Devices).of_logs.get(folder, (0, None))
    text = system.mounts() if point is not None else None
    if text is not None and all(mount.point != point for mount in _mounts(text)):
        raise LogDirectoryError(
            f"log directory {folder} was on the file system mounted at {point}, where this process "
            "has found a log, and nothing is mounted there now. Nothing was written. Mount it; or "
            "start the process again, and a new log begins here"
        )


class _Devices:
    """What was found out about devices, which stays as it is as long as they are mounted."""

    def __init__(self) -> None:
        self.fit: set[int] = set()
        self.mounts: dict[int, Mount | None] = {}
        self.of_logs: dict[Path, tuple[int, str | None]] = {}
        """The device of each folder in which this process has found a log, and its mount point."""


_TRY: Final = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(3)
"""
_KEPT_OUT: Final = 3


def _check_locks(folder: Path) -> None:
    """Lock a file, and see that another process is kept out.

    Raises:
        LogDirectoryError: it is not, or files cannot be locked at all.
    """
    path = folder / f"{STAGED_PREFIX}{'0' * 16}.0.{system.random_id().hex}"
    descriptor = create_exclusive(path)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        command = [sys.executable, "-I", "-S", "-c", _TRY, str(path)]
        code = subprocess.run(command, check=False, capture_output=True).returncode
    except OSError as error:
        raise LogDirectoryError(
            f"log directory {folder}: files cannot be locked there: {error}"
        ) from error
    finally:
        close_quietly(descriptor)
        path.unlink()
    if code != _KEPT_OUT:
        raise LogDirectoryError(
            f"log directory {folder} is on a file system whose locks do not keep another process "
            "out: it can be read and not written, since two writers would destroy each other's "
            "records"
        )
