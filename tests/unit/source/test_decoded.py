"""Values of a schema registry's clients come out as the formats' own libraries read them."""

from __future__ import annotations

import datetime as dt
import io
import json
import random
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import avro.io
import avro.schema
import fastavro
import pyarrow as pa
import pytest
from google.protobuf import json_format
from pyspark.sql.types import StructType
from tests.support.logs import Row as LogRow
from tests.support.logs import append_batch, batch_bytes, write_segment
from tests.support.registry_records import (
    deleted_subject,
    framed,
    schema_record,
    tombstone,
    write_records,
    write_values,
)
from tests.support.tiers import KafkaTier, write_log, write_metadata

import kafkalog
from kafkalog.errors import OptionError, SchemaError
from kafkalog.jobs.inspection.records import RecordFilter, RecordReader
from kafkalog.streaming.decoding.avro import AvroColumn, _Walk
from kafkalog.streaming.decoding.json_schema import JsonColumn
from kafkalog.streaming.decoding.protobuf import ProtobufColumn, _Compiled
from kafkalog.streaming.decoding.registry import DecodeError, Registry, SchemaText
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.source import decoded as decoding
from kafkalog.streaming.spark.datasource import KafkaLogDataSource

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FLIGHT: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "namespace": "air",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "carrier", "type": ["null", "string"], "default": None},
        {"name": "delay", "type": "float"},
        {"name": "stops", "type": {"type": "array", "items": "string"}},
        {"name": "seats", "type": {"type": "map", "values": "int"}},
        {"name": "plane", "type": {"type": "fixed", "name": "Tail", "size": 6}},
    ],
}
LATER = {
    **FLIGHT,
    "fields": [
        {**FLIGHT["fields"][0], "type": "double"},
        *FLIGHT["fields"][2:],
        {"name": "gate", "type": "string", "default": "none"},
    ],
}
ROW = {
    "id": 7,
    "carrier": "UA",
    "delay": 2.5,
    "stops": ["EWR", "IAH"],
    "seats": {"A": 3},
    "plane": b"N14228",
}


