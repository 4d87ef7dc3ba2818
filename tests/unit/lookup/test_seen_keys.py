"""The keys that were seen, beside a set; the kernels compiled and as Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalog.streaming.lookup import key_kernels as kernels
from kafkalog.streaming.lookup.seen_keys import KeyRange, SeenKeys, share_of
from kafkalog.streaming.records.jit.kernel import as_python

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SMALLEST = 1 << 16
SEED = 0x2BCDEF0123456789


@pytest.fixture(params=["compiled", "Python"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "Python":
        for name in ("hash_keys", "add_newest", "take_over"):
            monkeypatch.setattr(kernels, name, as_python(getattr(kernels, name)))


def laid_out(keys: Sequence[bytes | None]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    lengths = np.array([-1 if key is None else len(key) for key in keys], np.int64)
    ends = np.cumsum(np.maximum(lengths, 0), dtype=np.int64)
    data = b"".join(key or b"" for key in keys)
    return np.frombuffer(data, np.uint8), ends - np.maximum(lengths, 0), lengths


def added(seen: SeenKeys, keys: Sequence[bytes | None], first: int) -> list[int]:
    """Add keys at offsets from ``first`` on; gives the offsets of the newest."""
    where = laid_out(keys)
    offsets = np.arange(first, first + len(keys), dtype=np.int64)
    newest = seen.add(*where, offsets, seen.hashes(*where))
    return offsets[newest].tolist()


def passes(
    keys: Sequence[bytes | None], block: int, memory: int, shares: int = 1
) -> Iterator[list[int]]:
    """Go through keys from the last one on, block by block, as often as need be."""
    pending = [share_of(number, shares) for number in range(shares)]
    while pending:
        seen = SeenKeys(pending.pop(), SEED, memory)
        found: list[int] = []
        for first in reversed(range(0, len(keys), block)):
            found += added(seen, keys[first : first + block], first)
        pending += seen.given_up
        yield found


def expected(keys: Sequence[bytes | None]) -> list[int]:
    last = {key: offset for offset, key in enumerate(keys) if key is not None}
    return sorted(last.values())


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("shares", [1, 3])
def test_the_newest_row_of_each_key_is_told_once(shares: int) -> None:
    keys = [None if n % 11 == 0 else f"{n * n % 701}".encode() for n in range(3000)]
    told = [offset for one in passes(keys, 500, 1 << 20, shares) for offset in one]
    assert sorted(told) == expected(keys)


KEYS = st.lists(
    st.one_of(st.none(), st.binary(max_size=12), st.integers(0, 9).map(lambda n: b"k" * n)),
    max_size=60,
)


@settings(deadline=None, max_examples=60)
@given(KEYS, st.integers(1, 30), st.integers(1, 4))
def test_any_keys_in_any_blocks_and_shares_are_told_as_a_dict_tells_them(
    keys: list[bytes | None], block: int, shares: int
) -> None:
    told = [offset for one in passes(keys, block, SMALLEST, shares) for offset in one]
    assert sorted(told) == expected(keys)


def test_keys_beyond_the_memory_are_told_in_more_passes_and_never_twice() -> None:
    keys = [f"key {n % 9000}".encode() for n in range(20_000)]
    told = list(passes(keys, 1000, SMALLEST))
    assert len(told) > 3
    assert sorted(offset for one in told for offset in one) == expected(keys)


def test_memory_stays_within_its_bound_until_a_single_key_needs_more() -> None:
    seen = SeenKeys(KeyRange(), SEED, SMALLEST)
    for first in reversed(range(0, 20_000, 1000)):
        added(seen, [f"key {n}".encode() for n in range(first, first + 1000)], first)
        assert seen.memory <= SMALLEST
    assert added(SeenKeys(KeyRange(), SEED, SMALLEST), [b"x" * 100_000, b"y"], 0) == [0, 1]


def test_keys_with_one_hash_are_told_apart_by_their_bytes() -> None:
    seen = SeenKeys(KeyRange(), SEED, 1 << 20)
    keys = [b"a", b"b", b"a", b"", b"a\0", b""]
    same = np.full(len(keys), 7, np.int64)
    newest = seen.add(*laid_out(keys), np.arange(len(keys)), same)
    assert newest.tolist() == [False, True, True, False, True, True]


def test_one_share_after_the_other_is_given_up_while_all_keys_have_one_hash() -> None:
    seen = SeenKeys(KeyRange(), SEED, SMALLEST)
    keys = [f"{n:060d}".encode() for n in range(2000)]
    same = np.full(len(keys), 7, np.int64)  # in the first share: nothing helps but more memory
    assert seen.add(*laid_out(keys), np.arange(len(keys)), same).all()
    assert [given.low > 0 for given in seen.given_up] == [True] * len(seen.given_up)


def test_hashes_fill_slots_and_shares_evenly() -> None:
    seen = SeenKeys(KeyRange(), SEED, 1 << 20)
    hashes = seen.hashes(*laid_out([f"{n:010d}".encode() for n in range(64_000)]))
    for halves in (hashes & 63, hashes >> (32 + 24)):
        counts = np.bincount(halves, minlength=64)
        assert 850 < counts.min() <= counts.max() < 1150
    assert len(np.unique(hashes)) == 64_000


@pytest.mark.parametrize(("start", "length"), [(-1, 2), (0, 5), (3, 2), (5, 0), (2**62, 2**62)])
def test_a_key_outside_of_its_bytes_is_refused(start: int, length: int) -> None:
    source = np.zeros(4, np.uint8)
    where = (source, np.array([start]), np.array([length]))
    hashes = np.zeros(1, np.int64)
    seen = SeenKeys(KeyRange(), SEED, 1 << 20)
    for hash_keys in (kernels.hash_keys, as_python(kernels.hash_keys)):
        assert hash_keys(*where, SEED, hashes) == kernels.BROKEN
    with pytest.raises(AssertionError, match="outside"):
        seen.add(*where, np.zeros(1, np.int64), np.zeros(1, np.int64))
