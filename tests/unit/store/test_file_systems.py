"""Where is written, and where only read."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.sinking import Writer, rows, values_of

from kafkalog.checkpoints.commit_state import LOCK_FILE
from kafkalog.errors import LogDirectoryError
from kafkalog.files.system import system
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.log.appender import PartitionAppender
from kafkalog.streaming.log.recovery import cut_segment, start_segment
from kafkalog.streaming.store.file_systems import (
    Mount,
    check_file_system,
    find_mount,
    is_shared,
    refusal,
)
from kafkalog.streaming.store.locks import DirectoryLocks
from kafkalog.streaming.store.log_set import LogSet
from kafkalog.streaming.store.nodes import Node

MOUNTINFO = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw
30 27 0:40 / /data rw,relatime - nfs4 server:/data rw,vers=4.2,local_lock=none,addr=10.0.0.1
31 30 0:41 / /data/old rw,relatime - nfs server:/old rw,vers=3,nolock,local_lock=all
32 27 0:42 / /with\040space rw - fuse.s3fs s3fs rw,user_id=0
33 27 0:43 / /twice rw - ext4 /dev/vdb rw
34 33 0:44 / /twice rw - xfs /dev/vdc rw
"""


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "memory", {})


def pretend(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, options: str = "rw"
) -> None:
    text = f"1 0 0:1 / / rw - {kind} somewhere {options}\n"
    monkeypatch.setattr(system, "mounts", lambda: text)


@pytest.mark.parametrize(
    ("folder", "point", "kind"),
    [
        ("/var/log", "/", "ext4"),
        ("/data/kafka", "/data", "nfs4"),
        ("/data", "/data", "nfs4"),
        ("/database", "/", "ext4"),
        ("/data/old/kafka", "/data/old", "nfs"),
        ("/with space/x", "/with space", "fuse.s3fs"),
        ("/twice/x", "/twice", "xfs"),
    ],
)
def test_the_mount_of_a_folder_is_the_last_of_the_deepest(
    folder: str, point: str, kind: str
) -> None:
    found = find_mount(Path(folder), MOUNTINFO)
    assert found is not None
    assert (found.point, found.kind) == (point, kind)


def test_lines_that_are_none_are_left_out() -> None:
    assert find_mount(Path("/x"), "nonsense\n1 2 3 - ext4\n\n") is None


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ext4", "rw"),
        ("xfs", "rw"),
        ("overlay", "rw,lowerdir=/a"),
        ("tmpfs", "rw"),
        ("nfs4", "rw,vers=4.1,local_lock=none"),
        ("ceph", "rw"),
        ("fuse.ceph-fuse", "rw"),
        ("lustre", "rw,flock"),
        ("gfs2", "rw"),
        ("gpfs", "rw"),
        ("one-that-nobody-knows", "rw"),
    ],
)
def test_file_systems_whose_locks_hold_are_written_to(kind: str, options: str) -> None:
    assert refusal(Mount("/", kind, frozenset(options.split(",")))) is None


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("nfs", "rw,vers=3", "vers=4"),
        ("nfs4", "rw,local_lock=posix", "without local_lock"),
        ("lustre", "rw,localflock", "option flock"),
        ("9p", "rw", "locks"),
        ("gfs2", "rw,localflocks", "without localflocks"),
        ("beegfs", "rw,cfgFile=/etc/beegfs.conf", "this machine only, .*tuneUseGlobalFileLocks"),
        ("ocfs2", "rw", "cluster stack"),
        ("orangefs", "rw", "or none"),
        ("fuse.glusterfs", "rw", "lost its locks, and is not told"),
        ("cifs", "rw", "locks"),
        ("vfat", "rw", "loss of power"),
        ("fuse.s3fs", "rw", "object stores"),
        ("fuse.rclone", "rw", "object stores"),
        ("fuse", "rw", "object stores"),
    ],
)
def test_other_mounts_are_refused_with_type_and_reason(
    kind: str, options: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, tmp_path, kind, options)
    with pytest.raises(LogDirectoryError, match=f"type {kind} .*read and not written.*{reason}"):
        Writer(tmp_path / "log", topic="t").ensure()
    assert list((tmp_path / "log").iterdir()) == []


def test_on_an_unknown_file_system_a_lock_is_tried_out_and_other_machines_are_thought_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pretend(monkeypatch, tmp_path, "one-that-nobody-knows")
    (tmp_path / "log").mkdir()
    for _ in range(2):
        check_file_system(tmp_path / "log")
    assert list((tmp_path / "log").iterdir()) == []
    assert is_shared(tmp_path / "log")
    (told,) = caplog.messages
    assert "type one-that-nobody-knows, and whether its locks keep out" in told


