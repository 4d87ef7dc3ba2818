"""Entries are told apart, and from what cannot be one, by their headers alone."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.record_batches import Row, array, batch_of, encode, joined, patched, table_of

from kafkalog.errors import CorruptRecordError, UnsupportedFormatError
from kafkalog.streaming.records import batch_kernels, batch_layout
from kafkalog.streaming.records import crc_kernels as crc_library
from kafkalog.streaming.records.batch import (
    BatchHeader,
    BatchTable,
    invalid_checksums,
    parse_header,
    scan_batches,
)
from kafkalog.streaming.records.jit.inline import INTERPRETED
from kafkalog.streaming.records.jit.kernel import _Kernel, as_python

_V2 = joined(encode([Row(b"k", b"v", 5)])).tobytes()
_V0 = bytes.fromhex("0000000000000005000000101fecd70a0000000000016b0000000176")
_V1 = bytes.fromhex("000000000000000500000018e4e321bc010000000000000003e8000000016b0000000176")
_V1_WRAPPER = bytes.fromhex(
    "00000000000000060000004c7de50707010100000000000003e8ffffffff000000361f8b08000000000000ff"
    "6360800389278f15f7304239cc2f800463368828830a81a4c4f24cac76c3d53cfb0f05004222b7b946000000"
)


def test_the_fields_of_the_header_add_up_to_its_size() -> None:
    sizes = [8, 4, 4, 1, 4, 2, 4, 8, 8, 8, 2, 4, 4]
    assert sum(sizes) == batch_layout.HEADER_SIZE == 61
    positions = [
        batch_layout.OFFSET_POSITION,
        batch_layout.SIZE_POSITION,
        batch_layout.LEADER_EPOCH_POSITION,
        batch_layout.MAGIC_POSITION,
        batch_layout.CRC_POSITION,
        batch_layout.ATTRIBUTES_POSITION,
        batch_layout.LAST_OFFSET_DELTA_POSITION,
        batch_layout.BASE_TIMESTAMP_POSITION,
        batch_layout.MAX_TIMESTAMP_POSITION,
        batch_layout.PRODUCER_ID_POSITION,
        batch_layout.PRODUCER_EPOCH_POSITION,
        batch_layout.BASE_SEQUENCE_POSITION,
        batch_layout.COUNT_POSITION,
    ]
    assert positions == [sum(sizes[:i]) for i in range(len(sizes))]
    fields = batch_layout.HEADERS.fields or {}
    assert [field[1] for field in fields.values()] == positions
    assert batch_layout.HEADERS.itemsize == batch_layout.HEADER_SIZE


def test_one_module_says_where_the_fields_of_the_header_lie() -> None:
    folder = Path(inspect.getfile(batch_layout)).parents[1]
    names = "|".join(name for name in batch_layout.__all__ if name.endswith(("POSITION", "MASK")))
    copy = re.compile(rf'Struct\(">qi|\("crc", ">u4"\)|^_?({names}): Final', re.MULTILINE)
    for path in folder.glob("**/*.py"):
        if "message_sets" not in path.parts:  # older magics have a layout of their own
            owns = path.name == "batch_layout.py"
            assert bool(copy.search(path.read_text(encoding="utf-8"))) == owns, path


def test_all_magics_stand_side_by_side() -> None:
    table = table_of(array(_V0 + _V1 + _V1_WRAPPER + _V2))
    assert table.magic.tolist() == [0, 1, 1, 2]
    assert table.position.tolist() == [0, 28, 64, 64 + len(_V1_WRAPPER)]
    assert table.size.tolist() == [28, 36, len(_V1_WRAPPER), len(_V2)]
    assert table.base_offset.tolist() == [5, 5, -1, 0]
    assert table.last_offset.tolist() == [5, 5, 6, 0]
    assert table.count.tolist() == [1, 1, -1, 1]
    assert table.max_timestamp.tolist() == [-1, 1000, 1000, 5]
    assert table.codec.tolist() == [0, 0, 1, 0]
    assert table.leader_epoch.tolist() == [-1] * 4


def _header_of(attributes: int = 0, count: int = 3) -> BatchHeader | None:
    batch = batch_layout.seal_batch(
        [],
        base_offset=7,
        leader_epoch=0,
        attributes=attributes,
        last_offset_delta=2,
        base_timestamp=1000,
        max_timestamp=2000,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=count,
    )
    return parse_header(batch, 0, len(batch))


def test_a_header_tells_the_first_time_unless_a_cleaner_took_records_or_there_are_none() -> None:
    control, horizon = batch_layout.CONTROL_MASK, batch_layout.DELETE_HORIZON_MASK
    headers = [
        _header_of(),
        _header_of(batch_layout.LOG_APPEND_TIME_MASK),
        _header_of(control),
        _header_of(horizon),
        _header_of(count=2),
        parse_header(_V1, 0, len(_V1)),
    ]
    assert [header and header.first_timestamp for header in headers] == [1000, 2000, *[None] * 4]


def test_positions_count_from_where_the_data_lies_in_the_file() -> None:
    scan = scan_batches(array(_V2 + _V2), file_position=1000)
    assert scan.table.position.tolist() == [1000, 1000 + len(_V2)]
    assert scan.table.end_position.tolist() == [1000 + len(_V2), 1000 + 2 * len(_V2)]
    assert not invalid_checksums(array(_V2 + _V2), scan.table, file_position=1000).any()


def test_more_batches_than_one_table_holds_are_all_found() -> None:
    data = joined(encode([Row(None, None)] * 3000, target_bytes=1))
    table = table_of(data)
    assert len(table) == 3000
    assert table.position.tolist() == list(range(0, len(data), len(data) // 3000))


@pytest.mark.parametrize("cut", range(len(_V2)))
def test_a_torn_entry_says_how_many_bytes_it_needs(cut: int) -> None:
    scan = scan_batches(array(_V2 + _V2[:cut]))
    assert (len(scan.table), scan.consumed, scan.invalid) == (1, len(_V2), None)
    assert scan.needed == (0 if cut == 0 else 17 if cut < 17 else len(_V2))


@pytest.mark.parametrize(
    ("position", "replacement", "reason"),
    [
        (8, b"\x00\x00\x00\x0d", "a size of 13"),
        (8, b"\xff\xff\xff\xff", "a size of -1"),
        (8, b"\x00\x00\x00\x30", "a size of 48"),
        (0, b"\xff" * 8, "offset"),
        (0, b"\x7f" + b"\xff" * 7, "offset"),
        (23, b"\xff\xff\xff\xff", "offset delta"),
        (57, b"\xff\xff\xff\xff", "-1 records"),
    ],
)
def test_what_cannot_be_an_entry_is_told_with_its_position(
    position: int, replacement: bytes, reason: str
) -> None:
    broken = patched(_V2, position, replacement)
    scan = scan_batches(array(_V2 + broken), file_position=50, path="0.log")
    assert (len(scan.table), scan.consumed, scan.needed) == (1, len(_V2), 0)
    assert isinstance(scan.invalid, CorruptRecordError)
    assert reason in str(scan.invalid)
    assert f"0.log at byte {50 + len(_V2)}" in str(scan.invalid)
    assert (scan.invalid.path, scan.invalid.position) == ("0.log", 50 + len(_V2))


@pytest.mark.parametrize("magic", [3, 127, 128, 255])
def test_a_magic_from_the_future_is_an_unsupported_format(magic: int) -> None:
    scan = scan_batches(array(patched(_V2, 16, bytes([magic]))))
    assert isinstance(scan.invalid, UnsupportedFormatError)


def test_a_size_that_is_too_small_for_its_magic_is_refused() -> None:
    too_small = _V1[:8] + (21).to_bytes(4, "big") + _V1[12:]
    assert "a size of 21" in str(scan_batches(array(too_small)).invalid)


def test_a_tail_of_zeros_is_no_entry() -> None:
    scan = scan_batches(array(_V2 + bytes(100)))
    assert scan.consumed == len(_V2)
    assert isinstance(scan.invalid, CorruptRecordError)


def test_no_bytes_are_no_entries() -> None:
    scan = scan_batches(array(b""))
    assert (len(scan.table), scan.consumed, scan.needed, scan.invalid) == (0, 0, 0, None)


@pytest.fixture(params=[True, False])
def is_exported(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run a test both ways: with the library's function exported, and as on builds without."""
    if request.param:
        assert crc_library.is_exported()
    else:
        monkeypatch.setattr(crc_library, "is_exported", lambda: False)
    return bool(request.param)


