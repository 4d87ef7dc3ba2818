"""Keys on their way to disk and back, beside a dict."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalog.errors import SpillError
from kafkalog.streaming.lookup import seen_keys as spilled_keys
from kafkalog.streaming.lookup.seen_keys import SeenKeys, SpilledKeys, share_of
from kafkalog.streaming.records.row_buffers import FoundRecords

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SEED = 0x2BCDEF0123456789
SMALLEST = 1 << 16
Record = tuple[bytes | None, bool]
"""A key, and whether it has a value."""


def found(records: Sequence[Record], first: int) -> FoundRecords:
    lengths = np.array([-1 if key is None else len(key) for key, _ in records], np.int64)
    sizes = np.maximum(lengths, 0)
    data = np.frombuffer(b"".join(key or b"" for key, _ in records) + b"\0", np.uint8)
    offsets = np.arange(first, first + len(records), dtype=np.int64)
    values = np.array([0 if has_value else -1 for _, has_value in records], np.int64)
    zeros = np.zeros(len(records), np.int64)
    starts = np.cumsum(sizes) - sizes
    return FoundRecords(
        *(data, offsets, zeros, zeros.astype(np.int32), starts, lengths, zeros, values)
    )


def told(
    records: Sequence[Record], block: int, memory: int, share: int = 0, shares: int = 1
) -> Iterator[list[int]]:
    """Take records from the last one on; gives the newest in memory, and then those spilled."""
    keys = share_of(share, shares)
    seen, spilled = SeenKeys(keys, SEED, memory, gives_up=False), SpilledKeys(keys, memory // 4)
    in_memory: list[int] = []
    for first in reversed(range(0, len(records), block)):
        one = found(records[first : first + block], first)
        where = (one.source, one.key_starts, one.key_lengths)
        hashes = seen.hashes(*where)
        in_memory += one.offsets[seen.add(*where, one.offsets, hashes)].tolist()
        if seen.left:
            spilled.add(one, hashes, seen.unknown(*where, hashes))
    yield in_memory
    if spilled:
        offsets = spilled.newest(SEED, SMALLEST, tombstones=False)
        for low in range(len(records), -1, -max(1, len(records) // 5)):
            taken = offsets.take(low).tolist()
            assert taken == sorted(taken)
            assert all(low <= offset for offset in taken)
            yield taken
        yield offsets.take(0).tolist()
    spilled.close()


def newest(records: Sequence[Record]) -> dict[bytes, int]:
    return {key: offset for offset, (key, _) in enumerate(records) if key is not None}


def compare(records: Sequence[Record], block: int, memory: int, shares: int = 1) -> int:
    """Compare with a dict; gives how many keys were spilled."""
    in_memory: list[int] = []
    spilled: list[int] = []
    for share in range(shares):
        first, *rest = told(records, block, memory, share, shares)
        in_memory += first
        spilled += [offset for part in rest for offset in part]
    expected = set(newest(records).values())
    kept = [offset for offset in in_memory if records[offset][1]] + spilled
    assert sorted(kept) == sorted(offset for offset in expected if records[offset][1])
    assert expected.issuperset(in_memory)
    return len(spilled)


@pytest.fixture
def tiny_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a table be full after a few keys."""
    monkeypatch.setattr("kafkalog.streaming.lookup.seen_keys._FIRST_SLOTS", 4)


RECORDS = st.lists(
    st.tuples(
        st.one_of(
            st.none(), st.binary(max_size=2), st.integers(0, 9).map(lambda n: b"k" * n * n * n * 9)
        ),
        st.booleans(),
    ),
    max_size=80,
)


@settings(deadline=None, max_examples=60)
@given(RECORDS, st.integers(1, 30), st.integers(1, 3))
def test_any_records_in_any_blocks_and_shares_are_told_as_a_dict_tells_them(
    records: list[Record], block: int, shares: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kafkalog.streaming.lookup.seen_keys._FIRST_SLOTS", 4)
        patch.setattr(spilled_keys, "_SMALLEST_BUCKET", 64)
        patch.setattr(spilled_keys, "_AT_ONCE", 2)
        compare(records, block, 0, shares)


def test_keys_many_times_larger_than_the_memory_are_told() -> None:
    records = [(f"key {n * 7919 % 30_011}".encode(), n % 5 > 0) for n in range(60_000)]
    assert compare(records, 5000, SMALLEST) > 20_000


def test_a_bucket_with_more_keys_than_memory_is_read_several_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spilled_keys, "_FEWEST_BUCKETS", 1)
    monkeypatch.setattr(spilled_keys, "_MOST_BUCKETS", 1)
    records = [(f"key {n * 7919 % 6007}".encode(), True) for n in range(12_000)]
    assert compare(records, 1000, SMALLEST) > 4000


def test_an_offset_that_an_entry_cannot_hold_is_refused() -> None:
    keys = share_of(0, 1)
    spilled = SpilledKeys(keys, SMALLEST)
    one = found([(b"k", True)], 1 << 56)
    with pytest.raises(SpillError, match="offset 72057594037927936 is beyond"):
        spilled.add(one, np.zeros(1, np.int64), np.zeros(1, np.int64))
    assert not spilled


@pytest.mark.usefixtures("tiny_table")
def test_a_key_larger_than_a_bucket_goes_alone_in_its_place() -> None:
    large = [b"x" * 4080, b"y" * 4096, b"z" * 100_000]
    keys = [b"a", b"b", *large, b"c", b"d", *large, *(b"k%d" % n for n in range(9))]
    assert compare([(key, True) for key in keys], 4, 0) > 3
