"""What is decoded in bulk is what is decoded value by value, and little is left to that."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.avro_values import BothWays, evolved, random_schema, random_value, written
from tests.support.registry_records import framed, schema_record, write_records, write_values

import kafkalog
from kafkalog.streaming.decoding.avro import AvroColumn
from kafkalog.streaming.decoding.registry import SchemaText
from kafkalog.streaming.source import decoded, reading

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FLIGHT: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "carrier", "type": ["null", "string"]},
        {"name": "delay", "type": "double"},
        {"name": "stops", "type": {"type": "array", "items": "string"}},
    ],
}
LATER = FLIGHT | {
    "fields": [*FLIGHT["fields"][1:], {"name": "gate", "type": "string", "default": "none"}]
}


def flight(n: int) -> dict[str, Any]:
    stops = [f"S{k}" for k in range(n % 4)]
    return {"id": n, "carrier": None if n % 3 else "UA", "delay": n / 2, "stops": stops}


@pytest.fixture
def singles(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give the rows that are decoded one by one."""
    found: list[int] = []
    decode: Callable[..., int] = decoded._SideDecoder._decode
    monkeypatch.setattr(
        decoded._SideDecoder, "_decode", lambda side, row: (found.append(row), decode(side, row))[1]
    )
    return found


def read(log: Path) -> list[dict[str, Any]]:
    columns = ["offset", "valueDecoded", "valueSchemaId", "valueError"]
    options = {"decode.value": "avro"}
    found = kafkalog.read(str(log), "t", columns=columns, options=options)
    return found.read_all().to_pylist()  # type: ignore[no-any-return]


def read_pairs(seed: int) -> tuple[int, int]:
    """Hold random schemas and values together; return how many are decoded in bulk, and faults."""
    rng = random.Random(seed)
    bulk, faults = 0, 0
    for _ in range(100):
        writer = random_schema(rng)
        if writer == "null" or isinstance(writer, list):
            continue
        both = BothWays(writer, evolved(rng, writer) if rng.random() < 0.5 else writer)
        if both.bulk is None:
            continue
        bulk += 1
        values = [written(writer, random_value(rng, writer)) for _ in range(20)]
        damaged = [bytearray(each) for each in values if each]
        for each in damaged:
            each[rng.randrange(len(each))] = rng.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
        cut = [each[: rng.randrange(len(each) + 1)] for each in values]
        faults += both.check([*values, *map(bytes, damaged), *cut])
    return bulk, faults


@pytest.mark.parametrize("seed", range(5))
def test_random_values_of_random_schemas_are_the_same_in_both_ways(seed: int) -> None:
    bulk, faults = read_pairs(seed)
    assert bulk > 20
    assert faults > 20


@pytest.mark.nightly
def test_many_random_values_are_the_same_in_both_ways() -> None:
    assert sum(read_pairs(seed)[0] for seed in range(1000, 1200)) > 4000


def test_whole_values_are_not_left_to_be_decoded_one_by_one() -> None:
    both = BothWays(FLIGHT, LATER)
    values = [written(FLIGHT, flight(n)) for n in range(300)]
    assert both.check(values) == 0
    assert both.check([]) == 0


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ("int", b"\x80\x80\x80\x80\x10"),  # 2**31
        ("int", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ("string", b"\x02\xff"),
        ("string", b"\x04\xc0\x80"),  # too long a form
        ("string", b"\x06\xed\xa0\x80"),  # a surrogate
        ("string", b"\x08\xf4\x90\x80\x80"),  # beyond the last character
        ("string", b"\x04\xe2\x82"),
        ("string", b"\x04a"),
        ("string", b"\x01"),
        ("boolean", b"\x02"),
        ("float", b"\0\0\0"),
        ("double", b"\0" * 7),
        (["null", "int"], b"\x04"),
        ({"type": "enum", "name": "E", "symbols": ["p"]}, b"\x02"),
        ({"type": "array", "items": "int"}, b"\x06\x02\x02"),
        ({"type": "array", "items": "int"}, b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00"),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"\xfe" + b"\xff" * 8 + b"\x01"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0},
            b"\x02\x64",
        ),
    ],
)
def test_what_is_not_plain_is_left_to_be_decoded_one_by_one(schema: Any, data: bytes) -> None:
    assert BothWays(schema, schema).check([data]) == 1


