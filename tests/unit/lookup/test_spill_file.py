"""The file for what a task cannot keep in memory: where it lies, and that nothing stays of it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kafkalog.errors import SpillError
from kafkalog.streaming.lookup import seen_keys as spill_file
from kafkalog.streaming.lookup.seen_keys import SpillFile


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the local directory."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    return tmp_path


@pytest.fixture(params=[True, False], ids=["unnamed", "removed at once"])
def _either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make files as file systems do that know files without a name, and as others do."""
    if not request.param:
        monkeypatch.delattr(os, "O_TMPFILE")


def data(size: int) -> np.ndarray:
    return np.arange(size, dtype=np.uint8)


@pytest.mark.usefixtures("_either_way")
def test_bytes_are_read_where_they_were_appended_and_no_name_is_seen(folder: Path) -> None:
    file = SpillFile()
    places = [file.append(data(size)) for size in (200, 0, 55)]
    assert (places, file.size) == ([0, 200, 200], 255)
    assert file.read(200, 55).tolist() == [*range(55)]
    assert file.read(150, 100).tolist() == [*range(150, 200), *range(50)]
    assert list(folder.iterdir()) == []
    file.close()
    file.close()


def test_a_name_that_a_killed_process_has_left_goes_with_the_next_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")
    (folder / f"{spill_file._PREFIX}left").touch()
    (folder / "blockmgr").mkdir()
    SpillFile().close()
    assert [path.name for path in folder.iterdir()] == ["blockmgr"]


def test_a_file_whose_name_somebody_else_removes_is_used_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")
    opened = os.open

    def open_then_remove(path: Any, flags: int, mode: int) -> int:
        descriptor = opened(path, flags, mode)
        Path(path).unlink()
        return descriptor

    monkeypatch.setattr(os, "open", open_then_remove)
    file = SpillFile()
    file.append(data(9))
    assert file.read(0, 9).tolist() == [*range(9)]
    file.close()


def test_a_directory_that_cannot_be_used_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{folder / 'gone'},{folder},{folder / 'gone too'}")
    for _ in range(4):
        SpillFile().close()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(folder / "gone"))
    with pytest.raises(SpillError, match=r"table\.memory: .*gone: No such file"):
        SpillFile()


def test_without_spark_it_lies_where_temporary_files_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    SpillFile().close()


def test_a_write_in_parts_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    written = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, view, at: written(fd, view[:7], at))
    file = SpillFile()
    file.append(data(100))
    assert file.read(0, 100).tolist() == [*range(100)]
    file.close()


def test_a_full_disk_is_an_error_of_one_line_that_says_where_and_what_to_do(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = SpillFile()
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(SpillError) as caught:
        file.append(data(100))
    text = str(caught.value)
    assert text.startswith(f"{folder}: cannot write 100 bytes that do not fit table.memory")
    assert "No space left on device; make room there" in text
    assert "\n" not in text
    file.close()


def test_a_file_that_somebody_has_cut_is_an_error() -> None:
    file = SpillFile()
    file.append(data(10))
    with pytest.raises(SpillError, match=r"cannot read 20 bytes .* has become shorter"):
        file.read(0, 20)
    file.close()


def test_a_process_that_is_killed_leaves_no_file(folder: Path) -> None:
    code = (
        "import os, numpy; from kafkalog.streaming.lookup.seen_keys import SpillFile; "
        "file = SpillFile(); file.append(numpy.ones(1 << 20, numpy.uint8)); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert list(folder.iterdir()) == []
