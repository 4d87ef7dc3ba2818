"""The map of offsets, by a dict; with what Kafka's ``OffsetMapTest`` asks for."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalog.streaming.log.compaction import map_kernels as kernels
from kafkalog.streaming.log.compaction.map_kernels import (
    BROKEN,
    LANE_FIELDS,
    LANES,
    WORK_SIZE,
    digest_keys,
)
from kafkalog.streaming.log.compaction.offset_map import BYTES_PER_ENTRY, OffsetMap
from kafkalog.streaming.records.jit.kernel import as_python

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def laid_out(keys: Sequence[bytes | None]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    lengths = np.array([-1 if key is None else len(key) for key in keys], np.int64)
    ends = np.cumsum(np.maximum(lengths, 0), dtype=np.int64)
    data = b"".join(key or b"" for key in keys)
    return np.frombuffer(data, np.uint8), ends - np.maximum(lengths, 0), lengths


def digest_memory() -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(WORK_SIZE, np.uint32), np.zeros((LANES, LANE_FIELDS), np.int64)


def put(offsets: OffsetMap, keys: Sequence[bytes | None], first: int = 0) -> bool:
    return offsets.put(*laid_out(keys), np.arange(first, first + len(keys))) == len(keys)


def found(offsets: OffsetMap, keys: Sequence[bytes | None]) -> list[int]:
    return offsets.find(*laid_out(keys)).tolist()


@pytest.mark.parametrize("count", [10, 100, 1000, 5000])
def test_all_that_was_put_is_found_and_nothing_else(count: int) -> None:
    offsets = OffsetMap(2 * BYTES_PER_ENTRY * count)
    keys = [str(number).encode() for number in range(count)]
    assert put(offsets, keys)
    assert len(offsets) == count
    assert found(offsets, keys) == list(range(count))
    assert found(offsets, [f"other {number}".encode() for number in range(count)]) == [-1] * count


def test_a_cleared_map_is_empty() -> None:
    offsets = OffsetMap(4000)
    put(offsets, [b"one", b"two"])
    offsets.clear()
    assert (len(offsets), offsets.latest_offset) == (0, -1)
    assert found(offsets, [b"one", b"two"]) == [-1, -1]


def test_a_map_up_to_its_load_finds_what_is_not_in_it_too() -> None:
    offsets = OffsetMap(24 * 500, 0.99)
    keys = [str(number).encode() for number in range(495)]
    assert put(offsets, keys)
    assert found(offsets, keys) == list(range(495))
    assert found(offsets, [b"x", b"y"]) == [-1, -1]


def test_a_full_map_takes_no_key_not_even_one_it_has() -> None:
    offsets = OffsetMap(10 * BYTES_PER_ENTRY, 0.5)
    assert offsets.capacity == 5
    assert put(offsets, [b"a", b"b", b"a", b"c", b"d", None, b"e"])
    assert (len(offsets), offsets.latest_offset) == (5, 6)
    assert put(offsets, [None, None], 7)
    assert not put(offsets, [None, b"a"], 9)
    assert offsets.latest_offset == 6
    assert found(offsets, [b"a"]) == [2]


def test_a_map_without_room_for_a_key_is_refused() -> None:
    with pytest.raises(ValueError, match="too small"):
        OffsetMap(BYTES_PER_ENTRY)


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_keys_are_kept_by_their_md5(key: bytes) -> None:
    offsets = OffsetMap(10 * BYTES_PER_ENTRY)
    put(offsets, [key], 7)
    (slot,) = np.flatnonzero(offsets._table[:, kernels.NEXT_OFFSET])
    halves = offsets._table[slot, : kernels.NEXT_OFFSET].astype("<i8").tobytes()
    assert halves == hashlib.md5(key).digest()


@pytest.mark.parametrize(
    "digest", [digest_keys, as_python(digest_keys)], ids=["compiled", "python"]
)
@given(keys=st.lists(st.one_of(st.none(), st.binary(max_size=200)), max_size=60))
@settings(max_examples=30, deadline=None)
def test_keys_of_all_lengths_are_digested_side_by_side(
    digest: Callable[..., int], keys: list[bytes | None]
) -> None:
    digests = np.full((len(keys), 2), 7, np.int64)
    assert digest(*laid_out(keys), *digest_memory(), digests) == len(keys)
    untouched = np.full(2, 7, "<i8").tobytes()
    expected = [untouched if key is None else hashlib.md5(key).digest() for key in keys]
    assert [row.astype("<i8").tobytes() for row in digests] == expected


@pytest.mark.parametrize(
    "digest", [digest_keys, as_python(digest_keys)], ids=["compiled", "python"]
)
@pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, 5), (4, 1), (3, 2), (2**62, 2**62)])
def test_a_key_outside_of_its_bytes_is_not_read(
    digest: Callable[..., int], start: int, length: int
) -> None:
    source = np.zeros(4, np.uint8)
    starts, lengths = np.array([0, start]), np.array([4, length])
    assert digest(source, starts, lengths, *digest_memory(), np.zeros((2, 2), np.int64)) == BROKEN


@given(st.lists(st.one_of(st.none(), st.binary(max_size=3)), max_size=200), st.integers(2, 40))
@settings(max_examples=200, deadline=None)
def test_it_is_a_dict_until_it_is_full(keys: list[bytes | None], slots: int) -> None:
    offsets = OffsetMap(slots * BYTES_PER_ENTRY)
    model: dict[bytes, int] = {}
    all_in = True
    for offset, key in enumerate(keys):
        if key is not None:
            if len(model) >= offsets.capacity:
                all_in = False
                break
            model[key] = offset
    assert put(offsets, keys) is all_in
    assert len(offsets) == len(model)
    assert offsets.latest_offset == max(model.values(), default=-1)
    assert found(offsets, keys) == [-1 if key is None else model.get(key, -1) for key in keys]


def test_what_was_put_is_told_without_its_keys() -> None:
    offsets = OffsetMap(BYTES_PER_ENTRY * 100)
    assert not offsets.has_put(np.arange(3))
    put(offsets, [None, b"a", b"b", b"a", None, b"c"], 10)
    offsets.pass_to(17)
    assert offsets.has_put(np.arange(11, 18))
    assert offsets.are_last(np.arange(11, 18)).tolist() == [
        *(False, True, True, False, True, False, False)
    ]
    put(offsets, [b"c"], 18)
    assert offsets.are_last(np.arange(11, 19)).tolist() == [
        *(False, True, True, False, False, False, False, True)
    ]


@pytest.mark.parametrize(
    "asked",
    [
        [],
        [10, 11],  # below the first key that was put
        [15, 16],  # above the last
        [11, 12, 12],
        [12, 11],
        [11, 11 + 16 * 2],
    ],
)
def test_of_other_offsets_only_keys_tell(asked: list[int]) -> None:
    offsets = OffsetMap(BYTES_PER_ENTRY * 100)
    put(offsets, [b"a", b"b", b"a", b"b", b"a"], 11)
    assert offsets.has_put(np.arange(11, 16))
    assert not offsets.has_put(np.array(asked, np.int64))


def test_ranges_without_a_last_offset_are_told() -> None:
    offsets = OffsetMap(BYTES_PER_ENTRY * 100)
    firsts, lasts = np.array([10, 12, 14, 16, 18]), np.array([11, 13, 15, 17, 19])
    assert not offsets.have_no_last(firsts, lasts, 10).any()
    put(offsets, [b"a", b"b", b"a", b"b", b"a", b"b", b"a", b"b", b"c", b"c"], 10)
    assert offsets.have_no_last(firsts, lasts, 10).tolist() == [True, True, True, False, False]
    assert offsets.have_no_last(firsts - 1, lasts - 1, 10).tolist()[0] is False  # not all was put
    offsets.leave_to_keys(13, 13)
    assert offsets.have_no_last(firsts, lasts, 10).tolist() == [True, False, True, False, False]
    offsets.leave_to_keys(11, 11)
    assert offsets.have_no_last(firsts, lasts, 10).tolist() == [False, False, True, False, False]
    offsets.clear()
    put(offsets, [b"a", b"a", b"a"], 10)
    assert offsets.have_no_last(firsts, lasts, 10).tolist() == [True, *[False] * 4]


def test_ranges_far_apart_are_not_told() -> None:
    offsets = OffsetMap(BYTES_PER_ENTRY * 100)
    put(offsets, [b"a"] * 3, 0)
    offsets.pass_to(1 << 40)
    firsts, lasts = np.array([0, 1 << 30]), np.array([1, (1 << 30) + 1])
    assert not offsets.have_no_last(firsts, lasts, 4).any()


@pytest.mark.parametrize("window", [1, 3, 8])
def test_a_range_beyond_the_window_is_not_told(
    monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr("kafkalog.streaming.log.compaction.offset_map._WINDOW", window)
    offsets = OffsetMap(BYTES_PER_ENTRY * 400)
    put(offsets, [b"a"] * 21, 0)
    firsts = np.arange(0, 20, 4)
    told = offsets.have_no_last(firsts, firsts + 3, 20)
    assert told.tolist() == [row < window // 4 for row in range(5)]


def test_a_cleared_map_has_put_nothing() -> None:
    offsets = OffsetMap(BYTES_PER_ENTRY * 100)
    put(offsets, [b"a", b"b"])
    assert offsets.are_last(np.arange(2)).tolist() == [True, True]
    offsets.clear()
    assert not offsets.has_put(np.arange(2))
    put(offsets, [b"a", b"a"])
    assert offsets.are_last(np.arange(2)).tolist() == [False, True]


@pytest.mark.parametrize("window", [1, 2, 7, 1000])
def test_last_offsets_are_told_window_by_window(
    monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr("kafkalog.streaming.log.compaction.offset_map._WINDOW", window)
    offsets = OffsetMap(BYTES_PER_ENTRY * 400)
    keys = [b"%d" % (number * number % 37) for number in range(300)]
    put(offsets, keys)
    asked = np.arange(0, 300, 3)
    expected = [keys.index(keys[at], at) == at and keys[at] not in keys[at + 1 :] for at in asked]
    assert offsets.are_last(asked).tolist() == expected
