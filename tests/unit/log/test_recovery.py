"""Segments are cut where their valid batches end, and indexes become what they were."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.log_files import (
    append,
    contents,
    cut,
    flip,
    grow_with_zeros,
    make_batches,
    scan,
)

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.log.recovery import (
    cut_segment,
    recover_segment,
    remove_segment,
)
from kafkalog.streaming.log.segment import LogSegment
from kafkalog.streaming.log.valid_batches import find_valid_end, valid_chunks
from kafkalog.streaming.options.topic_settings import LogConfig

if TYPE_CHECKING:
    from pathlib import Path

INTERVAL = 1000
CONFIG = LogConfig(index_interval_bytes=INTERVAL)


def _directory(parent: Path, batches: int = 40) -> Path:
    directory = parent / "flights-0"
    append(directory, make_batches(0, [5] * batches), CONFIG)
    return directory


def _file(directory: Path, suffix: str) -> Path:
    return directory / f"{0:020d}{suffix}"


@pytest.mark.parametrize("tail", [b"", b"t", b"torn" * 30, b"\0" * 5000, b"\xff" * 200])
def test_what_follows_the_last_valid_batch_is_cut(tmp_path: Path, tail: bytes) -> None:
    directory = _directory(tmp_path)
    before = contents(directory)
    with _file(directory, ".log").open("ab") as file:
        file.write(tail)
    for suffix in (".index", ".timeindex"):
        grow_with_zeros(_file(directory, suffix), 12000)
    end = recover_segment(directory, 0, index_interval_bytes=INTERVAL)
    assert contents(directory) == before
    assert (end.next_offset, end.problem is None) == (200, not tail)


def test_all_batches_behind_a_wrong_one_are_cut(tmp_path: Path) -> None:
    directory = _directory(tmp_path)
    _, table = scan(_file(directory, ".log").read_bytes())
    flip(_file(directory, ".log"), int(table.position[20]) + 70)
    end = recover_segment(directory, 0, index_interval_bytes=INTERVAL)
    assert end.problem is not None
    assert end.problem.position == end.position == table.position[20]
    (tmp_path / "expected").mkdir()
    assert contents(directory) == contents(_directory(tmp_path / "expected", 20))


def test_indexes_are_rebuilt_as_they_were_written(tmp_path: Path) -> None:
    directory = _directory(tmp_path)
    before = contents(directory)
    _file(directory, ".index").unlink()
    _file(directory, ".timeindex").write_bytes(b"wrong")
    recover_segment(directory, 0, index_interval_bytes=INTERVAL, fsync=False)
    assert contents(directory) == before


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 40), st.sampled_from(["", ".index", ".timeindex"]))
def test_a_segment_that_is_cut_is_what_it_was_at_that_size(
    tmp_path_factory: pytest.TempPathFactory, batches: int, lost: str
) -> None:
    directory = _directory(tmp_path_factory.mktemp("whole"))
    expected = _directory(tmp_path_factory.mktemp("part"), batches)
    if lost:
        _file(directory, lost).unlink()
    size = _file(expected, ".log").stat().st_size
    cut_segment(directory, 0, size, index_interval_bytes=INTERVAL, fsync=False)
    assert contents(directory) == contents(expected)


def test_cutting_inside_a_batch_is_an_error(tmp_path: Path) -> None:
    directory = _directory(tmp_path)
    with pytest.raises(CorruptRecordError):
        cut_segment(directory, 0, 100, index_interval_bytes=INTERVAL)


def test_cutting_again_changes_nothing(tmp_path: Path) -> None:
    directory = _directory(tmp_path)
    _, table = scan(_file(directory, ".log").read_bytes())
    for _ in range(2):
        cut_segment(directory, 0, int(table.position[7]), index_interval_bytes=INTERVAL)
    (tmp_path / "expected").mkdir()
    assert contents(directory) == contents(_directory(tmp_path / "expected", 7))


def test_readers_keep_the_index_that_they_have_open(tmp_path: Path) -> None:
    directory = _directory(tmp_path)
    with LogSegment(directory, 0) as segment:
        index = segment.offset_index()
        assert index is not None
        before = index.last_entry()
        recover_segment(directory, 0, index_interval_bytes=0)
        assert index.last_entry() == before


def test_a_removed_segment_leaves_nothing_but_the_others(tmp_path: Path) -> None:
    directory = _directory(tmp_path)
    before = contents(directory)
    for suffix in (".log", ".index", ".timeindex", ".txnindex"):
        (directory / f"{200:020d}{suffix}").write_bytes(b"x")
    remove_segment(directory, 200)
    remove_segment(directory, 200)
    assert contents(directory) == before


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_damage_ends_the_valid_batches_at_or_before_it(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    base = tmp_path_factory.getbasetemp() / "damaged" / "flights-0"
    if not base.exists():
        base.parent.mkdir()
        append(base, make_batches(0, [5] * 12), CONFIG)
    directory = tmp_path_factory.mktemp("copy") / "flights-0"
    shutil.copytree(base, directory)
    path = _file(directory, ".log")
    _, table = scan(path.read_bytes())
    size = path.stat().st_size
    position = data.draw(st.integers(0, size - 1))
    if data.draw(st.booleans()):
        flip(path, position, data.draw(st.integers(1, 255)))
    else:
        cut(path, position)
    whole = int((table.end_position <= position).sum())
    with LogSegment(directory, 0) as segment:
        end = find_valid_end(segment, 0)
        chunks = sum(len(chunk.table) for chunk in valid_chunks(segment, 0))
    # A base offset or a leader epoch is under no checksum: a flip there may go unseen.
    unseen = position < size and (position - int(table.position[min(whole, 11)])) < 16
    assert end.next_offset == 5 * whole or unseen
    assert chunks == whole or unseen
    recover_segment(directory, 0, index_interval_bytes=INTERVAL, fsync=False)
    assert path.stat().st_size == end.position
