"""A small file is the old one or the new one, never something between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kafkalog.files.atomic import TEMPORARY_SUFFIX, prepare, publish, write_atomically

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("fsync", [True, False])
def test_a_file_is_created_and_replaced(tmp_path: Path, fsync: bool) -> None:
    path = tmp_path / "state"
    write_atomically(path, b"one", fsync=fsync)
    write_atomically(path, b"two", fsync=fsync)
    assert path.read_bytes() == b"two"
    assert [path] == list(tmp_path.iterdir())


def test_what_is_prepared_is_not_visible_before_it_is_published(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_atomically(path, b"one")
    prepare(path, b"two")
    assert path.read_bytes() == b"one"
    publish(path)
    assert path.read_bytes() == b"two"


def test_a_reader_keeps_the_file_that_it_opened(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_atomically(path, b"one")
    with path.open("rb") as opened:
        write_atomically(path, b"two")
        assert opened.read() == b"one"


def test_a_link_in_place_of_the_temporary_file_is_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    path = tmp_path / "state"
    path.with_name("state" + TEMPORARY_SUFFIX).symlink_to(victim)
    write_atomically(path, b"new")
    assert victim.read_bytes() == b"mine"
    assert path.read_bytes() == b"new"


def test_a_link_in_place_of_the_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    path = tmp_path / "state"
    path.symlink_to(victim)
    write_atomically(path, b"new")
    assert victim.read_bytes() == b"mine"
    assert not path.is_symlink()


@pytest.mark.parametrize("suffix", ["", TEMPORARY_SUFFIX])
def test_a_folder_in_the_place_of_either_file_is_named_with_what_to_do(
    suffix: str, tmp_path: Path
) -> None:
    path, folder = tmp_path / "state", tmp_path / f"state{suffix}"
    folder.mkdir()
    with pytest.raises(IsADirectoryError, match=r"in the place of this file; remove it.*") as said:
        write_atomically(path, b"new")
    assert said.value.filename == str(folder)