def test_blocks_of_lists_are_read_as_one_list() -> None:
    both = BothWays(*2 * [{"type": "array", "items": "int"}])
    assert both.check([b"\x02\x0a" + b"\x04\x0c\x0e" + b"\x00", b"\x00"]) == 0
    with_their_size = b"\x02\x0a" + b"\x03\x04\x0c\x0e" + b"\x00"
    assert both.check([with_their_size]) == 1


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "map", "values": "int"},
        ["null", "int", "string"],
        {"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]},
        {"type": "record", "name": "R", "fields": []},
        {"type": "array", "items": "null"},
        {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int", "aliases": ["b"]}]},
        {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 5},
    ],
)
def test_schemas_that_are_not_plain_are_decoded_value_by_value(schema: Any) -> None:
    text = SchemaText(json.dumps(schema))
    assert AvroColumn(text).bulk_reader(text) is None


def test_a_topic_is_decoded_in_bulk_and_what_is_damaged_one_by_one(
    tmp_path: Path, singles: list[int]
) -> None:
    write_records(
        tmp_path,
        schema_record("t-value", 1, 1, json.dumps(FLIGHT)),
        schema_record("t-value", 2, 2, json.dumps(LATER)),
        schema_record("u-value", 1, 3, json.dumps(FLIGHT | {"name": "Other"})),
    )
    values: list[bytes | None] = []
    for n in range(3000):
        later = {key: each for key, each in flight(n).items() if key != "id"} | {"gate": "C3"}
        values.append(framed(1, written(FLIGHT, flight(n))))
        values.append(framed(2, written(LATER, later)))
    values[100], values[201], values[302], values[403] = None, b"?", b"\0\0\0\0\1\2", b"\0\0\0\0\7"
    write_values(tmp_path, "t", values)
    rows = read(tmp_path)
    assert sorted(singles) == [100, 201, 302, 403]
    assert [row["offset"] for row in rows] == [*range(6000)]
    assert [row["offset"] for row in rows if row["valueDecoded"] is None] == sorted(singles)
    for n, row in enumerate(rows):
        if n not in singles:
            expected = flight(n // 2) | {"gate": "C3" if n % 2 else "none"}
            del expected["id"]
            assert row["valueDecoded"] == expected
            assert (row["valueSchemaId"], row["valueError"]) == (1 + n % 2, None)
    assert [rows[n]["valueError"] for n in sorted(singles)] == [
        None,
        "the value begins with 3f, expected a byte 0 and the 4 bytes of a schema's id",
        "the value ends too early, after 1 bytes",
        "the value names schema 7, which is not in _schemas",
    ]


@pytest.mark.parametrize("most", [1, 40, 1000])
def test_large_values_make_several_batches_in_both_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    write_records(tmp_path, schema_record("t-value", 1, 1, json.dumps(FLIGHT)))
    values: list[bytes | None] = [framed(1, written(FLIGHT, flight(n))) for n in range(300)]
    values[5], values[17:20], values[299] = None, [b"?"] * 3, None
    write_values(tmp_path, "t", values)
    monkeypatch.setattr(decoded, "_CELLS", most)
    monkeypatch.setattr(reading, "_SMALL_ROWS", 0)  # else they are joined again
    found = []
    for few in (1, 10**9):
        monkeypatch.setattr(decoded, "BULK_FROM", few)
        options = {"decode.value": "avro"}
        batches = [*kafkalog.read(str(tmp_path), "t", options=options)]
        found.append(([each.num_rows for each in batches], pa.Table.from_batches(batches)))
    assert found[0][0] == found[1][0]
    assert found[0][1].equals(found[1][1])
    assert len(found[0][0]) >= 300 // most
