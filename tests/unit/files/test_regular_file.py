"""Files are opened without being led astray."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

import pytest

from kafkalog.errors import LogDirectoryError
from kafkalog.files.open_file import peek_at
from kafkalog.files.regular import (
    create_exclusive,
    fsync_directory,
    fsync_file,
    make_directory,
    open_regular,
    read_regular,
    replace_end,
    sync,
    write_all,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def _dangling_link(path: Path) -> None:
    path.symlink_to(path.parent / "nothing")


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("plant", [_link, _dangling_link, _device, os.mkfifo, os.mkdir])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
def test_what_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, plant: Callable[[Path], None], flags: int
) -> None:
    path = tmp_path / "planted"
    plant(path)
    with pytest.raises(LogDirectoryError, match="planted"):
        open_regular(path, flags)


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "missing")


def test_a_file_larger_than_expected_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * 11)
    with pytest.raises(LogDirectoryError, match="11 bytes, expected at most 10"):
        read_regular(path, limit=10)
    assert read_regular(path, limit=11) == b"x" * 11


def test_a_new_file_never_takes_a_name_that_is_taken(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "link").symlink_to(target)
    with pytest.raises(FileExistsError):
        create_exclusive(tmp_path / "link")
    assert not target.exists()


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o775, 0o2770])
def test_modes_follow_the_folder_whatever_the_umask(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    folder.chmod(mode)
    before = os.umask(0o077)
    try:
        os.close(create_exclusive(folder / "file"))
        make_directory(folder / "partition")
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "file").stat().st_mode) == mode & 0o666
    assert stat.S_IMODE((folder / "partition").stat().st_mode) == mode


def test_groups_follow_the_folder(tmp_path: Path) -> None:
    # Root may give files to any group, others to those that they are in.
    others = [4711] if os.geteuid() == 0 else sorted({*os.getgroups()} - {os.getegid()})
    group = (others or [os.getegid()])[0]
    os.chown(tmp_path, -1, group)
    os.close(create_exclusive(tmp_path / "file"))
    make_directory(tmp_path / "partition")
    assert [(tmp_path / name).stat().st_gid for name in ("file", "partition")] == [group, group]


@pytest.mark.parametrize(
    ("position", "data", "expected"),
    [(0, b"", b""), (4, b"XY", b"0123XY"), (8, b"XYZ", b"01234567XYZ"), (10, b"", b"0123456789")],
)
def test_the_end_of_a_file_is_replaced(
    tmp_path: Path, position: int, data: bytes, expected: bytes
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    descriptor = os.open(path, os.O_RDWR)
    replace_end(descriptor, position, data)
    os.close(descriptor)
    assert expected == path.read_bytes()


def test_every_byte_is_written_though_a_write_stops_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, bytes(data)[:3], at))
    descriptor = create_exclusive(tmp_path / "file")
    write_all(descriptor, b"0123456789", 2)
    os.close(descriptor)
    fsync_directory(tmp_path)
    assert (tmp_path / "file").read_bytes() == b"\0\x000123456789"


def test_after_an_fsync_that_failed_the_next_one_has_all_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, content = tmp_path / "file", os.urandom(3_000_000)
    path.write_bytes(content)
    written: set[int] = set()
    own, pwrite = os.open(path, os.O_RDONLY), os.pwrite

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "the disk")

    def write(descriptor: int, data: bytes, position: int) -> int:
        count = pwrite(descriptor, data, position)
        if os.path.sameopenfile(descriptor, own):  # threads of other tests may still write
            written.update(range(position, position + count))
        return count

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        patch.setattr(os, "pwrite", write)
        with pytest.raises(OSError, match="the disk"):
            fsync_file(path)
        assert written == set(range(len(content)))
        assert path.read_bytes() == content
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="the disk"):
            fsync_file(path)
    written.clear()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", write)
        fsync_file(path)  # what could not be written again then is now
        assert written == set(range(len(content)))
        written.clear()
        fsync_file(path)
    os.close(own)
    assert not written


def test_a_file_that_is_only_read_can_be_synced_again_after_an_fsync_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "the disk")

    with path.open("rb") as file:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(OSError, match="the disk"):
                sync(file.fileno())
        sync(file.fileno())


def test_a_look_that_stops_short_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pread = tmp_path / "file", os.pread
    path.write_bytes(b"0123456789")
    with monkeypatch.context() as patch, path.open("rb") as file:
        patch.setattr(os, "pread", lambda file, count, at: pread(file, min(count, 3), at))
        assert peek_at(file.fileno(), 1, 8) == b"12345678"
        assert peek_at(file.fileno(), 8, 8) == b"89"
        assert peek_at(file.fileno(), 10, 8) == b""
