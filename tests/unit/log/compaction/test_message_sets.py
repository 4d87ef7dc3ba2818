"""Cleaning of magic 0 and 1: messages, and wrappers that lose some of theirs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.support.cleaning import NOW, CleanableLog
from tests.support.message_set_encoding import encode_message_set
from tests.support.message_sets import gzip_stream, message
from tests.support.record_batches import Row, columns

from kafkalog.model import TimestampType
from kafkalog.streaming.records.batch import scan_batches
from kafkalog.streaming.records.compression import Codec
from kafkalog.streaming.records.message_sets.layout import open_wrapper

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]


def messages(
    base: int, rows: Sequence[tuple[bytes, bytes | None]], magic: int, codec: Codec, **more: Any
) -> bytes:
    """Encode messages of (key, value), a second apart."""
    named = [Row(key, value, NOW + 1000 * n) for n, (key, value) in enumerate(rows)]
    return encode_message_set(columns(named), np.arange(len(rows)), magic, codec, base, **more)


def make(tmp_path: Path, *segments: bytes, ages_ms: Sequence[int] = ()) -> CleanableLog:
    """Write segments, the first at offset 0, the others named by their numbers from 10 on."""
    log = CleanableLog(tmp_path / "t-0", {"delete.retention.ms": "1000"})
    log.folder.mkdir()
    for number, data in enumerate(segments):
        path = log.folder / f"{10 * number:020d}.log"
        path.write_bytes(data)
        age = ages_ms[number] if number < len(ages_ms) else 0
        os.utime(path, ns=((NOW - age) * 10**6,) * 2)
    return log


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_the_last_message_of_each_key_stays(tmp_path: Path, magic: int, codec: Codec) -> None:
    stays = messages(4, [(b"c", b"5"), (b"d", b"6")], magic, codec)
    log = make(
        tmp_path,
        messages(0, [(b"a", b"1"), (b"b", b"2"), (b"e", b"3"), (b"a", b"4")], magic, codec) + stays,
        messages(10, [(b"a", b"7")], magic, codec),
        messages(20, [(b"x", b"8")], magic, codec),
    )
    log.clean()
    assert log.records() == {
        1: (b"b", b"2"),
        2: (b"e", b"3"),
        4: (b"c", b"5"),
        5: (b"d", b"6"),
        10: (b"a", b"7"),
        20: (b"x", b"8"),
    }
    data = np.frombuffer((log.folder / f"{0:020d}.log").read_bytes(), np.uint8)
    table = scan_batches(data).table
    assert set(table.magic.tolist()) == {magic}
    assert set(table.codec.tolist()) == {codec}
    assert stays in data.tobytes()
    if codec is not Codec.NONE:
        assert table.last_offset.tolist() == [2, 5, 10]  # the first had offset 3
        expected = NOW + 2000 if magic else -1
        assert int(table.max_timestamp[0]) == expected
    times = [time for one in log.batches()[:3] for *_, time in one.records][:2]
    assert times == ([NOW + 1000, NOW + 2000] if magic else [-1, -1])


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_messages_keep_the_time_that_a_broker_gave_them(tmp_path: Path, codec: Codec) -> None:
    stamped = {"timestamp_type": TimestampType.LOG_APPEND_TIME, "log_append_time_ms": 77}
    log = make(
        tmp_path,
        messages(0, [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")], 1, codec, **stamped),
        messages(10, [(b"x", b"8")], 1, codec),
    )
    log.clean()
    records = [record for one in log.batches() for record in one.records]
    assert records[:2] == [(1, b"b", b"2", 77), (2, b"a", b"3", 77)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_a_first_round_has_no_clean_segment_by_whose_age_tombstones_go(
    tmp_path: Path, magic: int, codec: Codec
) -> None:
    def segment(number: int, *rows: tuple[bytes, bytes | None]) -> bytes:
        return messages(10 * number, rows, magic, codec)

    log = make(
        tmp_path,
        segment(0, (b"a", None), (b"A", b"1")),
        segment(1, (b"b", None), (b"B", b"1")),
        segment(2, (b"c", None), (b"C", b"1")),
        segment(3, (b"d", None), (b"D", b"1")),
        segment(4, (b"x", b"1")),
        ages_ms=[5000, 1900, 1000, 900],
    )
    log.clean()
    assert [offset for offset in log.records() if offset % 10 == 0] == [0, 10, 20, 30, 40]


def test_the_tombstones_of_old_segments_go(tmp_path: Path) -> None:
    log = make(
        tmp_path,
        messages(0, [(b"a", None), (b"A", b"1")], 1, Codec.GZIP),
        messages(10, [(b"b", None), (b"B", b"1")], 1, Codec.NONE),
        messages(20, [(b"c", None), (b"C", b"1")], 1, Codec.NONE),
        messages(30, [(b"d", b"1")], 1, Codec.NONE),
        ages_ms=[5000, 1900, 1000],
    )
    log.clean_to = 20  # the horizon is a second before the segment at 10 was written
    log.clean()
    assert list(log.records()) == [1, 10, 11, 20, 21, 30]


def test_a_last_message_without_a_key_leaves_nothing(tmp_path: Path) -> None:
    one = encode_message_set(columns([Row(None, b"v", NOW)]), np.arange(1), 1, Codec.NONE, 9)
    log = make(
        tmp_path,
        messages(0, [(b"a", b"1")], 1, Codec.NONE) + one,
        messages(10, [(b"x", b"8")], 1, Codec.NONE),
    )
    log.clean()
    assert list(log.records()) == [0, 10]


def test_messages_of_another_magic_than_their_wrapper_are_mended(tmp_path: Path) -> None:
    inside = [message(n, key, b"v", magic=0) for n, key in enumerate([b"a", b"b"])]
    wrapper = message(1, None, gzip_stream(b"".join(inside)), magic=1, attributes=1, timestamp=NOW)
    log = make(tmp_path, wrapper, messages(10, [(b"x", b"8")], 1, Codec.NONE))
    log.clean()
    assert log.records() == {0: (b"a", b"v"), 1: (b"b", b"v"), 10: (b"x", b"8")}
    entry = memoryview((log.folder / f"{0:020d}.log").read_bytes())
    opened = open_wrapper(entry, max_decompressed_bytes=1 << 20, check_inner_crcs=True)
    sizes = len(opened.messages) // 2
    assert opened.messages[[16, sizes + 16]].tolist() == [1, 1]
