"""LevelDB's coding of entries, with the vectors of its own tests (``util/coding_test.cc``)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalog.streaming.lookup import memtable_kernels as kernels
from kafkalog.streaming.records.jit.kernel import as_python

NUMBERS = [number >> 5 << number % 32 & 0xFFFFFFFF for number in range(32 * 32)]


def coded(number: int) -> bytes:
    out = np.zeros(5, np.uint8)
    return out[: kernels.put_varint32(out, 0, number)].tobytes()


def read(data: bytes) -> tuple[int, int]:
    return kernels.read_varint32(np.frombuffer(data, np.uint8), 0, len(data))


def test_numbers_are_read_as_they_were_written_one_after_the_other() -> None:
    data = np.frombuffer(b"".join(map(coded, NUMBERS)), np.uint8)
    at, found = 0, []
    for _ in NUMBERS:
        start = at
        number, at = kernels.read_varint32(data, at, len(data))
        assert kernels.size_of_varint32(number) == at - start
        found.append(number)
    assert (at, found) == (len(data), NUMBERS)


@pytest.mark.parametrize(
    ("number", "data"),
    [(0, "00"), (127, "7f"), (128, "8001"), (16_383, "ff7f"), (2**32 - 1, "ffffffff0f")],
)
def test_a_number_has_its_bytes(number: int, data: str) -> None:
    assert coded(number).hex() == data
    assert read(bytes.fromhex(data)) == (number, len(data) // 2)


def test_a_number_of_more_than_five_bytes_is_none() -> None:
    assert read(b"\x81\x82\x83\x84\x85\x11")[1] == -1


def test_a_number_that_is_cut_off_is_none() -> None:
    data = coded((1 << 31) + 100)
    assert [read(data[:length])[1] for length in range(len(data))] == [-1] * (len(data))
    assert read(data) == ((1 << 31) + 100, len(data))


def entry(key: bytes, offset: int, value_length: int) -> bytes:
    """Write an entry down as ``db/memtable.cc`` says, without its value."""
    tag = (offset << 8 | (value_length >= 0)).to_bytes(8, "little")
    return coded(len(key) + 8) + key + tag + b"\0"


RECORDS = st.lists(
    st.tuples(
        st.binary(max_size=300), st.integers(0, 2**55 - 1), st.sampled_from([-1, 0, 1, 1000])
    ),
    max_size=20,
)


@settings(deadline=None, max_examples=60)
@given(RECORDS, st.booleans())
def test_entries_are_what_they_were(records: list[tuple[bytes, int, int]], compiled: bool) -> None:
    def way(kernel: object) -> object:
        return kernel if compiled else as_python(kernel)

    keys = [key for key, _, _ in records]
    source = np.frombuffer(b"".join(keys) + b"\0", np.uint8)
    lengths = np.array([len(key) for key in keys], np.int64)
    starts = np.cumsum(lengths) - lengths
    offsets = np.array([offset for _, offset, _ in records], np.int64)
    values = np.array([length for _, _, length in records], np.int64)
    count = len(records)
    buckets, used = np.zeros((1, 8000), np.uint8), np.zeros(1, np.int64)
    where = (source, starts, lengths, values, offsets, np.zeros(count, np.int64))
    add = way(kernels.add_to_buckets)
    assert add(*where, np.arange(count), count, 0, kernels.ANY, buckets, used) == 0  # type: ignore[operator]
    data = buckets[0, : used[0]]
    assert data.tobytes() == b"".join(entry(*record) for record in reversed(records))

    room = count + 3
    columns = (*np.zeros((3, room), np.int64), np.zeros(room, np.uint8))
    assert way(kernels.find_entries)(data, *columns) == count  # type: ignore[operator]
    found = [column[room - count :].tolist() for column in columns]
    spans = zip(found[0], found[1], strict=True)
    assert [data[start : start + length].tobytes() for start, length in spans] == keys
    assert found[2:] == [offsets.tolist(), [int(value >= 0) for value in values]]


@pytest.mark.parametrize("data", ["07", "08", "0800000000000000", "ffffffff0f", "8080808080"])
def test_bytes_that_are_no_entries_are_refused(data: str) -> None:
    columns = (*np.zeros((3, 9), np.int64), np.zeros(9, np.uint8))
    bad = np.frombuffer(bytes.fromhex(data), np.uint8)
    for find in (kernels.find_entries, as_python(kernels.find_entries)):
        assert find(bad, *columns) == kernels.BROKEN


def test_more_entries_than_there_is_room_for_are_refused() -> None:
    columns = (*np.zeros((3, 1), np.int64), np.zeros(1, np.uint8))
    data = np.frombuffer(entry(b"a", 1, 1) + entry(b"b", 0, 1), np.uint8)
    assert kernels.find_entries(data, *columns) == kernels.BROKEN


@pytest.mark.parametrize(
    ("start", "length", "row", "share", "width"),
    [
        *((-1, 1, 0, 0, 1), (0, 5, 0, 0, 1), (4, 1, 0, 0, 1), (0, -1, 0, 0, 1)),
        *((0, 1, 1, 0, 1), (0, 1, -1, 0, 1), (0, 1, 0, 1, 1), (0, 1, 0, -1, 1), (0, 1, 0, 0, 0)),
    ],
)
def test_rows_keys_and_buckets_that_are_not_there_are_refused(
    start: int, length: int, row: int, share: int, width: int
) -> None:
    zero, used = np.zeros(1, np.int64), np.zeros(1, np.int64)
    where = (np.zeros(4, np.uint8), np.array([start]), np.array([length]), zero, zero)
    place = (np.array([share << 32]), np.array([row]), 1, 0, width, np.zeros((1, 99), np.uint8))
    for add in (kernels.add_to_buckets, as_python(kernels.add_to_buckets)):
        assert add(*where, *place, used) == kernels.BROKEN
