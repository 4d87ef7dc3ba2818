from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c
from tests.support.logs import Row, batch_bytes
from tests.support.message_sets import message
from tests.support.sinking import Writer, rows, values_of

from kafkalog.errors import CommitError, CorruptRecordError, LogDirectoryError

if TYPE_CHECKING:
    from pathlib import Path

TRANSACTIONAL = 0x10


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Give the one segment of a partition with two committed records."""
    Writer(tmp_path, topic="t").write(0, rows(["a", "b"]))
    return tmp_path / "t-0" / f"{0:020d}.log"


def append(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def go_on(log: Path) -> dict[int, list[str]]:
    directory = log.parent.parent
    Writer(directory, topic="t").write(1, rows(["c"]))
    return values_of([directory], "t")


def of_producer(batch: bytes, producer_id: int) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(">qhi", changed, 43, producer_id, 0, 0)
    struct.pack_into(">I", changed, 17, crc32c(bytes(changed[21:])))
    return bytes(changed)


@pytest.mark.parametrize("cut", [1, 17, 60, 65])
def test_a_torn_batch_above_the_committed_end_is_cut_off(
    log: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    append(log, batch_bytes(2, [Row(b"torn")])[:cut])
    with caplog.at_level(logging.WARNING, "kafkalog.sink"):
        assert go_on(log) == {0: ["a", "b", "c"]}
    assert f"{cut} bytes of a torn batch go" in caplog.text


def test_the_zeros_of_a_preallocated_segment_are_cut_off(log: Path) -> None:
    append(log, bytes(3_000_000))
    assert go_on(log) == {0: ["a", "b", "c"]}


def test_what_another_writer_appended_whole_is_kept_and_gone_on_behind(log: Path) -> None:
    append(log, batch_bytes(2, [Row(b"foreign")]) + batch_bytes(3, [Row(b"torn")])[:-1])
    assert go_on(log) == {0: ["a", "b", "foreign", "c"]}


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_damage_with_a_valid_batch_behind_it_is_no_torn_tail(log: Path, magic: int) -> None:
    damaged = bytearray(batch_bytes(2, [Row(b"damaged")]))
    damaged[-1] ^= 1
    valid = batch_bytes(3, [Row(b"valid")]) if magic == 2 else message(3, None, b"v", magic=magic)
    append(log, bytes(damaged) + valid)
    before = log.read_bytes()
    with pytest.raises(LogDirectoryError, match="damaged in its middle"):
        go_on(log)
    assert log.read_bytes() == before


def test_damage_below_the_committed_end_is_never_cut_off(log: Path) -> None:
    damaged = bytearray(log.read_bytes())
    damaged[-1] ^= 1
    log.write_bytes(damaged)
    with pytest.raises((CommitError, CorruptRecordError), match="committed records are damaged"):
        go_on(log)
    assert log.read_bytes() == bytes(damaged)


def test_nothing_is_appended_behind_an_open_transaction(log: Path) -> None:
    append(log, of_producer(batch_bytes(2, [Row(b"x")], attributes=TRANSACTIONAL), 7))
    with pytest.raises(CommitError, match="began at offset 2 of t-0 is still open"):
        go_on(log)
