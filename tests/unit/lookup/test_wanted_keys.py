"""Keys that are looked for, beside Python's own comparison of bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalog.streaming.lookup import key_kernels as kernels
from kafkalog.streaming.lookup.seen_keys import KeyRange, Keys, KeySpan, SeenKeys, wanted_keys
from kafkalog.streaming.records.jit.kernel import as_python
from kafkalog.streaming.records.row_buffers import FoundRecords

SEED = 77
BYTES = st.one_of(
    st.binary(max_size=4), st.sampled_from([b"a", b"ab", b"a\xff", b"\xff", b"\xff\xff"])
)


def records(keys: list[bytes | None]) -> FoundRecords:
    lengths = np.array([-1 if key is None else len(key) for key in keys], np.int64)
    sizes = np.maximum(lengths, 0)
    source = np.frombuffer(b"".join(key or b"" for key in keys), np.uint8)
    starts = np.cumsum(sizes) - sizes
    offsets = np.arange(len(keys), dtype=np.int64)
    types = np.zeros(len(keys), np.int32)
    return FoundRecords(source, offsets, offsets, types, starts, lengths, starts, lengths)


def told(keys: list[bytes | None], wanted: Keys) -> list[int]:
    found = records(keys)
    tells = wanted_keys(wanted, SEED)
    where = (found.source, found.key_starts, found.key_lengths)
    hashes = SeenKeys(KeyRange(), SEED, 1 << 16).hashes(*where)
    rows = np.flatnonzero(tells.mask(found, hashes))
    offsets: list[int] = tells.pick(found.take(rows)).offsets.tolist()
    return offsets


@settings(deadline=None, max_examples=200)
@given(st.lists(st.one_of(st.none(), BYTES), max_size=12), BYTES, st.one_of(st.none(), BYTES))
def test_keys_between_two_others_are_those_that_python_puts_there(
    keys: list[bytes | None], low: bytes, high: bytes | None
) -> None:
    expected = [
        row
        for row, key in enumerate(keys)
        if key is not None and low <= key and (high is None or key < high)
    ]
    assert told(keys, KeySpan(low, high)) == expected


@settings(deadline=None, max_examples=200)
@given(st.lists(st.one_of(st.none(), BYTES), max_size=12), BYTES)
def test_keys_with_a_prefix_are_those_that_begin_with_it(
    keys: list[bytes | None], prefix: bytes
) -> None:
    expected = [row for row, key in enumerate(keys) if key is not None and key.startswith(prefix)]
    assert told(keys, KeySpan.with_prefix(prefix)) == expected


@settings(deadline=None, max_examples=100)
@given(st.lists(st.one_of(st.none(), BYTES), max_size=12), st.frozensets(BYTES, max_size=4))
def test_named_keys_are_told_by_their_bytes(
    keys: list[bytes | None], wanted: frozenset[bytes]
) -> None:
    assert told(keys, wanted) == [row for row, key in enumerate(keys) if key in wanted]


def test_another_key_with_the_hash_of_one_that_is_sought_is_left_out_and_ends_nothing() -> None:
    tells = wanted_keys(frozenset({b"a"}), SEED)
    others = records([b"b", b"c"])
    assert tells.pick(others).offsets.tolist() == []
    assert not tells.all_found
    assert tells.pick(records([b"b", b"a"])).offsets.tolist() == [1]
    assert tells.all_found


@pytest.mark.parametrize(("start", "length"), [(-1, 1), (1, 4), (5, 0)])
def test_a_key_outside_of_its_bytes_is_refused(start: int, length: int) -> None:
    source, inside = np.zeros(4, np.uint8), np.zeros(1, np.uint8)
    bounds = (source, 0, source, -1)
    for keys_between in (kernels.keys_between, as_python(kernels.keys_between)):
        one = (np.array([start]), np.array([length]))
        assert keys_between(source, *one, *bounds, inside) == kernels.BROKEN
