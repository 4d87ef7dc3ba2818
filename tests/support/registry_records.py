"""Records of a schema registry's topic, and values that its clients write."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.support.logs import Row, batch_bytes, write_segment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = [
    "AVRO_SCHEMAS",
    "JSON_SCHEMA",
    "PLAIN_AVRO_SCHEMAS",
    "PROTO_SCHEMA",
    "deleted_subject",
    "framed",
    "schema_record",
    "tombstone",
    "write_records",
    "write_values",
]

AVRO_SCHEMAS = (
    '{"type":"record","name":"L","fields":[{"name":"n","type":["null","int","string","L"]}]}',
    '{"type":"array","items":{"type":"map","values":["null","bytes"]}}',
    (
        '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"array","items":"null"}},'
        '{"name":"d","type":{"type":"bytes","logicalType":"decimal","precision":4,"scale":1}},'
        '{"name":"t","type":{"type":"long","logicalType":"timestamp-millis"}},'
        '{"name":"e","type":{"type":"enum","name":"E","symbols":["p","q"]}}]}'
    ),
)
_PLAIN_FIELDS = (
    '{"name":"l","type":{"type":"array","items":["null",{"type":"record","name":"I","fields":['
    '{"name":"s","type":"string"},{"name":"b","type":{"type":"array","items":"boolean"}}]}]}},'
    '{"name":"e","type":{"type":"enum","name":"E","symbols":["p","q"]}},'
    '{"name":"d","type":["null",{"type":"bytes","logicalType":"decimal","precision":4}]},'
    '{"name":"t","type":{"type":"long","logicalType":"timestamp-millis"}},'
    '{"name":"x","type":{"type":"fixed","name":"X","size":2}},{"name":"f","type":"float"},'
)
PLAIN_AVRO_SCHEMAS = (
    f'{{"type":"record","name":"R","fields":[{_PLAIN_FIELDS}{{"name":"i","type":"int"}}]}}',
    (
        f'{{"type":"record","name":"R","fields":[{{"name":"i","type":["null","long"]}},'
        f'{_PLAIN_FIELDS}{{"name":"n","type":"string","default":"none"}}]}}'
    ),
)
"""Two versions of a schema whose values are decoded in bulk."""
JSON_SCHEMA = (
    '{"type":"object","properties":{"i":{"type":"integer"},"n":{"type":"number"},'
    '"s":{"type":"string"},"l":{"type":"array","items":{"$ref":"#"}},'
    '"m":{"type":"object","additionalProperties":{"type":"boolean"}}}}'
)
PROTO_SCHEMA = (
    'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message M { int32 i = 1;'
    " repeated M inner = 2; map<string, M> named = 3; google.protobuf.Timestamp at = 4;"
    " string s = 5; uint64 u = 6; message In { bytes b = 1; } repeated In ins = 7; }"
)


def schema_record(
    subject: str,
    version: int,
    schema_id: int,
    text: str,
    *,
    kind: str | None = None,
    references: Sequence[tuple[str, str, int]] = (),
    deleted: bool = False,
    order: str = "confluent",
) -> Row:
    """Return a version of a subject, with the fields of its key in the order of a registry."""
    value: dict[str, Any] = {"subject": subject, "version": version, "id": schema_id}
    if kind is not None:
        value["schemaType"] = kind
    if references:
        names = ("name", "subject", "version")
        value["references"] = [dict(zip(names, each, strict=True)) for each in references]
    value |= {"schema": text, "deleted": deleted}
    return Row(json.dumps(value).encode(), key=_key(subject, version, order))


def tombstone(subject: str, version: int, *, order: str = "confluent") -> Row:
    """Return the record by which a version is deleted for good."""
    return Row(None, key=_key(subject, version, order))


def deleted_subject(subject: str, version: int) -> Row:
    """Return the record by which the versions of a subject up to one are deleted."""
    key = {"keytype": "DELETE_SUBJECT", "subject": subject, "magic": 0}
    value = {"subject": subject, "version": version}
    return Row(json.dumps(value).encode(), key=json.dumps(key).encode())


def _key(subject: str, version: int, order: str) -> bytes:
    said = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    names = {
        "confluent": ["keytype", "subject", "version", "magic"],
        "karapace": ["keytype", "magic", "subject", "version"],
    }[order]
    return json.dumps({name: said[name] for name in names}, separators=(",", ":")).encode()


def framed(schema_id: int, payload: bytes) -> bytes:
    """Return a value as a registry's clients write it."""
    return b"\0" + schema_id.to_bytes(4, "big", signed=True) + payload


def write_records(log_dir: Path, *rows: Row, topic: str = "_schemas") -> None:
    """Write the topic of a registry."""
    write_segment(log_dir / f"{topic}-0", 0, batch_bytes(0, rows))


def write_values(log_dir: Path, topic: str, values: Sequence[bytes | None]) -> None:
    """Write a topic with values."""
    write_segment(log_dir / f"{topic}-0", 0, batch_bytes(0, [Row(each) for each in values]))
