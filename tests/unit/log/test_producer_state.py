"""Producer state snapshots: Kafka's bytes, and bytes that no broker writes."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.corpus import UnpackedCase
from tests.support.transactions import dumped_fields, snapshot_bytes

from kafkalog.errors import CheckpointError
from kafkalog.streaming.log.producer_state import (
    EMPTY_SNAPSHOT,
    open_transactions,
    read_snapshot,
)

DUMPED = {
    "producerId": "producer_id",
    "producerEpoch": "epoch",
    "coordinatorEpoch": "coordinator_epoch",
    "currentTxnFirstOffset": "txn_first_offset",
    "lastTimestamp": "timestamp",
    "lastSequence": "last_sequence",
    "lastOffset": "last_offset",
    "offsetDelta": "offset_delta",
}


def put(folder: Path, data: bytes) -> Path:
    path = folder / f"{100:020d}.snapshot"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", ["p06-transactions", "p09-groups"])
def test_entries_are_those_that_kafkas_dump_tool_prints(name: str, tmp_path: Path) -> None:
    case = UnpackedCase(name, tmp_path)
    seen = 0
    for file, entries in dumped_fields(name, ".snapshot").items():
        if "__cluster_metadata" in file:  # another kind of snapshot, of the same name
            continue
        found = read_snapshot(Path(case.path).parent / file)
        assert len(found) == len(entries)
        for entry, expected in zip(found, entries, strict=True):
            for field, number in expected.items():
                if field in DUMPED:
                    assert entry[DUMPED[field]] == number, (file, field)
        seen += len(entries)
    assert seen > 0


def test_open_transactions_are_those_with_a_first_offset(tmp_path: Path) -> None:
    path = put(tmp_path, snapshot_bytes({7: 40, 8: 0}, others=[9]))
    assert len(read_snapshot(path)) == 3
    assert open_transactions(path) == {7: 40, 8: 0}
    assert open_transactions(put(tmp_path, EMPTY_SNAPSHOT)) == {}


def sealed(version: int, body: bytes) -> bytes:
    return struct.pack(">hI", version, crc32c(body)) + body


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes are no producer snapshot"),
        (EMPTY_SNAPSHOT[:-1], "9 bytes are no producer snapshot"),
        (sealed(2, struct.pack(">i", 0)), "version 2, known is 1"),
        (sealed(1, struct.pack(">i", 1)), "1 entries do not make 10 bytes"),
        (sealed(1, struct.pack(">i", -1)), "-1 entries do not make 10 bytes"),
        (snapshot_bytes({7: 40})[:-1], "checksum"),
        (snapshot_bytes({-7: 40}), "entry 0 has a negative id"),
        (snapshot_bytes({7: -2}), "entry 0 has a negative id or offset"),
    ],
)
def test_a_snapshot_that_no_broker_writes_is_refused(
    data: bytes, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        read_snapshot(put(tmp_path, data))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=120), st.booleans())
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, with_checksum: bool
) -> None:
    path = put(tmp_path_factory.getbasetemp(), sealed(1, data) if with_checksum else data)
    try:
        opened = open_transactions(path)
    except CheckpointError:
        return
    assert all(first >= 0 for first in opened.values())