@pytest.mark.usefixtures("is_exported")
@pytest.mark.parametrize("body", [1, 500, 5_000])
def test_a_flipped_bit_under_the_checksum_is_found(body: int) -> None:
    one = joined(encode([Row(None, bytes(body))]))
    data = np.concatenate([one, one, array(_V0), array(_V1)])
    table = table_of(data)
    assert not invalid_checksums(data, table).any()
    assert not invalid_checksums(data, table[:2]).any()
    for flipped, expected in [
        (21, [True, False, False, False]),
        (len(one) - 1, [True, False, False, False]),
        (len(one) + 60, [False, True, False, False]),
        (2 * len(one) + 16, [False, False, True, False]),
        (len(data) - 1, [False, False, False, True]),
        (len(one) + 12, [False] * 4),  # the leader epoch lies outside
    ]:
        broken = data.copy()
        broken[flipped] ^= 0x10
        assert invalid_checksums(broken, table).tolist() == expected
        assert invalid_checksums(broken, table[:2]).tolist() == expected[:2]


@pytest.mark.skipif(INTERPRETED, reason="kernels run as Python")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_FUNCTION", "crc_not_there"),
        ("_FUNCTION", "crc32c_init_hw_adler"),
        ("_ANSWER", 0),
    ],
)
def test_a_build_with_another_function_is_noticed(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crc_library, name, value)
    assert not crc_library.is_exported.__wrapped__()


