"""The index of aborted transactions: Kafka's bytes, and bytes that no broker writes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.corpus import UnpackedCase
from tests.support.transactions import dumped_fields, index_bytes

from kafkalog.errors import CorruptIndexError, LogDirectoryError
from kafkalog.streaming.log.indexes import AbortedTransaction, TxnIndex

ENTRIES = [(7, 100, 105, 103), (8, 103, 110, 111), (7, 111, 114, 115)]


def put(folder: Path, data: bytes, base_offset: int = 100) -> Path:
    path = folder / f"{base_offset:020d}.txnindex"
    path.write_bytes(data)
    return path


def entries_of(path: Path, base_offset: int = 100) -> list[AbortedTransaction]:
    with TxnIndex(path, base_offset) as index:
        index.check()
        found = list(index)
        assert len(found) == len(index)
        return found


def test_entries_are_those_that_kafkas_dump_tool_prints(tmp_path: Path) -> None:
    case = UnpackedCase("p06-transactions", tmp_path)
    dumped = dumped_fields("p06-transactions", ".txnindex")
    for name, entries in dumped.items():
        path = Path(case.path).parent / name
        fields = ("producerId", "firstOffset", "lastOffset", "lastStableOffset")
        assert entries_of(path, int(path.stem)) == [
            tuple(entry[field] for field in fields) for entry in entries
        ]
    assert sum(map(len, dumped.values())) > 20


def test_entries_beyond_a_block_come_in_order(tmp_path: Path) -> None:
    entries = [(n % 5, 2 * n, 2 * n + 1, 2 * n + 2) for n in range(5000)]
    found = entries_of(put(tmp_path, index_bytes(*entries), 0), 0)
    assert found == [AbortedTransaction(*entry) for entry in entries]


def test_an_empty_index_has_no_entries(tmp_path: Path) -> None:
    assert entries_of(put(tmp_path, b"")) == []


@pytest.mark.parametrize("torn", [1, 33])
def test_an_index_that_ends_inside_an_entry_is_refused(torn: int, tmp_path: Path) -> None:
    path = put(tmp_path, index_bytes(*ENTRIES)[: 34 + torn])
    with pytest.raises(CorruptIndexError, match=f"1 entries of 34 bytes and {torn} bytes of"):
        TxnIndex(path, 100)


@pytest.mark.parametrize(
    "entry",
    [
        (-1, 111, 114, 115),
        (7, -1, 114, 115),
        (7, 114, 114, 115),
        (7, 115, 114, 115),
        (7, 111, 110, 111),
        (7, 111, 114, -1),
        (7, 111, 114, 116),
        (7, 111, 114, 2**63 - 1),
        (7, 111, -(2**63), -(2**63)),
    ],
)
def test_an_entry_that_no_broker_writes_is_refused(
    entry: tuple[int, int, int, int], tmp_path: Path
) -> None:
    path = put(tmp_path, index_bytes(*ENTRIES[:2], entry))
    with pytest.raises(CorruptIndexError, match=r"txnindex: entry 2 is none .* is at 110$"):
        entries_of(path)


def test_a_marker_below_the_segment_and_another_version_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptIndexError, match="base offset is 200"):
        entries_of(put(tmp_path, index_bytes(*ENTRIES), 200), 200)
    with pytest.raises(CorruptIndexError, match="version 1"):
        entries_of(put(tmp_path, struct.pack(">hqqqq", 1, *ENTRIES[0])))


def test_an_index_that_shrinks_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    path = put(tmp_path, index_bytes(*ENTRIES))
    with TxnIndex(path, 100) as index:
        path.write_bytes(index_bytes(ENTRIES[0]))
        with pytest.raises(CorruptIndexError, match="ends inside entry 1, it had 3"):
            list(index)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    path = put(tmp_path, index_bytes(*ENTRIES))
    link = tmp_path / "link.txnindex"
    link.symlink_to(path)
    with pytest.raises(LogDirectoryError, match="link"):
        TxnIndex(link, 100)


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=200)
    | st.tuples(st.integers(0, 101), st.binary(min_size=1, max_size=9)).map(
        lambda change: (
            index_bytes(*ENTRIES)[: change[0]]
            + change[1]
            + index_bytes(*ENTRIES)[change[0] + len(change[1]) :]
        )
    )
)
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = put(tmp_path_factory.getbasetemp(), data)
    try:
        found = entries_of(path)
    except CorruptIndexError:
        return
    assert index_bytes(*found) == data
    for entry in found:
        assert 0 <= entry.first_offset < entry.last_offset
