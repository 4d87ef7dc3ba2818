from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from tests.support.alarms import interrupt_at
from tests.support.held_locks import held_elsewhere
from tests.support.interrupting import AlarmError

from kafkalog.checkpoints.broker import LOCK
from kafkalog.checkpoints.commit_state import LOCK_FILE
from kafkalog.errors import LockTimeoutError, LogDirectoryError
from kafkalog.streaming.store import locks as locks_module
from kafkalog.streaming.store.locks import DirectoryLocks, check_no_broker, check_unused

if TYPE_CHECKING:
    from pathlib import Path


def locks(*directories: Path, timeout_ms: int = 100) -> DirectoryLocks:
    return DirectoryLocks(directories, holder="query 4711", timeout_ms=timeout_ms)


def test_a_directory_held_by_another_writer_is_refused_naming_the_holder(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path / LOCK_FILE):
        (tmp_path / LOCK_FILE).write_text("query 42, process 7 on host\n")
        with pytest.raises(LockTimeoutError, match=r"100 ms by query 42, process 7 on host"):
            locks(tmp_path).__enter__()
    with locks(tmp_path):
        pass


def test_nothing_is_left_in_a_directory_that_a_broker_holds(tmp_path: Path) -> None:
    free, held = tmp_path / "free", tmp_path / "held"
    for folder in (free, held):
        folder.mkdir()
    with held_elsewhere(held / LOCK):
        with pytest.raises(LogDirectoryError, match="a broker"):
            locks(free, held).__enter__()
        with pytest.raises(LogDirectoryError, match="a broker"):
            check_no_broker(held, timeout_ms=100)
        assert [path.name for path in held.iterdir()] == [LOCK]


def test_a_directory_held_by_a_broker_is_refused_without_waiting(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path / LOCK):
        with pytest.raises(LogDirectoryError, match="a broker"):
            locks(tmp_path, timeout_ms=3_600_000).__enter__()
        with held_elsewhere(tmp_path / LOCK_FILE):
            pass  # our own lock was given back


def test_the_holder_leaves_its_name_in_the_file(tmp_path: Path) -> None:
    with locks(tmp_path):
        text = (tmp_path / LOCK_FILE).read_text()
    assert text.startswith(f"query 4711, process {os.getpid()} on ")


def test_other_processes_are_kept_out_while_the_locks_are_held(tmp_path: Path) -> None:
    attempt = (
        "import sys\nfrom pathlib import Path\n"
        "from kafkalog.streaming.store.locks import DirectoryLocks\n"
        "DirectoryLocks([Path(sys.argv[1])], holder='other', timeout_ms=50).__enter__()\n"
    )
    command = [sys.executable, "-c", attempt, str(tmp_path)]
    with locks(tmp_path):
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "LockTimeoutError" in refused.stderr
    subprocess.run(command, capture_output=True, check=True)


def test_threads_of_one_process_are_kept_apart(tmp_path: Path) -> None:
    seen: list[str] = []

    def other() -> None:
        try:
            locks(tmp_path).__enter__()
        except LockTimeoutError as error:
            seen.append(str(error))

    with locks(tmp_path):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(seen) == 1
    assert "another thread of this process" in seen[0]
    with locks(tmp_path):
        pass


def test_a_lock_file_that_was_deleted_is_noticed(tmp_path: Path) -> None:
    with locks(tmp_path) as held:
        held.verify()
        (tmp_path / LOCK).unlink()
        (tmp_path / LOCK).touch()
        with pytest.raises(LogDirectoryError, match="deleted or replaced"):
            held.verify()


