"""Whatever the bytes: message sets give rows or an error that says where, and nothing else."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.message_sets import (
    GOLDEN,
    GZIP,
    LZ4,
    SNAPPY,
    gzip_stream,
    lz4_stream,
    message,
    xerial_stream,
)

from kafkalog.errors import CorruptRecordError, TimestampOutOfRangeError
from kafkalog.streaming.records.batch import BatchTable, scan_batches
from kafkalog.streaming.records.builder import assign_offsets
from kafkalog.streaming.records.columns import RecordDecoder
from kafkalog.streaming.records.compression import Codec
from kafkalog.streaming.records.jit.inline import INTERPRETED
from kafkalog.streaming.records.message_sets.builder import wrap_messages
from kafkalog.streaming.records.message_sets.reader import MessageSetReader

EXAMPLES = int(os.environ.get("KAFKALOG_FUZZ_EXAMPLES", "40" if INTERPRETED else "200"))
LIMIT = 1 << 20

SEEDS = [
    *GOLDEN.values(),
    b"".join(message(i, b"k" * i, b"v" * 3 * i, magic=i % 2, timestamp=i) for i in range(6)),
    b"".join(message(i, None, None, magic=1) for i in range(3)) + GOLDEN["v0 lz4"],
]
INTERESTING = [0, 1, 13, 14, 21, 22, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Give a seed with bytes changed, numbers replaced, cut, doubled or followed by noise."""
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.sampled_from(("byte", "number", "cut", "double", "noise")))
        if kind == "byte" and data:
            data[at] = draw(st.integers(0, 255))
        elif kind == "number":
            width = draw(st.sampled_from((1, 4, 8)))
            number = draw(st.sampled_from(INTERESTING)) % 256**width
            data[at : at + width] = number.to_bytes(width, "big")
        elif kind == "cut":
            del data[at:]
        elif kind == "double":
            data += data[at:]
        else:
            data[at:at] = draw(st.binary(max_size=30))
    return bytes(data)


def error_of_reading(data: bytes, table: BatchTable) -> CorruptRecordError | None:
    array = np.frombuffer(data, np.uint8)
    decoder = RecordDecoder(check_crcs=False, max_decompressed_bytes=LIMIT, max_rows=3)
    try:
        for batch in decoder.decode(array, table, path="fuzz.log"):
            batch.validate(full=True)
    except CorruptRecordError as error:
        return error
    except TimestampOutOfRangeError:
        pass
    return None


def read_all(data: bytes) -> None:
    array = np.frombuffer(data, np.uint8)
    table = scan_batches(array).table
    error = error_of_reading(data, table)
    if error is not None:
        assert error.path == "fuzz.log"
        assert error.position in table.position
        assert f"at byte {error.position} (offset" in str(error)
    with contextlib.suppress(CorruptRecordError):
        reader = MessageSetReader(max_decompressed_bytes=LIMIT, check_inner_crcs=True)
        reader.wrapper_facts(array, table[table.magic < 2])


@given(damaged())
@settings(max_examples=EXAMPLES, deadline=None)
def test_damaged_sets_are_read_or_refused(data: bytes) -> None:
    read_all(data)


@given(
    inner=damaged(),
    magic=st.sampled_from((0, 1)),
    codec=st.sampled_from(((GZIP, gzip_stream), (SNAPPY, xerial_stream), (LZ4, lz4_stream))),
    offset=st.sampled_from((0, 1, 7, 2**62, 2**63 - 1)),
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_damage_inside_of_sound_wrappers_is_read_or_refused(
    inner: bytes, magic: int, codec: tuple[int, object], offset: int
) -> None:
    bits, stream = codec
    assert callable(stream)
    read_all(message(offset, None, stream(inner), magic=magic, timestamp=5, attributes=bits))


@given(stream=st.binary(max_size=60), codec=st.sampled_from((GZIP, SNAPPY, LZ4)))
@settings(max_examples=EXAMPLES, deadline=None)
def test_nonsense_in_place_of_a_stream_is_refused(stream: bytes, codec: int) -> None:
    magic_numbers = {GZIP: b"\x1f\x8b\x08", SNAPPY: b"\x82SNAPPY\0", LZ4: b"\x04\x22\x4d\x18"}
    for start in (b"", magic_numbers[codec]):
        read_all(message(3, None, start + stream, magic=1, attributes=codec))


@given(damaged(), st.sampled_from((0, 5, 2**63 - 2)))
@settings(max_examples=EXAMPLES, deadline=None)
def test_damaged_sets_are_numbered_and_wrapped_or_refused(data: bytes, first: int) -> None:
    array = np.frombuffer(bytearray(data), np.uint8)
    with contextlib.suppress(CorruptRecordError):
        wrap_messages(array, Codec.SNAPPY)
    with contextlib.suppress(CorruptRecordError):
        assign_offsets(array, first, 0)


@pytest.mark.long
@pytest.mark.skipif(INTERPRETED, reason="this is the run with kernels in Python")
def test_kernels_that_check_every_index_find_nothing_either() -> None:
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env=os.environ | {"KAFKALOG_JIT": "0"},
        check=True,
        capture_output=True,
    )