@pytest.fixture(autouse=True, params=["one by one", "in bulk"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode values of Avro in both ways, few though they are."""
    monkeypatch.setattr(decoding, "BULK_FROM", 10**9 if request.param == "one by one" else 1)


def avro_bytes(schema: object, value: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)  # type: ignore[arg-type]
    return out.getvalue()


def by_reference(writer: object, reader: object, data: bytes) -> Any:
    """Decode as Avro's own library does."""
    parsed = [avro.schema.parse(json.dumps(each)) for each in (writer, reader)]
    return avro.io.DatumReader(*parsed).read(avro.io.BinaryDecoder(io.BytesIO(data)))


def read(log: Path, *, topic: str = "t", **options: str) -> list[dict[str, Any]]:
    columns = ["value", "valueDecoded", "valueSchemaId", "valueError"]
    found = kafkalog.read(
        str(log), topic, columns=columns, options={"decode.value": "avro", **options}
    )
    return with_dicts(found.read_all())


def with_dicts(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Return rows with maps as dicts, which pyarrow 19 cannot."""
    kind = pa.struct(list(rows.schema))
    return [_with_dicts(row, kind) for row in rows.to_pylist()]


def _with_dicts(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {key: _with_dicts(each, kind.item_type) for key, each in value}
    if pa.types.is_struct(kind):
        return {each.name: _with_dicts(value[each.name], each.type) for each in kind}
    if pa.types.is_list(kind):
        return [_with_dicts(each, kind.value_type) for each in value]
    return value


def decoded(log: Path, **options: str) -> list[Any]:
    rows = read(log, **options)
    assert [row["valueError"] for row in rows] == [None] * len(rows)
    return [row["valueDecoded"] for row in rows]


# Avro


@pytest.mark.parametrize("order", ["confluent", "karapace"])
def test_values_of_all_versions_have_the_columns_of_the_newest(tmp_path: Path, order: str) -> None:
    write_records(
        tmp_path,
        schema_record("t-value", 1, 11, json.dumps(FLIGHT), order=order),
        schema_record("t-value", 2, 12, json.dumps(LATER), order=order),
    )
    later = {key: each for key, each in ROW.items() if key != "carrier"} | {"gate": "C3"}
    old, new = avro_bytes(FLIGHT, ROW), avro_bytes(LATER, later)
    write_values(tmp_path, "t", [framed(11, old), framed(12, new)])
    expected = [by_reference(FLIGHT, LATER, old), by_reference(LATER, LATER, new)]
    assert decoded(tmp_path) == expected
    rows = read(tmp_path)
    assert [row["valueSchemaId"] for row in rows] == [11, 12]
    assert [row["value"] for row in rows] == [framed(11, old), framed(12, new)]


@pytest.mark.parametrize("named", ["version:1", "id:11", "VERSION:1", json.dumps(FLIGHT)])
def test_a_schema_that_is_named_gives_the_columns(tmp_path: Path, named: str) -> None:
    write_records(
        tmp_path,
        schema_record("t-value", 1, 11, json.dumps(FLIGHT)),
        schema_record("t-value", 2, 12, json.dumps(LATER)),
    )
    write_values(tmp_path, "t", [framed(11, avro_bytes(FLIGHT, ROW))])
    assert decoded(tmp_path, **{"schema.value": named}) == [ROW]


def test_a_deleted_schema_gives_no_columns_and_still_decodes(tmp_path: Path) -> None:
    write_records(
        tmp_path,
        schema_record("t-value", 1, 11, json.dumps(FLIGHT)),
        schema_record("t-value", 2, 12, json.dumps(LATER)),
        schema_record("t-value", 3, 13, '"string"'),
        schema_record("t-value", 3, 13, '"string"', deleted=True),
        tombstone("t-value", 3, order="karapace"),
        schema_record("gone-value", 1, 14, json.dumps(FLIGHT)),
        deleted_subject("gone-value", 1),
    )
    data = avro_bytes(FLIGHT, ROW)
    write_values(tmp_path, "t", [framed(14, data), framed(13, b"\x02x")])
    first, second = read(tmp_path)
    assert first["valueDecoded"] == by_reference(FLIGHT, LATER, data)
    assert second["valueDecoded"] is None
    assert "SchemaResolutionError" in second["valueError"]


def test_logical_types_are_those_of_spark(tmp_path: Path) -> None:
    def logical(kind: str, name: str, **more: int) -> dict[str, Any]:
        return {"type": kind, "logicalType": name, **more}

    kinds = {
        "day": logical("int", "date"),
        "at": logical("long", "timestamp-millis"),
        "exact": logical("long", "timestamp-micros"),
        "here": logical("long", "local-timestamp-micros"),
        "price": logical("bytes", "decimal", precision=9, scale=2),
        "uid": logical("string", "uuid"),
        "odd": logical("bytes", "decimal", precision=-1),
    }
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    schema = {"type": "record", "name": "R", "fields": fields}
    moment = dt.datetime(2013, 1, 1, 5, 15, 0, 123000, tzinfo=dt.UTC)
    raw = {
        "day": 15706,
        "at": 1357017300123,
        "exact": 1357017300123000,
        "here": 1357017300123000,
        "price": Decimal("-12.50"),
        "uid": "6f1c6d1e-5b1f-4f5e-8d3a-1d2b3c4d5e6f",
        "odd": b"\x01",
    }
    plain = {
        **schema,
        "fields": [
            {**each, "type": each["type"]["type"]} if each["name"] != "price" else each
            for each in fields
        ],
    }
    write_records(tmp_path, schema_record("t-value", 1, 1, json.dumps(schema)))
    write_values(tmp_path, "t", [framed(1, avro_bytes(plain, raw))])
    assert decoded(tmp_path) == [
        raw
        | {"day": dt.date(2013, 1, 1), "at": moment, "exact": moment}
        | {"here": moment.replace(tzinfo=None)}
    ]


def test_a_time_that_no_timestamp_holds_is_an_error_of_its_row_alone(tmp_path: Path) -> None:
    kind = {"type": "long", "logicalType": "timestamp-millis"}
    schema = {"type": "record", "name": "R", "fields": [{"name": "at", "type": kind}]}
    plain = {"type": "record", "name": "R", "fields": [{"name": "at", "type": "long"}]}
    write_records(tmp_path, schema_record("t-value", 1, 1, json.dumps(schema)))
    write_values(
        tmp_path, "t", [framed(1, avro_bytes(plain, {"at": at})) for at in (0, 2**62, 1000)]
    )
    rows = read(tmp_path)
    assert [row["valueDecoded"] is None for row in rows] == [False, True, False]
    assert "does not fit the column" in rows[1]["valueError"]


def test_a_union_of_several_types_has_a_field_for_each(tmp_path: Path) -> None:
    union = [
        "null",
        "int",
        "string",
        {"type": "enum", "name": "E", "symbols": ["p", "q"]},
        {"type": "record", "name": "In", "fields": [{"name": "x", "type": "int"}]},
    ]
    schema = {"type": "record", "name": "R", "fields": [{"name": "u", "type": union}]}
    values = [None, 3, "p", ("E", "q"), ("In", {"x": 1})]
    write_records(tmp_path, schema_record("t-value", 1, 1, json.dumps(schema)))
    write_values(tmp_path, "t", [framed(1, avro_bytes(schema, {"u": each})) for each in values])
    none = dict.fromkeys(["member0", "member1", "member2", "member3"])
    assert [row["u"] for row in decoded(tmp_path)] == [
        None,
        none | {"member0": 3},
        none | {"member1": "p"},
        none | {"member2": "q"},
        none | {"member3": {"x": 1}},
    ]


def test_schemas_that_refer_to_others_are_put_together(tmp_path: Path) -> None:
    tail = {"type": "record", "name": "air.Tail", "fields": [{"name": "n", "type": "string"}]}
    schema = {"type": "record", "name": "F", "fields": [{"name": "tail", "type": "air.Tail"}]}
    write_records(
        tmp_path,
        schema_record("tail", 1, 1, json.dumps(tail)),
        schema_record("t-value", 1, 2, json.dumps(schema), references=[("air.Tail", "tail", 1)]),
    )
    whole = {**schema, "fields": [{"name": "tail", "type": tail}]}
    write_values(tmp_path, "t", [framed(2, avro_bytes(whole, {"tail": {"n": "N1"}}))])
    assert decoded(tmp_path) == [{"tail": {"n": "N1"}}]


def test_what_does_not_decode_is_null_and_says_why(tmp_path: Path) -> None:
    write_records(tmp_path, schema_record("t-value", 1, 1, json.dumps(FLIGHT)))
    whole = avro_bytes(FLIGHT, ROW)
    values = [None, b"", b"plain", framed(9, whole), framed(1, whole[:5]), framed(1, whole)]
    write_values(tmp_path, "t", values)
    rows = read(tmp_path)
    assert [row["value"] for row in rows] == values
    assert [row["valueDecoded"] for row in rows] == [None] * 5 + [ROW]
    assert [row["valueSchemaId"] for row in rows] == [None, None, None, 9, 1, 1]
    assert [row["valueError"] for row in rows] == [
        None,
        "the value begins with nothing, expected a byte 0 and the 4 bytes of a schema's id",
        "the value begins with 70 6c 61 69 6e, expected a byte 0 and the 4 bytes of a schema's id",
        "the value names schema 9, which is not in _schemas",
        "the value ends too early, after 5 bytes",
        None,
    ]


def test_a_schema_registered_while_a_tail_runs_is_read_again(tmp_path: Path) -> None:
    write_records(tmp_path, schema_record("t-value", 1, 1, json.dumps(FLIGHT)))
    write_values(tmp_path, "t", [framed(1, avro_bytes(FLIGHT, ROW))])
    rows = kafkalog.tail(
        str(tmp_path),
        "t",
        columns=["offset", "valueDecoded", "valueError"],
        options={"decode.value": "avro", "startingOffsets": "earliest", "readUpTo": "logEnd"},
    )
    assert with_dicts(next(rows)) == [{"offset": 0, "valueDecoded": ROW, "valueError": None}]
    one = schema_record("t-value", 2, 2, json.dumps(LATER))
    append_batch(tmp_path / "_schemas-0" / f"{0:020d}.log", batch_bytes(1, [one]))
    later = {key: each for key, each in ROW.items() if key != "carrier"} | {"gate": "C3"}
    data = batch_bytes(1, [LogRow(framed(2, avro_bytes(LATER, later | {"id": 7.0})))])
    append_batch(tmp_path / "t-0" / f"{0:020d}.log", data)
    (row,) = next(rows).to_pylist()
    assert "SchemaResolutionError" in row["valueError"]  # a double is no long: it was looked up


def test_schemas_are_looked_for_once_however_many_partitions_a_task_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    def look(options: ReadOptions) -> Registry:
        looks.append(options.schema_topic)
        return read_registry(options)

    read_registry = decoding.read_registry
    write_records(tmp_path, schema_record("t-value", 1, 1, json.dumps(FLIGHT)))
    unknown = framed(9, b"")
    values = [framed(1, avro_bytes(FLIGHT, ROW)), unknown]
    for partition in range(20):
        rows = [LogRow(each) for each in values]
        write_segment(tmp_path / f"t-{partition}", 0, batch_bytes(0, rows))
    reader = KafkaLogDataSource({"path": str(tmp_path), "subscribe": "t", "decode.value": "avro"})
    spark_rows = reader.reader(reader.schema())
    (task,) = spark_rows.partitions()[:1]
    assert len(task.value) > 1
    monkeypatch.setattr(decoding, "read_registry", look)
    batches = [*spark_rows.read(task)]
    assert [batch.num_rows for batch in batches] == [2 * len(task.value)]
    assert looks == ["_schemas"]
    looks.clear()
    found = read(tmp_path)
    assert [row["valueDecoded"] for row in found] == [ROW, None] * 20
    assert len([row for row in found if row["valueError"]]) == 20
    assert looks == ["_schemas"] * 2  # once for the columns


def test_keys_are_decoded_like_values(tmp_path: Path) -> None:
    write_records(tmp_path, schema_record("t-key", 1, 5, '"long"'))
    rows = [LogRow(b"v", key=framed(5, avro_bytes("long", 77)))]
    path = tmp_path / "t-0" / f"{0:020d}.log"
    path.parent.mkdir()
    path.write_bytes(batch_bytes(0, rows))
    found = kafkalog.read(str(tmp_path), "t", options={"decode.key": "avro"}).read_all()
    assert found.column("keyDecoded").to_pylist() == [77]
    assert found.column("value").to_pylist() == [b"v"]


def test_ids_of_another_context_are_its_own(tmp_path: Path) -> None:
    write_records(
        tmp_path,
        schema_record("t-value", 1, 1, '"string"'),
        schema_record(":.eu:t-value", 1, 1, '"long"'),
    )
    write_values(tmp_path, "t", [framed(1, avro_bytes("long", 5))])
    assert decoded(tmp_path, **{"schema.value.subject": ":.eu:t-value"}) == [5]


def test_the_newest_row_of_a_key_is_decoded_too(tmp_path: Path) -> None:
    write_records(tmp_path, schema_record("t-value", 1, 1, '"long"'))
    rows = [LogRow(framed(1, avro_bytes("long", n)), key=b"k") for n in (1, 2)]
    path = tmp_path / "t-0" / f"{0:020d}.log"
    path.parent.mkdir()
    path.write_bytes(batch_bytes(0, rows))
    options = {"decode.value": "avro", "view": "latest"}
    found = kafkalog.read(str(tmp_path), "t", options=options).read_all()
    assert found.column("valueDecoded").to_pylist() == [2]


@pytest.mark.parametrize("view", ["records", "latest"])
def test_values_in_a_remote_tier_are_decoded_like_those_here(tmp_path: Path, view: str) -> None:
    log, tier = tmp_path / "log", KafkaTier(tmp_path / "tier")
    folder = write_log(log, [0, 10], 20)
    tier.move(folder, [0, 10])
    write_metadata(log, tier.records)
    text = json.dumps({"type": "integer"})
    given = {"decode.value": "json", "schema.value": text, "view": view, "readUpTo": "logEnd"}
    found = kafkalog.read(str(log), "t", options={**given, "remote.path": str(tier.root)})
    numbers = sorted(found.read_all().column("valueDecoded").to_pylist())
    assert numbers == ([*range(20)] if view == "records" else [])  # records without keys
    write_records(log, schema_record("t-value", 1, 1, text, kind="JSON"))
    del given["schema.value"]
    found = kafkalog.read(str(log), "t", options={**given, "remote.path": str(tier.root)})
    assert sorted(found.read_all().column("valueDecoded").to_pylist()) == numbers


# JSON

ORDER = {
    "type": "object",
    "definitions": {"place": {"type": "object", "properties": {"city": {"type": "string"}}}},
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": "number"},
        "paid": {"type": ["boolean", "null"]},
        "to": {"$ref": "#/definitions/place"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        "any": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
        "inner": {"$ref": "#"},
    },
}
ORDERED = {
    "id": 1,
    "price": 2,
    "paid": True,
    "to": {"city": "Oslo"},
    "tags": ["a"],
    "counts": {"x": 1},
    "note": "n",
    "any": "text",
    "inner": {"id": 2},
}


def test_json_has_the_columns_of_its_schema(tmp_path: Path) -> None:
    record = schema_record("t-value", 1, 3, json.dumps(ORDER), kind="JSON")
    write_records(tmp_path, record)
    text = json.dumps(ORDERED).encode()
    write_values(tmp_path, "t", [framed(3, text), text, framed(44, b'{"id": 5.0, "more": 1}')])
    whole = ORDERED | {"price": 2.0, "any": '"text"', "inner": '{"id": 2}'}
    few = dict.fromkeys(ORDERED) | {"id": 5}
    assert decoded(tmp_path, **{"decode.value": "json"}) == [whole, whole, few]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{", "is no JSON"),
        (b'{"id": "1"}', "/id is '1', expected an integer"),
        (b'{"id": true}', "/id is True, expected an integer"),
        (b'{"id": 99999999999999999999}', "/id is an integer of more than 64 bits"),
        (b'{"price": NaN}', "NaN is no number of JSON"),
        (b'{"tags": [1]}', "/tags/0 is 1, expected a string"),
        (b"[1]", r"/ is \[1\], expected an object"),
        (b"[" * 100_000, "is nested too deep"),
        (b'{"id": ' + b"9" * 10_000 + b"}", "is no JSON"),
        (b"\xff", "is no JSON"),
    ],
)
def test_json_that_is_none_of_the_schema_says_where(data: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        JsonColumn(SchemaText(json.dumps(ORDER))).decode(data)


def test_json_refers_to_other_schemas_by_name(tmp_path: Path) -> None:
    place = {"type": "object", "properties": {"city": {"type": "string"}}}
    schema = {"type": "object", "properties": {"to": {"$ref": "place.json"}}}
    write_records(
        tmp_path,
        schema_record("place", 1, 1, json.dumps(place), kind="JSON"),
        schema_record(
            *("t-value", 1, 2, json.dumps(schema)),
            kind="JSON",
            references=[("place.json", "place", 1)],
        ),
    )
    write_values(tmp_path, "t", [b'{"to": {"city": "Rome"}}'])
    assert decoded(tmp_path, **{"decode.value": "json"}) == [{"to": {"city": "Rome"}}]


def test_json_needs_no_registry_where_its_schema_is_given(tmp_path: Path) -> None:
    write_values(tmp_path, "t", [b'{"id": 1}'])
    text = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}})
    given = {"decode.value": "json", "schema.value": text}
    assert decoded(tmp_path, **given) == [{"id": 1}]


# Protobuf

PROTO = """
syntax = "proto3";
package air;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "tail.proto";
enum Kind { NONE = 0; JET = 1; }
message Flight {
  int64 id = 1; optional string carrier = 2; repeated string stops = 3;
  map<string, int32> seats = 4; Kind kind = 5; google.protobuf.Timestamp at = 6;
  google.protobuf.Int32Value gate = 7; Tail tail = 8; uint64 big = 9; bytes raw = 10;
  oneof what { string text = 11; int32 number = 12; }
  Flight back = 13; double weight = 14; bool late = 15;
  message Leg { string to = 1; }
  repeated Leg legs = 16;
}
message Other { string x = 1; }
"""
TAIL = 'syntax = "proto3"; package air; message Tail { string n = 1; }'
AS_JSON = {
    "id": "5",
    "carrier": "UA",
    "stops": ["EWR", "IAH"],
    "seats": {"A": 3},
    "kind": "JET",
    "at": "2013-01-01T05:15:00.123456Z",
    "gate": 7,
    "tail": {"n": "N1"},
    "big": "18446744073709551615",
    "raw": "AP8=",
    "number": 4,
    "back": {"id": "6"},
    "weight": 1.5,
    "late": True,
    "legs": [{"to": "IAH"}, {}],
}
TEXT = SchemaText(PROTO, (("tail.proto", TAIL),))


@pytest.fixture(scope="module")
def column() -> ProtobufColumn:
    return ProtobufColumn(TEXT)


def proto_bytes(column: ProtobufColumn, name: str, value: dict[str, Any]) -> bytes:
    made = column._file.maker(name)(b"")
    return json_format.ParseDict(value, made).SerializeToString()  # type: ignore[no-any-return]


def test_protobuf_decodes_to_what_its_library_reads(tmp_path: Path, column: ProtobufColumn) -> None:
    write_records(
        tmp_path,
        schema_record("tail", 1, 1, TAIL, kind="PROTOBUF"),
        schema_record(
            "t-value", 1, 2, PROTO, kind="PROTOBUF", references=[("tail.proto", "tail", 1)]
        ),
    )
    whole = proto_bytes(column, "air.Flight", AS_JSON)
    heads = [b"\0", b"\x02\0"]
    values = [framed(2, head + whole) for head in heads]
    values += [framed(2, b"\0"), framed(2, b"\x02\x02" + b"\x0a\x01x"), framed(2, b"\0\xff")]
    write_values(tmp_path, "t", [*values, framed(2, b"\x04\0\0" + b"\x0a\x01x")])
    rows = read(tmp_path, **{"decode.value": "protobuf"})
    moment = dt.datetime(2013, 1, 1, 5, 15, 0, 123456, tzinfo=dt.UTC)
    expected = AS_JSON | {"id": 5, "at": moment, "big": Decimal(2**64 - 1), "raw": b"\0\xff"}
    expected |= {"text": None, "back": '{"id": "6"}', "legs": [{"to": "IAH"}, {"to": ""}]}
    assert [row["valueDecoded"] for row in rows[:2]] == [expected] * 2
    empty = rows[2]["valueDecoded"]
    assert empty["id"] == 0
    assert empty["kind"] == "NONE"
    assert [empty[name] for name in ("carrier", "at", "tail", "gate", "text", "back")] == [None] * 6
    assert "is a message air.Other, the column is of air.Flight" in rows[3]["valueError"]
    assert "DecodeError" in rows[4]["valueError"]
    assert "is a message air.Flight.Leg" in rows[5]["valueError"]


def test_protobuf_reads_another_message_by_its_name() -> None:
    other = ProtobufColumn(TEXT, "air.Other")
    assert other.reader(TEXT)(b"\x02\x02" + b"\x0a\x01x") == {"x": "x"}
    with pytest.raises(SchemaError, match=r"no message 'air.No', but air.Flight, air.Other"):
        ProtobufColumn(TEXT, "air.No")


def test_protobuf_of_an_older_schema_is_read_by_the_numbers_of_fields() -> None:
    old = SchemaText('syntax = "proto3"; message M { string name = 1; int32 gone = 2; }')
    new = SchemaText('syntax = "proto3"; message M { string title = 1; int32 more = 3; }')
    made = ProtobufColumn(new).reader(old)(b"\0" + b"\x0a\x01x" + b"\x10\x05")
    assert made == {"title": "x", "more": 0}


@pytest.mark.parametrize("name", ["../up.proto", "/etc/x.proto", "a//b.proto", "x" * 300])
def test_protobuf_imports_nothing_from_outside_its_folder(name: str) -> None:
    with pytest.raises(SchemaError, match="no path of a file"):
        _Compiled(SchemaText('syntax = "proto3"; message M {}', ((name, TAIL),)))


def test_protobuf_that_does_not_compile_says_what_the_compiler_says() -> None:
    with pytest.raises(SchemaError, match="Expected"):
        ProtobufColumn(SchemaText("message M { int32 }"))


# What is refused, and what could harm


def test_a_query_without_schemas_says_what_is_there(tmp_path: Path) -> None:
    write_values(tmp_path, "t", [b"x"])
    with pytest.raises(OptionError, match=r"topic _schemas, but no partition .* schema\.topic"):
        read(tmp_path)
    write_records(
        tmp_path,
        schema_record("u-value", 1, 1, '"long"'),
        schema_record("p-value", 1, 2, TAIL, kind="PROTOBUF"),
    )
    with pytest.raises(OptionError, match=r"newest of subject t-value: it has p-value, u-value"):
        read(tmp_path)
    subject = {"schema.value.subject": "p-value"}
    with pytest.raises(OptionError, match=r"is avro, but version 1 of p-value \(id 2\) is of prot"):
        read(tmp_path, **subject)
    options = {"path": str(tmp_path), "subscribePattern": ".*", "decode.value": "avro"}
    with pytest.raises(OptionError, match=r"needs schema\.value\.subject"):
        KafkaLogDataSource(options).schema()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"schema.value": "newest"}, "needs decode.value"),
        ({"decode.key": "json", "schema.key.message": "M"}, "is for decode.key=protobuf"),
        ({"decode.value": "avro", "view": "batches"}, "leave it out with view=batches"),
        ({"decode.value": "xml"}, "avro, json, protobuf"),
        ({"decode.value": "avro", "schema.value": "latest"}, "newest, version:N, id:N"),
    ],
)
def test_options_that_contradict_each_other_are_refused(given: dict[str, str], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        ReadOptions.parse({"path": "/x", "subscribe": "t", **given})


def test_who_shows_records_as_they_are_refuses_decoded_columns(tmp_path: Path) -> None:
    write_values(tmp_path, "t", [b"x"])
    with pytest.raises(OptionError, match=r"are for queries of Spark, kafkalog\.read"):
        kafkalog.get(str(tmp_path), "t", b"k", options={"decode.value": "avro"})
    given = {"path": str(tmp_path), "decode.value": "avro"}
    with pytest.raises(OptionError, match=r"are for queries of Spark, kafkalog\.read"):
        RecordReader.of(given, ["t"], RecordFilter())


def test_topics_whose_schemas_differ_are_not_read_as_one(tmp_path: Path) -> None:
    write_records(
        tmp_path,
        schema_record("t-value", 1, 1, '"long"'),
        schema_record("u-value", 1, 2, '"string"'),
        schema_record("v-value", 1, 3, '"long"'),
    )
    for topic in "tuv":
        write_values(tmp_path, topic, [framed(1, avro_bytes("long", 5))])
    options = {"decode.value": "avro"}
    with pytest.raises(OptionError, match="t-value, u-value give different columns"):
        kafkalog.read(str(tmp_path), ["t", "u"], options=options)
    found = kafkalog.read(str(tmp_path), ["t", "v"], options=options).read_all()
    assert found.column("valueDecoded").to_pylist() == [5, 5]


def test_a_schema_that_came_since_the_plan_does_not_change_its_columns(tmp_path: Path) -> None:
    write_records(tmp_path, schema_record("t-value", 1, 1, json.dumps(FLIGHT)))
    write_values(tmp_path, "t", [b"x"])
    source = KafkaLogDataSource({"path": str(tmp_path), "subscribe": "t", "decode.value": "avro"})
    schema = source.schema()
    one = schema_record("t-value", 2, 2, json.dumps(LATER))
    append_batch(tmp_path / "_schemas-0" / f"{0:020d}.log", batch_bytes(1, [one]))
    assert source.schema() != schema
    source.reader(schema)
    with pytest.raises(OptionError, match="its values are decoded as struct<id:double"):
        source.reader(StructType().add("valueDecoded", "string"))


LINKED = {
    "type": "record",
    "name": "L",
    "fields": [{"name": "next", "type": ["null", "L"]}],
}
NULLS = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}],
}
WIDE = {
    "type": "record",
    "name": "W",
    "fields": [{"name": f"f{n}", "type": "null"} for n in range(2000)]
    + [{"name": "b", "type": "boolean"}],
}


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        (LINKED, b"\x02" * 1_000_000, "nested deeper than"),
        (LINKED, b"\x08", "names type 4 of a union of 2"),
        (NULLS, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "fills more than"),
        (NULLS, b"\x80" * 11, "bad number"),
        (
            {"type": "array", "items": WIDE},
            avro_bytes("long", 100_000) + b"\0" * 100_000,
            "fills more than",
        ),
        ("bytes", avro_bytes("long", 2**62), "ends too early|Error"),
        ({"type": "fixed", "name": "F", "size": 2**62}, b"x", "ends too early|Error"),
    ],
)
def test_a_value_that_would_crash_or_fill_memory_is_an_error(
    schema: object, data: bytes, reason: str
) -> None:
    text = SchemaText(json.dumps(schema))
    with pytest.raises(DecodeError, match=reason):
        AvroColumn(text).reader(text)(data)


def test_items_without_bytes_are_passed_over_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[int] = []
    skip = _Walk.skip
    monkeypatch.setattr(_Walk, "skip", lambda *given: (walked.append(1), skip(*given))[1])
    text = SchemaText(json.dumps(NULLS))
    data = avro_bytes("long", 90_000) + b"\0"
    assert len(AvroColumn(text).reader(text)(data)["a"]) == 90_000
    assert len(walked) < 10


def test_a_short_list_of_a_type_inside_itself_is_text() -> None:
    text = SchemaText(json.dumps(LINKED))
    value: Any = None
    for _ in range(10):
        value = {"next": value}
    made = AvroColumn(text).reader(text)(avro_bytes(LINKED, value))
    assert json.loads(made["next"]) == value["next"]


def laughing(levels: int) -> list[dict[str, Any]]:
    """Give records of which each has two of the next: a billion fields from a few lines."""
    return [
        {
            "type": "record",
            "name": f"R{n}",
            "fields": [{"name": name, "type": f"R{n - 1}" if n else "int"} for name in ("a", "b")],
        }
        for n in range(levels)
    ]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (SchemaText("{"), "no JSON"),
        (SchemaText('{"type":' * 500 + '"int"' + "}" * 500), "nested deeper"),
        (SchemaText("[" * 100_000), "no JSON|nested deeper"),
        (SchemaText('{"type": "record"}'), "no schema of Avro"),
        (SchemaText('"no.such.Type"'), "no schema of Avro"),
        (SchemaText("[7]"), "no schema of Avro"),
        (SchemaText('"int' + " " * (5 << 20) + '"'), "characters"),
        (
            SchemaText('"R29"', tuple((each["name"], json.dumps(each)) for each in laughing(30))),
            "more than 10,000 fields",
        ),
    ],
)
def test_a_schema_that_is_none_or_too_large_is_refused(schema: SchemaText, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        AvroColumn(schema)


def test_json_that_repeats_a_wide_type_is_cut_off() -> None:
    wide = {"type": "object", "properties": {f"f{n}": {"type": "null"} for n in range(5000)}}
    schema = SchemaText(json.dumps({"type": "array", "items": wide}))
    column = JsonColumn(schema)
    assert len(column.decode(b"[{}, {}]")) == 2
    with pytest.raises(DecodeError, match="fills more than"):
        column.decode(b"[" + b"{}," * 300 + b"{}]")


def test_a_registry_s_own_damage_is_counted_and_passed_over() -> None:
    registry = Registry()
    bad: Sequence[tuple[bytes | None, bytes | None]] = [
        (None, b"{}"),
        (b"{", b"{}"),
        (b"[]", b"{}"),
        (b'{"keytype":"SCHEMA","subject":"s","version":"1"}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"s","version":1}', b'{"id":1}'),
        (b"[" * 100_000, b""),
    ]
    for pair in bad:
        registry.feed(*pair)
    registry.feed(b'{"keytype":"NOOP","magic":0}', None)
    registry.feed(
        b'{"keytype":"CONFIG","subject":null,"magic":0}', b'{"compatibilityLevel":"NONE"}'
    )
    assert registry.skipped == len(bad)
    assert registry.subjects() == []


def test_a_schema_that_refers_to_itself_is_refused() -> None:
    registry = Registry()
    for name, other in (("a", "b"), ("b", "a")):
        row = schema_record(name, 1, 1, "x", references=[("r" + other, other, 1)])
        registry.feed(row.key, row.value)
    (schema,) = registry.versions("a")
    with pytest.raises(SchemaError, match="refers to itself"):
        registry.text_of(schema)


def test_random_values_decode_as_avro_s_own_library_does() -> None:
    rng = random.Random(7)
    text = SchemaText(json.dumps(FLIGHT))
    reader, kind = AvroColumn(text).reader(text), AvroColumn(text).type
    for _ in range(200):
        value = {
            "id": rng.randrange(-(2**63), 2**63),
            "carrier": rng.choice([None, "", "é" * rng.randrange(5)]),
            "delay": float(rng.randrange(-1000, 1000)),
            "stops": [str(n) for n in range(rng.randrange(4))],
            "seats": {str(n): n for n in range(rng.randrange(4))},
            "plane": rng.randbytes(6),
        }
        data = avro_bytes(FLIGHT, value)
        (found,) = with_dicts(pa.table({"value": pa.array([reader(data)], kind)}))
        assert found["value"] == by_reference(FLIGHT, FLIGHT, data)
