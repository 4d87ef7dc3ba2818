"""Kafka's checkpoint text format, as strict as Kafka reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkalog.checkpoints import broker as checkpoint_file
from kafkalog.checkpoints.broker import read_checkpoint, write_checkpoint
from kafkalog.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


def test_entries_are_written_as_kafka_writes_them(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_checkpoint(path, [("flights", 0, 12), ("a-b", 3, 2**63 - 1)])
    assert path.read_bytes() == b"0\n2\nflights 0 12\na-b 3 9223372036854775807\n"


def test_an_empty_file_has_no_entries(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b"")
    assert read_checkpoint(path, fields=3) == []


@pytest.mark.parametrize(
    "content",
    [b"0\n1\na 0 5", b"0\r\n1\r\na 0 5\r\n", b"0\n1\na\t0  5 \n", b"+0\n01\na 0 5\n"],
    ids=["no final line end", "Windows line ends", "any white space", "signs and zeros"],
)
def test_what_kafka_reads_is_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    assert read_checkpoint(path, fields=3) == [("a", "0", "5")]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"1\n0\n", "version 1"),
        (b"x\n0\n", "line 1"),
        (b"\n", "line 1"),
        (b"0\n", "ends before the number of entries"),
        (b"0\nx\n", "line 2"),
        (b"0\n-1\n", "announces -1 entries"),
        (b"0\n2\na 0 5\n", "announces 2 entries and has 1"),
        (b"0\n1\na 0 5\nb 0 5\n", "announces 1 entries and has 2"),
        (b"0\n1\na 0\n", "line 3"),
        (b"0\n1\na 0 5 6\n", "line 3"),
        (b"0\n1\n a 0 5\n", "line 3"),
        (b"0\n2\na 0 5\n\n", "line 4"),
        (b"0\n99999999999\n", "no 32-bit integer"),
        ("0\n1\na 0 \u0665\n".encode(), ""),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_what_breaks_the_format_is_refused_with_its_line(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    if not reason:
        assert read_checkpoint(path, fields=3) == [("a", "0", "\u0665")]  # the field is not ours
        return
    with pytest.raises(CheckpointError, match=reason) as raised:
        read_checkpoint(path, fields=3)
    assert str(path) in str(raised.value)


_WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1)


@pytest.mark.long
@given(st.lists(st.tuples(_WORDS, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[str, int, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "checkpoint"
    write_checkpoint(path, entries, fsync=False)
    assert read_checkpoint(path, fields=3) == [tuple(map(str, entry)) for entry in entries]


def test_what_would_be_too_large_to_read_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint"
    entries = [("topic", number, 0) for number in range(9)]
    write_checkpoint(path, entries)
    monkeypatch.setattr(checkpoint_file, "_MAX_BYTES", path.stat().st_size)
    with pytest.raises(CheckpointError, match=r"checkpoint would have 106 bytes, and more than 94"):
        write_checkpoint(path, [*entries, ("topic", 10, 0)])
    assert len(read_checkpoint(path, fields=3)) == 9


@given(st.binary(max_size=200) | st.text("0123456789 \n-ab", max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "checkpoint"
    path.write_bytes(content)
    try:
        entries = read_checkpoint(path, fields=2)
    except CheckpointError:
        return
    assert all(len(entry) == 2 for entry in entries)
