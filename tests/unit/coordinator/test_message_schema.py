"""The message format read by schema: every length is checked before it is used."""

from __future__ import annotations

import contextlib
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import messages as write

from kafkalog.errors import CorruptRecordError, UnsupportedFormatError
from kafkalog.streaming.coordinator.message_schema import (
    Field,
    MessageReader,
    Schema,
    array_of,
    int8,
    int16,
    int32,
    int64,
    nullable_array_of,
    nullable_bytes,
    nullable_string,
    plain_bytes,
    string,
    struct_of,
    tagged_struct_of,
    uuid,
)

EVERYTHING = Schema(
    "Everything",
    struct_of(
        Field("small", int8),
        Field("short", int16),
        Field("middle", int32, since=1),
        Field("long", int64, until=1, default=7),
        Field("text", string),
        Field("maybeText", nullable_string),
        Field("bytes", plain_bytes),
        Field("maybeBytes", nullable_bytes),
        Field("list", array_of(struct_of(Field("name", string)))),
        Field("maybeList", nullable_array_of(int16)),
        Field("id", uuid),
        Field("tagged", int64, default=-1, tag=0),
        Field("taggedStruct", tagged_struct_of(Field("x", int32)), tag=3),
    ),
    last_version=2,
    first_flexible=2,
)

VERSION_0 = (
    write.i8(-1)
    + write.i16(-2)
    + write.i64(-(2**63))
    + write.string("é")
    + write.string(None)
    + write.data(b"\x00\xff")
    + write.data(None)
    + write.array(write.string("a"), write.string(""))
    + write.i32(-1)
    + bytes(range(16))
)
VERSION_2 = (
    write.i8(127)
    + write.i16(2)
    + write.i32(-3)
    + write.compact_string("é")
    + write.compact_string("")
    + write.compact_data(b"")
    + write.compact_data(b"x" * 200)
    + write.compact_array(write.compact_string("a") + write.NO_TAGS)
    + write.compact_array(write.i16(5), write.i16(6))
    + bytes(16)
    + write.tags(t0=write.i64(42), t1=b"from the future", t3=b"\x01" + write.i32(9) + write.NO_TAGS)
)


def test_a_classic_version_has_fixed_lengths_and_no_tags() -> None:
    assert EVERYTHING.decode(VERSION_0, 0) == {
        "small": -1,
        "short": -2,
        "middle": None,
        "long": -(2**63),
        "text": "é",
        "maybeText": None,
        "bytes": b"\x00\xff",
        "maybeBytes": None,
        "list": [{"name": "a"}, {"name": ""}],
        "maybeList": None,
        "id": "AAECAwQFBgcICQoLDA0ODw",
        "tagged": -1,
        "taggedStruct": None,
    }


def test_a_flexible_version_has_compact_lengths_and_tags_of_which_unknown_ones_are_skipped() -> (
    None
):
    assert EVERYTHING.decode(VERSION_2, 2) == {
        "small": 127,
        "short": 2,
        "middle": -3,
        "long": 7,
        "text": "é",
        "maybeText": "",
        "bytes": b"",
        "maybeBytes": b"x" * 200,
        "list": [{"name": "a"}],
        "maybeList": [5, 6],
        "id": "AAAAAAAAAAAAAAAAAAAAAA",
        "tagged": 42,
        "taggedStruct": {"x": 9},
    }


@pytest.mark.parametrize(("message", "version"), [(VERSION_0, 0), (VERSION_2, 2)])
def test_a_message_cut_anywhere_is_refused(message: bytes, version: int) -> None:
    for size in range(len(message)):
        with pytest.raises(CorruptRecordError, match="at byte"):
            EVERYTHING.decode(message[:size], version)


def test_bytes_after_the_last_field_are_ignored() -> None:
    assert EVERYTHING.decode(VERSION_0 + b"more", 0) == EVERYTHING.decode(VERSION_0, 0)


@pytest.mark.parametrize("version", [-1, 3])
def test_a_version_beyond_the_known_ones_is_named(version: int) -> None:
    with pytest.raises(UnsupportedFormatError, match=f"Everything version {version} is not known"):
        EVERYTHING.decode(VERSION_0, version)


@pytest.mark.parametrize(
    ("field", "message", "reason"),
    [
        (Field("f", string), write.i16(-1), "is null"),
        (Field("f", string), write.i16(-2), "is null"),
        (Field("f", plain_bytes), write.i32(-1), "is null"),
        (Field("f", array_of(int8)), write.i32(-1), "is null"),
        (Field("f", string), write.i16(3) + b"ab", "needs 3 bytes, 2 are left"),
        (Field("f", plain_bytes), write.i32(2**31 - 1), "needs 2147483647 bytes, 0 are left"),
        (Field("f", array_of(int8)), write.i32(2) + b"a", "has 2 elements in 1 bytes"),
        (Field("f", uuid), bytes(15), "needs 16 bytes, 15 are left"),
    ],
)
def test_what_a_field_cannot_be_is_refused_by_name(
    field: Field, message: bytes, reason: str
) -> None:
    with pytest.raises(CorruptRecordError, match=rf"field 'f' at byte \d+ {reason}"):
        Schema("S", struct_of(field)).decode(message, 0)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16383, 16384, 2**31 - 1, 2**35 - 1])
def test_a_uvarint_is_read_up_to_five_bytes(value: int) -> None:
    assert MessageReader(write.uvarint(value), 0, flexible=True).uvarint() == value


def test_a_uvarint_of_six_bytes_is_refused() -> None:
    with pytest.raises(CorruptRecordError, match="more than 5 bytes"):
        MessageReader(b"\x80\x80\x80\x80\x80\x00", 0, flexible=True).uvarint()


@pytest.mark.parametrize(
    "message",
    [
        write.uvarint(2**35 - 1),  # so many tagged fields
        write.uvarint(1) + write.uvarint(0) + write.uvarint(2**35 - 1),  # so long a tagged field
        write.uvarint(1) + write.uvarint(0) + write.uvarint(3) + b"abc",  # too short for its type
    ],
)
def test_tagged_fields_are_held_against_the_bytes_that_are_left(message: bytes) -> None:
    schema = Schema("S", struct_of(Field("t", int64, tag=0)), first_flexible=0)
    with pytest.raises(CorruptRecordError, match="needs"):
        schema.decode(message, 0)


@given(st.binary(max_size=120), st.integers(0, 2))
@settings(max_examples=200)
def test_any_bytes_are_read_or_refused(message: bytes, version: int) -> None:
    with contextlib.suppress(CorruptRecordError):
        EVERYTHING.decode(message, version)


def test_a_length_field_makes_nobody_allocate() -> None:
    nested = Schema("S", struct_of(Field("f", array_of(array_of(string)))))
    message = write.i32(1000) + write.i32(2**31 - 1) + bytes(1000)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError, match="2147483647 elements in 1000 bytes"):
            nested.decode(message, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
