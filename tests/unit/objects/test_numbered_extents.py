"""Extents are numbered as they come: whole, or piece by piece in any order, and never otherwise."""

from __future__ import annotations

import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from queue import Queue
from threading import Event, Lock
from time import sleep
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kafkalog
from kafkalog.checkpoints.bucket_state import Extent, object_path
from kafkalog.errors import CheckpointError, CorruptRecordError, DataLossError
from kafkalog.files import open_file
from kafkalog.files.objects import FolderObjects
from kafkalog.files.system import system
from kafkalog.streaming.commit.staging import in_objects
from kafkalog.streaming.objects import numbered_extents
from kafkalog.streaming.objects.numbered_extents import NumberedExtents, number_batches
from kafkalog.streaming.records.batch_layout import HEADER_SIZE, OVERHEAD

if TYPE_CHECKING:
    from pathlib import Path

    from kafkalog.streaming.objects.bucket_store import BucketRoot

LOG = "a" * 32
SEGMENT = "log/t-0/00000000000000000000.log"
RANGE = 400
"""Bytes of a piece, here."""

batches = st.lists(
    st.tuples(st.integers(HEADER_SIZE, 1500), st.integers(0, 5)), min_size=1, max_size=20
)
"""Sizes of batches in bytes, and their last offset deltas."""


