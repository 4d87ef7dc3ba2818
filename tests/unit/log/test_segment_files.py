"""Segments are listed at one moment, though files are renamed meanwhile."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kafkalog.errors import LogDirectoryError, UnknownTopicOrPartitionError
from kafkalog.streaming.log import segments as segment_files
from kafkalog.streaming.log.segments import list_base_offsets

if TYPE_CHECKING:
    from pathlib import Path


def _touch(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).touch()


def test_only_live_logs_are_segments(tmp_path: Path) -> None:
    _touch(tmp_path, f"{5:020d}.log", f"{0:020d}.log", f"{7:020d}.log.deleted")
    _touch(tmp_path, f"{8:020d}.log.cleaned", f"{9:020d}.index", "9.log", "log")
    assert list_base_offsets(tmp_path) == [0, 5]


def test_a_folder_that_is_gone_is_an_unknown_partition(tmp_path: Path) -> None:
    _touch(tmp_path, "file")
    for missing in ("missing", "file"):
        with pytest.raises(UnknownTopicOrPartitionError, match=missing):
            list_base_offsets(tmp_path / missing)


def test_a_folder_that_changes_is_listed_until_two_listings_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename while a folder is read may show neither the old name nor the new one."""
    whole = [f"{base:020d}.log" for base in (0, 5, 9)]
    seen = iter([whole[:1], whole[:2], whole, whole, []])
    monkeypatch.setattr(segment_files, "_list", lambda _: next(seen))
    assert list_base_offsets(tmp_path) == [0, 5, 9]
    assert next(seen) == []


def test_a_folder_that_changes_at_each_rest_is_listed_twice_between_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a cleaner leaves it that renames more often than the rests are long."""
    changes = iter(range(4))
    bases = [0]

    def names(_: Path) -> list[str]:
        bases.extend(change + 1 for change in [next(changes, None)] if change is not None)
        return [f"{base:020d}.log" for base in bases]

    def rest(seconds: float) -> None:
        if seconds:
            bases.append(bases[-1] + 1)

    monkeypatch.setattr(segment_files, "_list", names)
    monkeypatch.setattr(segment_files.system, "sleep", rest)
    assert list_base_offsets(tmp_path) == bases


def test_a_folder_at_rest_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(tmp_path, (1_000_000_000, 1_000_000_000))
    seen = iter([[f"{0:020d}.log"]])
    monkeypatch.setattr(segment_files, "_list", lambda _: next(seen))
    assert list_base_offsets(tmp_path) == [0]


def test_a_folder_that_never_rests_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = iter(range(10**6))
    monkeypatch.setattr(segment_files, "_list", lambda _: [str(next(seen))])
    monkeypatch.setattr(segment_files, "_RESTS_SECONDS", (0.0,) * 9)
    with pytest.raises(LogDirectoryError, match="changes so fast that 9 listings"):
        list_base_offsets(tmp_path)
