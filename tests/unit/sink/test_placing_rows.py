"""The kernels that place rows and group them, and refuse what lies outside of the arrays."""

from __future__ import annotations

import numpy as np
import pytest

from kafkalog.streaming.records.arrow_buffers import ABSENT
from kafkalog.streaming.sink.partition_kernels import (
    KeyHashes,
    group_rows,
    groups_of,
    place_by_hash,
)

ROWS = np.array([4, 1, 3, 0, 6], np.int64)
CODES = np.array([2, 0, 9, 2, 0, 9, 5], np.int32)


def test_rows_are_grouped_by_code_and_keep_their_order() -> None:
    found = [(code, rows.tolist()) for code, rows in groups_of(ROWS, CODES, 6)]
    assert found == [(0, [4, 1]), (2, [3, 0]), (5, [6])]


def test_no_rows_have_no_groups() -> None:
    assert list(groups_of(ROWS[:0], CODES, 6)) == []


@pytest.mark.parametrize(
    ("rows", "codes", "most", "room"),
    [
        ([7], CODES, 10, 1),
        ([-1], CODES, 10, 1),
        ([2], CODES, 9, 1),
        ([0], -CODES, 10, 1),
        ([0, 1], CODES, 10, 1),
    ],
)
def test_what_lies_outside_is_refused(
    rows: list[int], codes: np.ndarray[tuple[int], np.dtype[np.int32]], most: int, room: int
) -> None:
    ends, grouped = np.zeros(most, np.int64), np.zeros(room, np.int64)
    assert group_rows(np.array(rows, np.int64), codes, ends, grouped) == -1


def test_rows_without_a_key_are_left() -> None:
    hashes = np.array([-1, 5, 6, 7], np.int32)
    placed, left = np.full(4, -9, np.int32), np.full(6, -9, np.int64)
    rows = np.array([0, 9, 2, -1, 1, 3], np.int64)
    has_key = np.array([1, 0, 1, 0], np.uint8)
    assert place_by_hash(rows, hashes, has_key, 4, placed, left) == 2
    assert placed.tolist() == [0x7FFFFFFF % 4, -9, 2, -9]
    assert left.tolist() == [1, 3, -9, -9, -9, -9]


def test_no_row_has_a_key_where_there_is_no_column() -> None:
    placed = np.full(3, -9, np.int32)
    rows = np.arange(3)
    assert KeyHashes(ABSENT, 3).place(rows, 2, placed).tolist() == [0, 1, 2]
    assert placed.tolist() == [-9, -9, -9]
