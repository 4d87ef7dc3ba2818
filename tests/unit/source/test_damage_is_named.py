"""Whatever check a batch fails: the error, or the skip, names file, position, offsets and check.

Each case is a damaged batch, with offsets 5 to 9 or some of them, between two sound ones.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import TYPE_CHECKING, Any, Final

import pytest
from crc32c import crc32c
from tests.support.logs import Row, batch_bytes, write_segment
from tests.support.message_sets import GZIP, LZ4, SNAPPY, ZSTD, gzip_stream, message
from tests.support.reading import read_batch
from tests.support.record_batches import batch_of, record_of, varint

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.options.read_options import ReadOptions
from kafkalog.streaming.records.compression import Codec, compress
from kafkalog.streaming.source.batch_plan import plan_batch
from kafkalog.streaming.source.reading import read_split

if TYPE_CHECKING:
    from pathlib import Path

BEFORE: Final = batch_bytes(0, [Row()] * 5)
SOUND: Final = batch_bytes(5, [Row()] * 5)
BEHIND: Final = batch_bytes(10, [Row()] * 5)
NEXT: Final = batch_bytes(15, [Row()] * 5)
LIMIT: Final = 64 << 10
PLAIN: Final = {magic: message(5, b"k", b"v", magic=magic) for magic in (0, 1)}


def changed(position: int, data: bytes, *, crc: bool = True) -> bytes:
    """Write over a batch of magic 2, and give it the checksum of what it is then."""
    batch = bytearray(SOUND)
    batch[position : position + len(data)] = data
    if crc:
        batch[17:21] = struct.pack(">I", crc32c(bytes(batch[21:])))
    return bytes(batch)


def one_record(body: bytes) -> bytes:
    """Make a batch at offset 5 of one record, by what follows its length, attributes and deltas."""
    return struct.pack(">q", 5) + batch_of(record_of(body), 1)[8:]


def changed_message(magic: int, position: int, data: bytes) -> bytes:
    entry = bytearray(PLAIN[magic])
    entry[position : position + len(data)] = data
    entry[12:16] = struct.pack(">I", zlib.crc32(bytes(entry[16:])))
    return bytes(entry)


def wrapper(stream: bytes | None, codec: int = GZIP, magic: int = 1) -> bytes:
    return message(9, None, stream, magic=magic, attributes=codec)


def inside(*offsets: int, magic: int = 1) -> bytes:
    return gzip_stream(b"".join(message(each, None, b"v", magic=magic) for each in offsets))


def int32(number: int) -> bytes:
    return struct.pack(">i", number)


BOMB: Final = bytes(1 << 20)
OF_MAGIC_2: Final = {
    "size": (changed(8, int32(0)), "a size of 0 is too small for any batch"),
    "negative size": (changed(8, int32(-1)), "a size of -1 is too small"),
    "size beyond the file": (changed(8, int32(2**31 - 1)), "no whole batch|a batch of 21474836"),
    "magic": (changed(16, b"\x09"), "magic 9, known are 0, 1 and 2"),
    "checksum": (changed(70, b"\x55", crc=False), "its bytes do not match its checksum"),
    "base offset": (changed(0, b"\xff" * 8), "no batch has base offset -1"),
    "last offset delta": (changed(23, int32(-1)), "no batch has base offset 5 and -1 as its last"),
    "falling offsets": (changed(0, struct.pack(">q", 2)), "do not fit between"),
    "leaping offsets": (changed(0, struct.pack(">q", 200)), "do not fit between"),
    "negative count": (changed(57, int32(-1)), "claims to have -1 records"),
    "count too large": (changed(57, int32(6)), "number does not end.*record 5 of it"),
    "count too small": (changed(57, int32(4)), "bytes after its last field.*record 4 of it"),
    "no codec": (changed(21, b"\0\7"), "compression bits 7 name no codec of magic 2"),
    "no gzip": (changed(21, b"\0\1"), "no valid gzip data"),
    "no snappy": (changed(21, b"\0\2"), "no valid snappy data"),
    "no lz4": (changed(21, b"\0\3"), "no valid lz4 data"),
    "no zstd": (changed(21, b"\0\4"), "no valid zstd data"),
    "too large": (
        struct.pack(">q", 5)
        + batch_of(
            compress(Codec.ZSTD, record_of(varint(-1) + varint(len(BOMB)) + BOMB + varint(0))),
            1,
            attributes=4,
        )[8:],
        rf"bytes of zstd hold \d+ bytes or more, beyond the limit of {LIMIT}",
    ),
    "varint": (changed(61, b"\xff" * 6), "a variable-length number does not end"),
    "record length": (changed(61, b"\x7e"), "a record's length lies beyond its batch"),
    "key length": (one_record(varint(50) + b"x"), "a key's length lies beyond its record"),
    "value length": (one_record(varint(-1) + varint(77)), "a value's length lies beyond"),
    "header count": (one_record(varint(-1) + varint(-1) + varint(9)), "a header's length or count"),
    "left over": (one_record(varint(-1) + varint(-1) + varint(0) + b"z"), "bytes after its last"),
}
OF_OLD_MAGIC: Final = {
    "size in v0": (PLAIN[0][:8] + int32(13) + PLAIN[0][12:], "a size of 13 is too small"),
    "size in v1": (PLAIN[1][:8] + int32(15) + PLAIN[1][12:], "a size of 15 is too small"),
    "checksum in v0": (message(5, None, b"v", magic=0, crc_error=1), "not match its checksum"),
    "checksum in v1": (message(5, None, b"v", magic=1, crc_error=1), "not match its checksum"),
    "offset": (struct.pack(">q", -3) + PLAIN[1][8:], "no batch has base offset -3"),
    "key in v0": (changed_message(0, 18, int32(500)), "a key ends beyond its message"),
    "key in v1": (changed_message(1, 26, int32(500)), "a key ends beyond its message"),
    "value in v1": (changed_message(1, 31, int32(500)), "a value ends beyond its message"),
    "zstd before its time": (wrapper(inside(0), ZSTD), "compression bits 4 name no codec"),
    "null wrapper": (wrapper(None), "a compressed message whose value is null"),
    "empty wrapper": (wrapper(gzip_stream(b"")), "a compressed message without messages inside"),
    "no gzip inside": (wrapper(b"nonsense"), "no valid gzip data"),
    "no snappy inside": (wrapper(b"\xff" * 9, SNAPPY), "no valid snappy data"),
    "no lz4 inside": (wrapper(b"nonsense", LZ4, 0), "no valid lz4 data"),
    "too large inside": (
        wrapper(gzip_stream(message(0, None, BOMB, magic=1))),
        rf"bytes of gzip hold \d+ bytes or more, beyond the limit of {LIMIT}",
    ),
    "relative offsets": (wrapper(inside(0, 40)), "with offset 9, yet .* relative offset 40"),
    "negative inner offset": (wrapper(inside(-5, 1, magic=0), magic=0), "offset is negative"),
    "wrapper in a wrapper": (
        wrapper(gzip_stream(wrapper(inside(0)))),
        "a compressed message lies inside of another",
    ),
    "batch in a wrapper": (wrapper(gzip_stream(SOUND)), "magic is neither 0 nor 1"),
    "inner size": (wrapper(gzip_stream(bytes(8) + int32(3) + bytes(20))), "size is too small"),
}
CASES: Final = OF_MAGIC_2 | OF_OLD_MAGIC


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, str]:
    """Give a case's name, the file with its damage, and what is to be said of that."""
    damaged, check = CASES[request.param]
    path = write_segment(tmp_path / "t-0", 0, BEFORE + damaged + BEHIND)
    entries = (9, len(BEFORE)), (14, len(BEFORE) + len(damaged))
    path.with_suffix(".index").write_bytes(b"".join(struct.pack(">ii", *each) for each in entries))
    write_segment(tmp_path / "t-0", 15, NEXT)
    return request.param, path, check