@pytest.mark.parametrize(
    ("kind", "shared"),
    [("ext4", False), ("fuse.zfs", False), ("nfs4", True), ("gfs2", True), ("gpfs", True)],
)
def test_what_other_machines_may_write_to_is_known_by_its_type(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, shared: bool
) -> None:
    pretend(monkeypatch, tmp_path, kind)
    assert is_shared(tmp_path) is shared


def test_locks_that_keep_nobody_out_are_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, tmp_path, "one-that-nobody-knows")
    (tmp_path / "log").mkdir()
    monkeypatch.setattr(fcntl, "lockf", lambda *_: None)
    with pytest.raises(LogDirectoryError, match="do not keep another process out"):
        check_file_system(tmp_path / "log")
    assert list((tmp_path / "log").iterdir()) == []


class PowerCutError(BaseException):
    """Ends a commit without letting it clear up."""


def test_where_hosts_share_files_a_log_goes_on_in_a_new_segment_behind_an_unfinished_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, tmp_path, "nfs4", "rw,local_lock=none")
    folder = tmp_path / "log"
    writer = Writer(folder, topic="t")
    writer.write(0, rows(["a"]))
    assert is_shared(folder)

    def cut(*_: object, **__: object) -> None:
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr(LogSet, "publish", cut)
        with pytest.raises(PowerCutError):
            writer.write(1, rows(["late"]))
    late = (folder / "t-0" / f"{0:020d}.log").read_bytes()
    Writer(folder, run="run-2", topic="t").write(1, rows(["b"]))
    # The host that was taken for dead gets its bytes through after all.
    (folder / "t-0" / f"{0:020d}.log").write_bytes(late)
    assert [path.name for path in sorted((folder / "t-0").glob("*.log"))] == [
        f"{0:020d}.log",
        f"{1:020d}.log",
    ]
    assert values_of([folder], "t") == {0: ["a", "b"]}


def test_where_hosts_share_files_each_unfinished_commit_of_several_is_kept_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, tmp_path, "nfs4", "rw,local_lock=none")
    folder = tmp_path / "log"
    Writer(folder, topic="t").write(0, rows(["a"]))
    cut_off(Writer(folder, run="run-1", topic="t"), monkeypatch, "first")
    late = []
    for run, value in enumerate(["second", "third"], 2):
        cut_off(Writer(folder, run=f"run-{run}", topic="t"), monkeypatch, value)
        late += [(path.open("r+b"), path.read_bytes()) for path in sorted(folder.glob("t-0/*1.*"))]
    assert len(late) == 6
    Writer(folder, run="run-4", topic="t").write(1, rows(["b"]))
    # The hosts that were taken for dead get their bytes through after all.
    for file, data in late:
        with file:
            file.write(data)
    assert values_of([folder], "t") == {0: ["a", "b"]}
    assert Writer(folder, run="run-4", topic="t").write(2, rows(["c"])).appended
    assert values_of([folder], "t") == {0: ["a", "b", "c"]}