class CountedObjects(FolderObjects):
    """Objects that note which ranges were asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ranges: list[tuple[int, int]] = []

    def get_range(self, name: str, position: int, size: int) -> bytes | memoryview | None:
        """Note it, and answer."""
        self.ranges.append((position, size))
        return super().get_range(name, position, size)


@pytest.fixture(autouse=True)
def _short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbered_extents, "_ONE_RANGE_BYTES", RANGE)


def batches_of(shapes: list[tuple[int, int]]) -> bytes:
    """Return headers of batches with other bytes behind them."""
    parts = []
    for number, (size, delta) in enumerate(shapes):
        data = bytearray([number % 251]) * size
        data[8:12] = (size - OVERHEAD).to_bytes(4, "big")
        data[23:27] = delta.to_bytes(4, "big")
        parts.append(bytes(data))
    return b"".join(parts)


def extent_of(data: bytes, shapes: list[tuple[int, int]]) -> Extent:
    """Return the extent of batches that begin at byte 7 of an object."""
    return Extent("data/x", 7, len(data), 50, sum(delta + 1 for _, delta in shapes), 0, 3)


def stored(folder: Path, data: bytes) -> tuple[CountedObjects, NumberedExtents]:
    """Return a store that holds those bytes, and what reads them."""
    objects = CountedObjects(folder)
    objects.delete([object_path(LOG, "data/x")])
    objects.put(object_path(LOG, "data/x"), b"before." + data + b"behind")
    return objects, NumberedExtents(objects, "s3://bucket")


@given(shapes=batches, cuts=st.lists(st.tuples(st.integers(0), st.integers(1)), max_size=12))
def test_any_range_of_an_extent_has_the_bytes_of_the_whole(
    shapes: list[tuple[int, int]],
    cuts: list[tuple[int, int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    data = batches_of(shapes)
    extent = extent_of(data, shapes)
    whole = bytes(number_batches(data, extent, "x"))
    _, extents = stored(tmp_path_factory.mktemp("any"), data)
    for start, size in [(start % len(data), size % len(data) + 1) for start, size in cuts]:
        end = min(start + size, len(data))
        assert extents.read(LOG, extent, start, end, seen_s=0) == whole[start:end]
        if size % 3 == 0:
            extents._kept.clear()
    assert extents.read(LOG, extent, 0, len(data), seen_s=0) == whole


@pytest.mark.parametrize("bytes_of_it", [RANGE // 2, 3 * RANGE])
def test_what_lies_there_after_a_log_was_set_back_is_not_taken_for_what_lay_there(
    tmp_path: Path, bytes_of_it: int
) -> None:
    shapes = [(bytes_of_it // 2, 1), (bytes_of_it // 2, 2)]
    old = batches_of(shapes)
    objects, extents = stored(tmp_path, old)
    lost = extent_of(old, shapes)
    assert extents.read(LOG, lost, 0, len(old), seen_s=0) == number_batches(old, lost, "x")
    new = bytearray(old)
    new[-1] ^= 1
    objects.put(object_path(LOG, "data/x"), b"before." + new + b"behind")
    found = lost._replace(base_offset=40, max_timestamp=1)
    assert extents.read(LOG, found, 0, len(new), seen_s=0) == number_batches(new, found, "x")


@given(shapes=batches)
def test_an_extent_that_is_read_from_its_start_comes_once(
    shapes: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = batches_of(shapes)
    extent = extent_of(data, shapes)
    objects, extents = stored(tmp_path_factory.mktemp("once"), data)
    for start in range(0, len(data), 100):
        extents.read(LOG, extent, start, min(start + 100, len(data)), seen_s=0)
    assert objects.ranges[0][0] == 7
    ends = [position + size for position, size in objects.ranges]
    assert [position for position, _ in objects.ranges[1:]] == ends[:-1]
    assert ends[-1] == 7 + len(data)
    assert max(size for _, size in objects.ranges) <= max(RANGE, *(size for size, _ in shapes))


@given(shapes=batches, where=st.integers(0), how=st.sampled_from(["size", "delta", "records"]))
def test_other_batches_than_the_log_says_are_corrupt(
    shapes: list[tuple[int, int]],
    where: int,
    how: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    data = bytearray(batches_of(shapes))
    extent = extent_of(data, shapes)
    number = where % len(shapes)
    at = sum(size for size, _ in shapes[:number])
    if how == "size":
        data[at + 8 : at + 12] = (where % (1 << 31)).to_bytes(4, "big")
        if data == batches_of(shapes):
            return
    elif how == "delta":
        data[at + 23 : at + 27] = (shapes[number][1] + 1).to_bytes(4, "big")
    else:
        extent = extent._replace(records=extent.records + 1)
    _, extents = stored(tmp_path_factory.mktemp("other"), bytes(data))
    with pytest.raises(
        CorruptRecordError, match=r"s3://bucket/_kafkalog/.*: the batches from byte"
    ):
        extents.read(LOG, extent, 0, len(data), seen_s=0)


def test_an_object_that_goes_amid_its_pieces_is_a_loss(tmp_path: Path) -> None:
    shapes = [(100, 0)] * 20
    data = batches_of(shapes)
    extent = extent_of(data, shapes)
    objects, extents = stored(tmp_path, data)
    extents.read(LOG, extent, 0, 100, seen_s=system.time_ns() / 1e9)
    objects.delete([object_path(LOG, "data/x")])
    assert len(extents.read(LOG, extent, 0, RANGE, seen_s=0)) == RANGE
    with pytest.raises(DataLossError, match="offsets 50 to 70 of a partition, is gone"):
        extents.read(LOG, extent, 0, len(data), seen_s=0)


def test_two_objects_of_a_segment_come_at_once_and_each_once(
    objects: FolderObjects, root: BucketRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbered_extents, "_ONE_RANGE_BYTES", 8 << 20)
    monkeypatch.setattr(open_file, "_FIRST_BYTES", 4 << 20)  # as after the first few pieces
    rows = pa.table({"value": [random.Random(7).randbytes(100_000)] * 26})
    for _ in range(6):  # 2.6 MB each: pieces of 4 MiB begin and end within them
        kafkalog.append(str(root), "t", rows)
    asked: list[str] = []
    coming, most, counting = 0, 0, Lock()
    get_range = objects.get_range

    def counted(name: str, position: int, size: int) -> bytes | memoryview | None:
        nonlocal coming, most
        asked.append(name)
        with counting:
            coming += 1
            most = max(most, coming)
        sleep(0.05)
        with counting:
            coming -= 1
        return get_range(name, position, size)

    monkeypatch.setattr(objects, "get_range", counted)
    assert kafkalog.read(str(root), "t").read_all().num_rows == 156
    assert most == 2
    assert len(asked) == len(set(asked)) == 6


@pytest.mark.parametrize("range_bytes", [RANGE, 8 << 20])
def test_what_another_thread_fetches_is_waited_for_last_and_comes_once(
    objects: FolderObjects, root: BucketRoot, monkeypatch: pytest.MonkeyPatch, range_bytes: int
) -> None:
    monkeypatch.setattr(numbered_extents, "_ONE_RANGE_BYTES", range_bytes)
    monkeypatch.setattr(in_objects, "MAX_INLINE_BYTES", 10)
    for _ in range(2):
        kafkalog.append(str(root), "t", pa.table({"value": [b"x" * 1000]}))
    store = root.open_store()
    handle, status = store.open(SEGMENT)
    first = status.st_size // 2
    is_asked, may_come = Event(), Event()
    asked: Queue[str] = Queue()
    get_range = objects.get_range

    def blocked(name: str, position: int, size: int) -> bytes | memoryview | None:
        is_first = not is_asked.is_set()
        asked.put(name)
        is_asked.set()
        assert not is_first or may_come.wait(60)
        return get_range(name, position, size)

    monkeypatch.setattr(objects, "get_range", blocked)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(store.fetch, handle, SEGMENT, 0, first)
        assert is_asked.wait(60)
        both = pool.submit(store.fetch, handle, SEGMENT, 0, 2 * first)
        assert len({asked.get(timeout=60), asked.get(timeout=60)}) == 2
        may_come.set()
        assert bytes(both.result())[:first] == one.result()
    assert asked.qsize() == (2 if range_bytes == RANGE else 0)  # the rest of their batches


@pytest.mark.parametrize("minutes", [0, 20])
def test_an_object_that_is_gone_since_the_bucket_was_set_back_is_told_as_that(
    root: BucketRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    rows = pa.table({"value": ["1"]})
    kafkalog.append(str(root), "t", rows)
    shutil.copytree(tmp_path / "bucket", tmp_path / "copy")
    kafkalog.append(str(root), "t", rows)
    store = root.open_store()
    handle, status = store.open(SEGMENT)
    shutil.rmtree(tmp_path / "bucket")
    shutil.copytree(tmp_path / "copy", tmp_path / "bucket")
    for name in ("boottime", "monotonic"):  # after ten of them nothing that was seen is trusted
        clock = getattr(system, name)
        monkeypatch.setattr(system, name, lambda clock=clock: clock() + 60 * minutes)
    with pytest.raises(CheckpointError, match="the bucket was set back"):
        store.fetch(handle, SEGMENT, 0, status.st_size)
