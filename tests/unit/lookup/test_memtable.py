"""The memtable beside a dict; the kernels compiled and as Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalog.streaming.lookup import memtable_kernels as kernels
from kafkalog.streaming.lookup import ordered_rows as memtable
from kafkalog.streaming.lookup.memtable_kernels import BROKEN
from kafkalog.streaming.lookup.ordered_rows import MAX_SEQUENCE, Entries, MemTable
from kafkalog.streaming.lookup.seen_keys import KeySpan
from kafkalog.streaming.records.jit.kernel import as_python

LARGE = 1 << 20
ALL = KeySpan()
Entry = tuple[bytes, int, bytes | None]
"""Key, sequence number and value, None for a deletion."""


def entries(rows: list[Entry]) -> Entries:
    keys = [key for key, _, _ in rows]
    values = [value or b"" for _, _, value in rows]
    lengths = np.array([*map(len, keys), *map(len, values)], np.int64)
    starts = np.cumsum(lengths) - lengths
    data = np.frombuffer(b"".join([*keys, *values]) + b"\0", np.uint8)
    sizes = [-1 if value is None else len(value) for _, _, value in rows]
    count = len(rows)
    sequences = np.array([sequence for _, sequence, _ in rows], np.int64)
    where = (starts[:count], lengths[:count], sequences, starts[count:])
    return Entries(data, *where, np.array(sizes, np.int64))


def listed(table: MemTable, span: KeySpan = ALL, *, newest_only: bool = False) -> list[Entry]:
    found: list[Entry] = []
    for one in table.scan(span, newest_only=newest_only):
        columns = (column.tolist() for column in one[1:])
        for key, length, sequence, value, size in zip(*columns, strict=True):
            kept = None if size < 0 else one.source[value : value + size].tobytes()
            found.append((one.source[key : key + length].tobytes(), sequence, kept))
    return found


def ordered(rows: list[Entry]) -> list[Entry]:
    return sorted(rows, key=lambda row: (row[0], -row[1]))


@pytest.fixture(params=["compiled", "Python"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "Python":
        for name in ("add_entries", "look_up", "seek", "scan"):
            monkeypatch.setattr(kernels, name, as_python(getattr(kernels, name)))


@pytest.mark.usefixtures("_both_ways")
def test_entries_are_listed_by_key_and_the_newest_first() -> None:
    rows: list[Entry] = [(b"k%d" % (n * n % 41), n, b"v" * (n % 90)) for n in range(300)]
    table = MemTable(LARGE)
    assert table.add(entries(rows)) == len(table) == 300
    assert listed(table) == ordered(rows)


KEYS = st.one_of(st.binary(max_size=3), st.integers(0, 5).map(lambda n: b"\xff" * n))
VALUES = st.one_of(st.none(), st.binary(max_size=5), st.just(b"w" * 300))
ROWS = st.dictionaries(
    st.tuples(KEYS, st.one_of(st.integers(0, 9), st.just(MAX_SEQUENCE))), VALUES, max_size=60
)


@settings(deadline=None, max_examples=80)
@given(ROWS, st.integers(1, 20), KEYS, st.one_of(st.none(), KEYS), st.integers(0, 10))
def test_any_entries_are_listed_and_found_as_a_dict_has_them(
    found: dict[tuple[bytes, int], bytes | None],
    block: int,
    low: bytes,
    high: bytes | None,
    as_of: int,
) -> None:
    rows = [(key, sequence, value) for (key, sequence), value in found.items()]
    table = MemTable(LARGE)
    for first in range(0, len(rows), block):
        table.add(entries(rows[first : first + block]))
    expected = ordered(rows)
    assert listed(table) == expected
    newest: dict[bytes, Entry] = {}
    then: dict[bytes, Entry] = {}
    for row in reversed(expected):
        newest[row[0]] = row
        if row[1] <= as_of:
            then[row[0]] = row
    assert listed(table, newest_only=True) == sorted(newest.values())
    inside = [row for row in expected if row[0] >= low and (high is None or row[0] < high)]
    assert listed(table, KeySpan(low, high)) == inside
    for key in {low, high or b"", *newest}:
        assert table.get(key) == (newest[key][1:] if key in newest else None)
        assert table.get(key, as_of) == (then[key][1:] if key in then else None)


def test_blocks_of_a_listing_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memtable, "_BLOCK", 7)
    rows: list[Entry] = [(b"k%d" % (n // 10), n, None) for n in range(100)]
    table = MemTable(LARGE)
    table.add(entries(rows))
    assert listed(table) == ordered(rows)
    assert listed(table, newest_only=True) == [(b"k%d" % n, 10 * n + 9, None) for n in range(10)]


def test_entries_are_coded_as_leveldb_codes_them() -> None:
    table = MemTable(LARGE)
    table.add(entries([(b"key", 0x123456, b"value"), (b"k" * 120, 1, None)]))
    (one, *_) = table.scan()
    first = "0b" + b"key".hex() + "0156341200000000" + "05" + b"value".hex()
    second = "8001" + (b"k" * 120).hex() + "0001000000000000" + "00"
    coded = bytes.fromhex(first + second)
    assert one.source[: len(coded)].tobytes() == coded


def test_levels_are_those_of_leveldbs_random_numbers() -> None:
    table = MemTable(LARGE)
    table.add(entries([(b"k%d" % n, n, None) for n in range(2000)]))
    number, expected = 0xDEADBEEF & 0x7FFFFFFF, 0
    for _ in range(2000):
        levels = 1
        while levels < 12:
            number = number * 16807 % (2**31 - 1)
            if number % 4:
                break
            levels += 1
        expected += 1 + levels
    assert table._state[kernels.LINKED] == 13 + expected
    assert 4 <= table._state[kernels.LEVELS] <= 12


def test_a_table_that_is_full_takes_no_more_and_keeps_what_it_has() -> None:
    table = MemTable(1 << 16)
    rows: list[Entry] = [(b"key %d" % (n * 37 % 5000), n, b"v" * 20) for n in range(5000)]
    taken = table.add(entries(rows))
    assert 200 < taken == len(table) < 5000
    assert table.memory <= 1 << 16
    assert listed(table) == ordered(rows[:taken])
    assert table.add(entries(rows[taken:])) == 0


def test_a_single_entry_may_be_larger_than_the_memory() -> None:
    table = MemTable(1)
    rows: list[Entry] = [(b"k", 1, b"x" * 100_000), (b"l", 2, b"x" * 300_000)]
    assert table.add(entries(rows)) == 1
    assert table.get(b"k") == (1, b"x" * 100_000)


def test_two_entries_of_a_key_with_one_number_are_refused() -> None:
    table = MemTable(LARGE)
    table.add(entries([(b"k", 1, b"a"), (b"l", 1, None)]))
    with pytest.raises(ValueError, match="same sequence number"):
        table.add(entries([(b"k", 1, b"b")]))
    for number in (-1, MAX_SEQUENCE + 1):
        with pytest.raises(ValueError, match="56 bits"):
            table.add(entries([(b"m", number, b"b")]))


@pytest.mark.parametrize(
    ("column", "value"), [(1, -1), (1, 3), (2, -1), (2, 99), (4, -1), (4, 3), (5, 99), (5, 2**62)]
)
def test_a_row_outside_of_its_bytes_is_refused(column: int, value: int) -> None:
    rows = entries([(b"k", 1, b"v")])
    changed = Entries(*(np.array([value]) if n == column else rows[n] for n in range(6)))
    with pytest.raises(AssertionError, match="outside"):
        MemTable(LARGE).add(changed)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 80), st.integers(-(2**62), 2**62), st.booleans(), st.booleans())
def test_links_and_bytes_that_are_wrong_lead_nowhere_outside(
    place: int, value: int, in_links: bool, compiled: bool
) -> None:
    table = MemTable(LARGE)
    table.add(entries([(b"k%d" % n, n, b"v") for n in range(9)]))
    if in_links:
        table._links[place] = value
    else:
        table._arena[place] = value & 0xFF
    where = (table._arena, table._links, table._state)
    key, found = np.frombuffer(b"k5", np.uint8), np.zeros(kernels.COLUMNS, np.int64)
    columns, cursor = np.empty((kernels.COLUMNS, 20), np.int64), np.array([13, 0, -1])

    def way(kernel: object) -> object:
        return kernel if compiled else as_python(kernel)

    assert way(kernels.look_up)(key, 2, 99, *where, found) in {  # type: ignore[operator]
        *(BROKEN, kernels.ABSENT, kernels.DELETED, kernels.FOUND)
    }
    assert -1 <= way(kernels.scan)(key, -1, 0, *where, columns, cursor) <= 20  # type: ignore[operator]
