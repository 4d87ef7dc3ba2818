from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from kafkalog.streaming.commit.staging.staged_run import RowDigest

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def batch(rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("key", pa.binary()),
            ("value", pa.string()),
            ("headers", HEADERS),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("offset", pa.int64()),
        ]
    )
    return pa.RecordBatch.from_pylist(list(rows), schema)


def row(number: int, **changed: Any) -> dict[str, Any]:
    whole = {
        "topic": "t",
        "partition": number % 3,
        "key": None if number % 5 == 0 else b"%d" % number,
        "value": f"value {number}",
        "headers": None if number % 2 else [("a", b"1"), ("b", None)],
        "timestamp": number * 1_000_000,
        "offset": number,
    }
    return whole | changed


ROWS = [row(number) for number in range(40)]
WHOLE = RowDigest.of(batch(ROWS))


def test_neither_order_nor_tasks_nor_batches_matter() -> None:
    parts = [ROWS[30:], ROWS[7:30][::-1], [], ROWS[:7]]
    assert RowDigest.sum(RowDigest.of(batch(part)) for part in parts) == WHOLE
    sliced = batch([row(99), *ROWS, row(98)]).slice(1, len(ROWS))
    assert RowDigest.of(sliced) == WHOLE


@pytest.mark.parametrize(
    "changed",
    [
        {"topic": "u"},
        {"partition": 1},
        {"partition": None},
        {"key": b""},
        {"key": b"20"},
        {"value": "value 0"},
        {"value": None},
        {"headers": []},
        {"headers": [("b", None), ("a", b"1")]},
        {"headers": [("a", b"1"), ("b", b"")]},
        {"timestamp": None},
        {"offset": 21},
    ],
    ids=str,
)
def test_each_column_of_each_row_counts(changed: dict[str, Any]) -> None:
    other = [*ROWS[:20], row(20, **changed), *ROWS[21:]]
    assert RowDigest.of(batch(other)) != WHOLE


def test_one_row_more_or_less_or_in_place_of_another_is_noticed() -> None:
    digests = [ROWS[1:], [*ROWS, ROWS[0]], [*ROWS[1:], ROWS[1]]]
    assert all(RowDigest.of(batch(rows)) != WHOLE for rows in digests)


def test_what_moves_between_columns_or_rows_is_noticed() -> None:
    def of(*pairs: tuple[str | None, str | None]) -> RowDigest:
        keys, values = zip(*pairs, strict=True)
        return RowDigest.of(
            pa.RecordBatch.from_pydict(
                {"key": pa.array(keys, pa.string()), "value": pa.array(values, pa.string())}
            )
        )

    assert of(("a", "b")) != of(("b", "a"))
    assert of(("ab", "")) != of(("a", "b"))
    assert of(("a", "b"), ("c", "d")) != of(("a", "d"), ("c", "b"))
    assert of((None, "a")) != of(("", "a"))


def test_columns_that_the_sink_does_not_know_do_not_count_and_types_of_text_are_alike() -> None:
    values = ["a", None, "雲"]
    plain = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.string())})
    wide = pa.RecordBatch.from_pydict(
        {"value": pa.array(values, pa.large_string()), "more": pa.array([1, 2, 3])}
    )
    assert RowDigest.of(plain) == RowDigest.of(wide)


def test_no_rows_have_a_digest_too() -> None:
    assert RowDigest.of(batch([])) == RowDigest()
    assert str(RowDigest(3, 17)) == "rows 3 0000000000000011"
