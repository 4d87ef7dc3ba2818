from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from kafkalog.files.system import remembered
from kafkalog.files.watch import Watch, Watched, _FolderEvents, name_changes, watch_names

if TYPE_CHECKING:
    from pathlib import Path


def settled(path: Path) -> None:
    """Wait until the change time of a file lies behind the step of the clock that set it."""
    while time.time_ns() - path.stat().st_ctime_ns < 60_000_000:
        time.sleep(0.01)


def test_a_file_is_looked_at_once_and_then_only_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.write_text("1")
    settled(file)
    watched = Watched([file], file.read_text)
    assert watched.refresh()
    assert not watched.refresh()
    file.write_text("22")
    assert watched.refresh()
    assert watched.value == "22"


def test_a_file_that_changed_just_now_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.write_text("1")
    watch = Watch(file)
    assert watch.changed()
    assert watch.changed()  # a second change within one step of the clock would not show
    settled(file)
    assert watch.changed()
    assert not watch.changed()


def test_a_file_that_is_replaced_by_an_equal_one_has_changed(tmp_path: Path) -> None:
    file, other = tmp_path / "state", tmp_path / "other"
    file.write_text("1")
    other.write_text("1")
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    settled(other)
    watch = Watch(file)
    watch.changed()
    other.rename(file)
    assert watch.changed()


def test_a_missing_file_is_noticed_when_it_appears(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "state")
    assert watch.changed()
    assert not watch.changed()
    (tmp_path / "state").touch()
    assert watch.changed()


def test_every_file_of_a_value_is_looked_at(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "ab"]
    for file in files:
        file.write_text(file.name)
        settled(file)
    watched = Watched(files, lambda: [file.read_text() for file in files])
    assert watched.refresh()
    assert not watched.refresh()
    watched.forget()
    assert watched.refresh()
    assert not watched.refresh()


def test_nothing_is_known_of_a_folder_whose_disk_was_unmounted(tmp_path: Path) -> None:
    """That event comes without a name."""
    watch = watch_names(str(tmp_path))
    assert name_changes(watch) is None
    (tmp_path / "t-0").mkdir()
    assert name_changes(watch) == [("t-0", True)]
    events = remembered(_FolderEvents)
    events._note(watch, 0x2000, "")
    events._note(watch, 0x8000, "")
    assert name_changes(watch) is None