@pytest.mark.skipif(INTERPRETED, reason="kernels run as Python")
def test_a_processor_without_the_instruction_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crc32c.hardware_based", False)
    assert not crc_library.is_exported.__wrapped__()


@pytest.mark.usefixtures("is_exported")
def test_a_batch_that_does_not_lie_in_the_data_matches_no_checksum() -> None:
    table = table_of(array(_V2 + _V2))
    assert invalid_checksums(array(_V2), table).tolist() == [False, True]
    assert invalid_checksums(array(_V2 + _V2), table, file_position=10).tolist() == [True, True]


def test_tables_are_cut_by_slices_masks_and_indexes() -> None:
    table = table_of(array(_V0 + _V1 + _V2))
    assert table[1:].magic.tolist() == [1, 2]
    assert table[table.magic != 1].magic.tolist() == [0, 2]
    assert table[np.array([2, 0])].magic.tolist() == [2, 0]
    assert len(BatchTable.empty()) == 0


def test_attribute_bits_mean_something_only_in_the_magic_that_has_them() -> None:
    all_bits = batch_of(b"", 0, attributes=0x7F)
    v0 = _V0[:17] + b"\xf8" + _V0[18:]
    table = table_of(array(all_bits + v0))
    assert table.is_control.tolist() == [True, False]
    assert table.is_transactional.tolist() == [True, False]
    assert table.is_log_append_time.tolist() == [True, False]


@pytest.mark.skipif(INTERPRETED, reason="kernels run as Python")
def test_little_work_that_comes_again_and_again_is_done_by_kernels_at_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_python = Counter[str]()
    in_python = as_python(batch_kernels.walk)

    def counted(*facts: Any) -> int:
        by_python["walks"] += 1
        return in_python(*facts)

    monkeypatch.setattr(_Kernel, "is_any_loaded", False)
    monkeypatch.setattr(_Kernel, "counted_in_python", 0)
    monkeypatch.setattr(batch_kernels.walk, "as_python", counted)
    data = np.frombuffer(_V2, np.uint8)
    assert {len(scan_batches(data).table) for _ in range(2000)} == {1}
    assert 900 < by_python["walks"] < 1100