def _given(path: Path) -> dict[str, str]:
    root = str(path.parents[1])
    return {"path": root, "subscribe": "t", "maxDecompressedBytes": str(LIMIT)}


def _batches(path: Path) -> list[dict[str, Any]]:
    options = ReadOptions.parse(_given(path) | {"view": "batches", "onCorruptRecord": "skip"})
    splits = plan_batch(options)
    batches = (batch for split in splits for batch in read_split(split, options, None))
    return [row for batch in batches for row in batch.to_pylist()]


def test_the_error_names_file_position_offsets_and_check(case: tuple[str, Path, str]) -> None:
    _, path, check = case
    with pytest.raises(CorruptRecordError, match=check) as caught:
        read_batch(**_given(path))
    told = str(caught.value)
    assert told.startswith("t-0: offsets [")
    assert str(path) in told
    assert any(f"{word} {len(BEFORE)}" in told for word in ("byte", "position"))
    assert (caught.value.path, caught.value.position) == (str(path), len(BEFORE))


def test_the_skip_names_them_too_and_leaves_out_nothing_else(
    case: tuple[str, Path, str], caplog: pytest.LogCaptureFixture
) -> None:
    _, path, check = case
    rows = read_batch(**_given(path), onCorruptRecord="skip")
    assert [row["offset"] for row in rows] == [*range(5), *range(10, 20)]
    told, total = caplog.messages
    assert caplog.records[0].levelname == "WARNING"
    assert told.startswith("t-0: skipped ")
    assert str(path) in told
    assert f" {len(BEFORE)} " in told
    assert "offsets from 5 on and below 10" in told or "as its header says" in told
    assert re.search(check.replace("no whole batch|", ""), told)
    assert total.startswith("t-0: skipped damage at 1 place, ")


def test_a_view_of_batches_shows_it_as_far_as_it_is_one_batch(
    case: tuple[str, Path, str], caplog: pytest.LogCaptureFixture
) -> None:
    name, path, check = case
    shown = [row for row in _batches(path) if row["position"] == len(BEFORE)]
    if not shown:  # its size or offsets tell that it is none
        assert str(path) in caplog.messages[0]
        return
    (row,) = shown
    if "checksum" in name:
        assert not row["crcValid"]
        assert "not match its checksum" in row["error"]
    elif name == "no codec":
        assert row["error"] == "codec 7 is not known"
    elif name in OF_OLD_MAGIC and row["codec"] not in {None, "none"}:
        assert row["baseOffset"] is None
        assert check.split(".*", maxsplit=1)[0].split(r" \d+")[0] in row["error"]
    else:  # records are not looked into
        assert row["error"] is None
