"""Who holds a group's lock, of threads and processes."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kafkalog.streaming.groups.member_files import GROUP_LOCK_PREFIX, MEMBER_PREFIX
from kafkalog.streaming.groups.membership import GroupLock

if TYPE_CHECKING:
    from pathlib import Path

TRIES = """
import sys
from pathlib import Path
from kafkalog.streaming.groups.membership import GroupLock
with GroupLock(Path(sys.argv[1]), "g") as lock:
    print(lock.is_held)
"""


def another_process_gets_it(folder: Path) -> bool:
    done = subprocess.run(
        [sys.executable, "-c", TRIES, str(folder)], capture_output=True, text=True, check=True
    )
    return done.stdout.strip() == "True"


@pytest.mark.parametrize("has_ofd_locks", [True, False])
def test_one_holds_it_until_it_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_ofd_locks: bool
) -> None:
    if not has_ofd_locks:
        monkeypatch.setattr("kafkalog.streaming.store.locks._OFD_SETLK", None)
    with GroupLock(tmp_path, "g") as first:
        assert first.is_held
        with GroupLock(tmp_path, "g") as second, GroupLock(tmp_path, "h") as of_another_group:
            assert (second.is_held, of_another_group.is_held) == (False, True)
        assert not another_process_gets_it(tmp_path), "who did not get it has not lost it for us"
    assert not first.is_held
    assert another_process_gets_it(tmp_path)


def test_a_forked_child_does_not_keep_it(tmp_path: Path) -> None:
    with GroupLock(tmp_path, "g"):
        done, go_on = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(go_on)
            os.read(done, 1)
            os._exit(0)
        os.close(done)
    try:
        assert another_process_gets_it(tmp_path)
    finally:
        os.close(go_on)
        os.waitpid(child, 0)


def test_its_file_is_none_of_those_that_are_opened_without_a_mutex() -> None:
    assert not GROUP_LOCK_PREFIX.startswith(MEMBER_PREFIX)