def test_a_lock_file_that_is_replaced_before_it_is_locked_is_not_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that stops removes its file; the next one locks another."""
    try_lock = locks_module._try_lock

    def lock_too_late(held: locks_module._Held) -> bool:
        monkeypatch.setattr(locks_module, "_try_lock", try_lock)
        held.path.unlink()
        held.path.touch()
        return try_lock(held)

    monkeypatch.setattr(locks_module, "_try_lock", lock_too_late)
    with locks(tmp_path) as held:
        held.verify()


def test_links_to_one_directory_are_locked_once_by_their_real_path(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with locks(tmp_path / "link", tmp_path / "b"):
        assert (tmp_path / "a" / LOCK_FILE).exists()
        assert (tmp_path / "b" / LOCK).exists()


def test_a_link_in_place_of_a_lock_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LogDirectoryError, match="is a link"):
        locks(tmp_path).__enter__()
    assert not (tmp_path / "elsewhere").exists()


def test_a_look_for_a_broker_takes_and_loses_no_lock(tmp_path: Path) -> None:
    check_no_broker(tmp_path, timeout_ms=100)
    with held_elsewhere(tmp_path / LOCK), pytest.raises(LogDirectoryError, match="a broker"):
        check_no_broker(tmp_path, timeout_ms=100)
    with locks(tmp_path):
        check_no_broker(tmp_path, timeout_ms=100)
        taken = [sys.executable, "-c", TAKE, str(tmp_path / LOCK)]
        assert subprocess.run(taken, check=False, capture_output=True).returncode != 0


def test_a_look_for_writers_that_was_cut_off_anywhere_keeps_nobody_out(tmp_path: Path) -> None:
    """A signal's exception comes at each place in turn where Python looks for signals."""
    place, is_cut_off = 0, True
    while is_cut_off:
        try:
            interrupt_at(place, lambda: check_unused(tmp_path))
            is_cut_off = False
        except AlarmError:
            place += 1
        with DirectoryLocks([tmp_path], holder="a writer", timeout_ms=0):
            pass
    assert place > 3


def test_the_lock_of_a_writer_that_is_dying_is_no_brokers(tmp_path: Path) -> None:
    (tmp_path / LOCK_FILE).touch()
    with held_elsewhere(tmp_path / LOCK) as process:
        threading.Timer(0.2, process.kill).start()
        with locks(tmp_path):
            pass


def test_another_writer_at_work_is_not_taken_for_a_broker(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path / LOCK_FILE), held_elsewhere(tmp_path / LOCK):
        check_no_broker(tmp_path, timeout_ms=100)


TAKE = """
import fcntl, os, sys
fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
"""


def test_a_forked_child_gets_the_locks_once_its_parent_gives_them_back(tmp_path: Path) -> None:
    with DirectoryLocks([tmp_path], holder="the parent", timeout_ms=0):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with DirectoryLocks([tmp_path], holder="the child", timeout_ms=30_000):
                    code = 0
            finally:
                os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def is_free(path: Path) -> bool:
    """Tell whether another process, a broker say, gets a POSIX lock."""
    command = [sys.executable, "-c", TAKE, str(path)]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_copying_a_log_directory_in_the_process_drops_no_lock(tmp_path: Path) -> None:
    with locks(tmp_path) as held:
        for name in (LOCK, LOCK_FILE):
            (tmp_path / name).read_bytes()
            assert not is_free(tmp_path / name)
        held.verify()
    assert is_free(tmp_path / LOCK)


def test_where_only_posix_locks_are_a_dropped_one_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kafkalog.streaming.store.locks._OFD_SETLK", None)
    with locks(tmp_path) as held:
        (tmp_path / LOCK).read_bytes()
        assert is_free(tmp_path / LOCK)
        held.verify()
        assert not is_free(tmp_path / LOCK)
        (tmp_path / LOCK).read_bytes()
        with (
            held_elsewhere(tmp_path / LOCK),
            pytest.raises(LogDirectoryError, match="was lost, and another process holds it"),
        ):
            held.verify()


def test_a_forked_child_keeps_no_lock_of_its_parent(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with locks(tmp_path):
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        assert not is_free(tmp_path / LOCK)
    try:
        assert is_free(tmp_path / LOCK)
    finally:
        os.close(writer)
        os.waitpid(child, 0)
        os.close(reader)


def test_a_link_that_is_moved_while_a_commit_waits_for_its_lock_is_noticed(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "a")
    waiting = locks(link)
    link.unlink()
    link.symlink_to(tmp_path / "b")
    with pytest.raises(LogDirectoryError, match=r"led to .*a, whose locks were taken, and leads"):
        waiting.__enter__()
    with locks(link) as held:
        link.unlink()
        link.symlink_to(tmp_path / "a")
        with pytest.raises(LogDirectoryError, match=r"leads to .*a now"):
            held.verify()
    with locks(tmp_path / "a", tmp_path / "b"):
        pass
