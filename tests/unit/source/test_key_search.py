"""Look-ups with the cache give what they give without: a changed file never answers from it."""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.compacting import compacted, updates, writer
from tests.support.counted_reads import counted_reads
from tests.support.indexed_logs import write_indexed_segment
from tests.support.logs import Row, batch_bytes, write_segment
from tests.support.transactions import marker, producer_batch

import kafkalog
from kafkalog.errors import CorruptRecordError
from kafkalog.files.system import system
from kafkalog.streaming.lookup import lookup as key_hashes
from kafkalog.streaming.lookup import lookup as key_search
from kafkalog.streaming.lookup.block_cache import block_cache

KEYS = ("a", "b", "c", "d")
OFF = {"cache.memory": 0}


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "memory", {})


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    believe_stamps(monkeypatch)


def believe_stamps(patch: pytest.MonkeyPatch) -> None:
    """Let files count as unchanged for long; whoever changes one has to call ``next_tick``."""
    patch.setattr(system, "time_ns", lambda: time.time_ns() + 10**10)


def next_tick() -> None:
    """Wait until a kernel gives files another time."""
    time.sleep(0.012)


def in_small_pieces(patch: pytest.MonkeyPatch, largest: int = 4096) -> None:
    patch.setattr(key_search, "FIRST_PIECE", largest // 4)
    patch.setattr(key_search, "PIECE", largest)
    patch.setattr(key_hashes, "PIECE", largest)


class Log:
    """A partition of one segment that is changed as brokers, operators and file systems do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.batches: list[list[Row]] = []

    def write(self, batches: list[list[Row]], *, new_file: bool) -> None:
        self.batches = batches
        target = self.folder / "t-0"
        source = Path(tempfile.mkdtemp(dir=self.folder)) if target.exists() else target
        write_indexed_segment(source, 0, [(rows, 0) for rows in batches], interval=60)
        for path in source.iterdir() if source != target else ():
            if new_file:
                path.replace(target / path.name)
            else:
                (target / path.name).write_bytes(path.read_bytes())
        next_tick()

    def newest(self, key: str) -> bytes | None:
        rows = [row for rows in self.batches for row in rows if row.key == key.encode()]
        return rows[-1].value if rows else None

    def check(self) -> None:
        for key in KEYS:
            found = kafkalog.get(self.folder, "t", key)
            assert (found and found["value"]) == self.newest(key), key


ROWS = st.lists(
    st.builds(Row, st.sampled_from([None, b"1", b"2"]), st.sampled_from([b"a", b"b", b"c"])),
    min_size=1,
    max_size=3,
)
BATCHES = st.lists(ROWS, min_size=1, max_size=4)
NEXT_KEY = {b"a": b"b", b"b": b"d", b"c": b"a", b"d": b"c"}


def rewritten(batches: list[list[Row]], kept: int) -> list[list[Row]]:
    """Give the rows after so many batches other keys: their batches look the same from outside."""
    others = [[Row(row.value, NEXT_KEY[row.key or b""]) for row in rows] for rows in batches[kept:]]
    return batches[:kept] + others


@settings(deadline=None, max_examples=6)
@given(BATCHES, st.lists(st.tuples(st.integers(0, 3), BATCHES, st.booleans()), max_size=3))
def test_a_log_that_was_appended_to_truncated_or_swapped_is_never_answered_for_from_before(
    first: list[list[Row]], changes: list[tuple[int, list[list[Row]], bool]]
) -> None:
    for believed in (False, True):
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            patch.setattr(system, "memory", {})
            in_small_pieces(patch, 512)
            if believed:
                believe_stamps(patch)
            log = Log(Path(folder))
            log.write(first, new_file=True)
            log.check()
            for kept, more, new_file in changes:
                log.write(rewritten(log.batches, kept), new_file=new_file)
                log.check()
                log.write(log.batches[: kept + 1] + more, new_file=new_file)
                log.check()


@pytest.mark.parametrize("new_file", [False, True])
@pytest.mark.usefixtures("settled")
def test_a_log_rewritten_with_rows_of_the_same_size_answers_for_itself(
    tmp_path: Path, *, new_file: bool
) -> None:
    log = Log(tmp_path)
    log.write([[Row(b"1", b"a")], [Row(b"1", b"b")]], new_file=True)
    log.check()
    before = block_cache().stats()
    log.write(rewritten(log.batches, 0), new_file=new_file)
    log.check()
    assert block_cache().stats().misses > before.misses or not new_file


def long_log(folder: Path, *, first: int = 0) -> Path:
    """Write ``t-0`` of 300 keys, ten of them in a batch, in some 40 KB."""
    rows = [[Row(b"x" * 100, b"k%d" % (first + 10 * n + i)) for i in range(10)] for n in range(30)]
    write_indexed_segment(folder / "t-0", 0, [(each, 0) for each in rows], interval=500)
    next_tick()
    return folder / "t-0" / f"{0:020d}.log"


@pytest.mark.usefixtures("settled")
def test_what_was_searched_once_is_not_read_again(tmp_path: Path) -> None:
    long_log(tmp_path)
    for _ in range(2):
        with counted_reads() as fetched:
            assert kafkalog.get(tmp_path, "t", "no such key") is None
    assert fetched[".log"] < 2000
    stats = block_cache().stats()
    assert stats.hits == stats.misses == stats.entries > 0
    assert stats.charge > 300 * 8
    with counted_reads() as fetched:
        assert kafkalog.get(tmp_path, "t", "k0", options=OFF) is not None
    assert fetched[".log"] > 35_000
    assert block_cache().stats() == stats


@pytest.mark.usefixtures("settled")
def test_a_log_that_grows_is_compared_and_not_decompressed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_pieces(monkeypatch)
    path = long_log(tmp_path)
    assert kafkalog.get(tmp_path, "t", "none") is None
    before = block_cache().stats()
    with path.open("ab") as file:
        file.write(batch_bytes(300, [Row(b"new", b"k7")]))
    next_tick()
    noted: list[object] = []
    monkeypatch.setattr(key_hashes._Noted, "append", lambda _, found: noted.append(found) or ())
    assert kafkalog.get(tmp_path, "t", "none") is None
    assert len(noted) < 5
    assert block_cache().stats().hits > before.entries - 5


@pytest.mark.usefixtures("settled")
def test_damage_in_the_batch_of_a_key_is_an_error_though_the_cache_knows_where_the_key_is(
    tmp_path: Path,
) -> None:
    path = long_log(tmp_path)
    assert kafkalog.get(tmp_path, "t", "none") is None
    data = bytearray(path.read_bytes())
    data[100:110] = b"\xff" * 10
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match=r"byte 0 \(offsets 0 to 9.*onCorruptRecord=skip"):
        kafkalog.get(tmp_path, "t", "k1")
    with pytest.raises(CorruptRecordError, match="byte 0"):
        kafkalog.get(tmp_path, "t", "none", options=OFF)
    assert kafkalog.get(tmp_path, "t", "k11") is not None
    assert kafkalog.get(tmp_path, "t", "k1", options={"onCorruptRecord": "skip"}) is None


@pytest.mark.usefixtures("settled")
def test_a_topic_that_was_recreated_is_not_answered_for_by_the_one_before(tmp_path: Path) -> None:
    for value in ("before", "after"):
        write_segment(tmp_path / "t-0", 0, batch_bytes(0, [Row(value.encode(), b"k")]))
        next_tick()
        found = kafkalog.get(tmp_path, "t", "k")
        assert found is not None
        assert found["value"] == value.encode()
        (tmp_path / "t-0").rename(tmp_path / f"was-{value}")


@pytest.mark.usefixtures("settled")
def test_a_cleaner_changes_no_answer(tmp_path: Path) -> None:
    into = writer(tmp_path)
    updates(into, [{"a": str(n), f"k{n}": "x"} for n in range(8)])
    for first in (8, 11):
        expected = [kafkalog.get(tmp_path, "t", key) for key in ("a", "k3", "k9", "none")]
        compacted(tmp_path)
        next_tick()
        assert [kafkalog.get(tmp_path, "t", k) for k in ("a", "k3", "k9", "none")] == expected
        updates(into, [{"a": "new", f"k{n}": "y"} for n in range(3)], first=first)


@pytest.mark.usefixtures("settled")
def test_aborted_rows_are_passed_over_though_the_cache_has_them(tmp_path: Path) -> None:
    aborted = producer_batch(1, 1, 7, key=b"k") + marker(2, 7, 0)
    data = batch_bytes(0, [Row(b"0", b"k")]) + aborted
    write_segment(tmp_path / "t-0", 0, data)
    next_tick()
    for level, value in (("read_uncommitted", b"1"), ("read_committed", b"0")) * 2:
        found = kafkalog.get(tmp_path, "t", "k", options={"kafka.isolation.level": level})
        assert found is not None
        assert found["value"] == value


@pytest.mark.parametrize("written_as", ["v0", "v1", "v2"])
@pytest.mark.usefixtures("settled")
def test_keys_are_found_in_compressed_batches_of_each_format(
    tmp_path: Path, written_as: str
) -> None:
    options = {"message.format": written_as, "compression.type": "gzip", "cleanup.policy": "delete"}
    for number in range(2):
        rows = pa.table({"key": ["a", "b", f"c{number}"], "value": [f"{number}"] * 3})
        kafkalog.append(tmp_path, "t", rows, options=options)
        next_tick()
    for _ in range(2):
        found = [kafkalog.get(tmp_path, "t", key) for key in ("a", "b", "c0", "c1", "c2")]
        offsets = [None if row is None else row["offset"] for row in found]
        assert offsets == [3, 4, 2, 5, None]
    assert block_cache().stats().hits > 5


def test_threads_look_up_in_one_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_pieces(monkeypatch)
    long_log(tmp_path)
    look_up = partial(kafkalog.get, tmp_path, "t", options={"cache.memory": "8k"})
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(look_up, [f"k{n}" for n in range(290, 300)] * 3))
    assert [row and row["key"] for row in found] == [b"k%d" % n for n in range(290, 300)] * 3


def test_a_long_search_does_not_push_out_the_end_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_pieces(monkeypatch)
    long_log(tmp_path)
    assert kafkalog.get(tmp_path, "t", "k1", options={"cache.memory": "16k"}) is not None
    stats = block_cache().stats()
    assert 0 < stats.entries + stats.evictions <= 8
    assert stats.misses > 8


def test_keys_are_found_wherever_a_segment_spans_more_offsets_than_an_int32_holds(
    tmp_path: Path,
) -> None:
    """As segments of brokers before 2.0 may."""
    far = 2**31 + 5
    rows = [(0, Row(b"old", b"k")), (far, Row(b"new", b"k")), (far + 1, Row(b"only", b"j"))]
    batches = b"".join(batch_bytes(offset, [row]) for offset, row in rows)
    write_segment(tmp_path / "t-0", 0, batches)
    for options in ({"readUpTo": "logEnd"}, {"readUpTo": "logEnd", **OFF}):
        for key, value in ((b"k", b"new"), (b"j", b"only")):
            found = kafkalog.get(tmp_path, "t", key, options=options)
            assert found is not None
            assert found["value"] == value