def test_where_hosts_share_files_a_host_that_wakes_up_late_does_not_open_the_file_of_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = with_an_empty_segment(monkeypatch, tmp_path)
    late, apply = Writer(folder, run="run-2", topic="t"), PartitionAppender.apply
    segment = folder / "t-0" / f"{1:020d}.log"

    def sleep_meanwhile(*given: object) -> None:
        start_segment(folder / "t-0", 1)  # as one who has the locks by now, and rolls this back
        apply(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(PartitionAppender, "apply", sleep_meanwhile)
        with pytest.raises(LogDirectoryError, match=r"1\.log: is another file than when"):
            late.write(1, rows(["late"]))
    assert segment.stat().st_size == 0
    Writer(folder, run="run-3", topic="t").write(1, rows(["b"]))
    assert values_of([folder], "t") == {0: ["a", "b"]}


def test_where_hosts_share_files_a_recovery_that_wakes_up_late_cuts_no_file_of_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = with_an_empty_segment(monkeypatch, tmp_path)
    cut_off(Writer(folder, run="run-2", topic="t"), monkeypatch, "second")
    segment = folder / "t-0" / f"{1:020d}.log"

    def sleep_meanwhile(*given: Any, **named: Any) -> None:
        start_segment(folder / "t-0", 1)  # as one who has the locks by now, and commits
        segment.write_bytes(b"committed")
        cut_segment(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr("kafkalog.streaming.store.recovery.rollback.cut_segment", sleep_meanwhile)
        with pytest.raises(LogDirectoryError, match=r"1\.log: is another file than when"):
            recover([str(folder)])
    assert segment.read_bytes() == b"committed"


def with_an_empty_segment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Let a log on a shared file system end in an empty segment, as after a recovery."""
    pretend(monkeypatch, tmp_path, "nfs4", "rw,local_lock=none")
    folder = tmp_path / "log"
    Writer(folder, topic="t").write(0, rows(["a"]))
    cut_off(Writer(folder, run="run-1", topic="t"), monkeypatch, "first")
    recover([str(folder)])
    return folder


def cut_off(writer: Writer, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Let a commit of batch 1 end before it is published."""

    def cut(*_: object, **__: object) -> None:
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr(LogSet, "publish", cut)
        with pytest.raises(PowerCutError):
            writer.write(1, rows([value]))


def test_a_recovery_that_started_a_new_segment_may_be_cut_off_and_done_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, tmp_path, "nfs4", "rw,local_lock=none")
    folder = tmp_path / "log"
    writer = Writer(folder, topic="t")
    writer.write(0, rows(["a"]))

    def cut(*_: object, **__: object) -> None:
        raise PowerCutError

    with monkeypatch.context() as patch:
        patch.setattr(LogSet, "publish", cut)
        with pytest.raises(PowerCutError):
            writer.write(1, rows(["b"]))
    with monkeypatch.context() as patch:
        patch.setattr(Node, "withdraw", cut)
        with pytest.raises(PowerCutError):
            writer.write(1, rows(["b"]))
    writer.write(1, rows(["b"]))
    assert values_of([folder], "t") == {0: ["a", "b"]}


def test_a_recovery_that_loses_its_locks_replaces_no_segment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, tmp_path, "nfs4", "rw,local_lock=none")
    folder = tmp_path / "log"
    writer = Writer(folder, topic="t")
    writer.write(0, rows(["a"]))
    cut_off(Writer(folder, topic="t"), monkeypatch, "b")

    def lost(*_: object) -> None:
        raise LogDirectoryError("the lock was lost")

    def cut_and_lose(*arguments: object, **named: object) -> None:
        cut_segment(*arguments, **named)  # type: ignore[arg-type]
        monkeypatch.setattr(DirectoryLocks, "_prove", lost)

    monkeypatch.setattr("kafkalog.streaming.store.recovery.rollback.cut_segment", cut_and_lose)
    with pytest.raises(LogDirectoryError, match="was lost"):
        writer.write(1, rows(["b"]))
    # Another host may have its rows there by now.
    assert not (folder / "t-0" / f"{1:020d}.log").exists()


def test_a_lock_that_a_server_has_taken_away_is_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(monkeypatch, tmp_path, "nfs4", "rw,local_lock=none")
    folder = tmp_path / "log"
    folder.mkdir()
    with DirectoryLocks([folder], holder="me", timeout_ms=1000) as locks:
        locks.verify()
        text = (folder / LOCK_FILE).read_text()
        assert text.startswith("me, process")

        def lost(*_: object) -> int:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(os, "fsync", lost)
        with pytest.raises(LogDirectoryError, match="was lost"):
            locks.verify()


UNMOUNTED = """
import subprocess, sys
import pyarrow as pa
import kafkalog
from kafkalog.errors import LogDirectoryError

disk = sys.argv[1]

def append() -> str:
    try:
        kafkalog.append(f"{disk}/log", "t", pa.table({"value": ["x"]}), options={"flush": "os"})
    except LogDirectoryError as error:
        return str(error)
    return "appended"

subprocess.run(["mount", "-t", "tmpfs", "none", disk], check=True)
print(append())
subprocess.run(["umount", disk], check=True)
print(append())
subprocess.run(["mount", "-t", "tmpfs", "none", disk], check=True)
print(append())
"""


def test_no_log_begins_where_the_disk_of_this_process_was_unmounted(tmp_path: Path) -> None:
    may = os.geteuid() == 0 and shutil.which("unshare")
    assert may, "only root on Linux may give a process file systems of its own"
    command = ["unshare", "-m", sys.executable, "-c", UNMOUNTED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, without, another = done.stdout.splitlines()
    assert first == another == "appended"
    assert without.startswith(
        f"log directory {tmp_path}/log was on the file system mounted at {tmp_path}"
    )
    assert not any(tmp_path.iterdir())
