"""Compressed batches, decompressed side by side: by kernels, and from Python."""

from __future__ import annotations

import gc
import gzip
import sys
from typing import TYPE_CHECKING, Any

import lz4.frame
import numpy as np
import pytest
import snappy
import zstandard
from tests.support.counted_work import calls_of

from kafkalog.errors import CorruptRecordError, DecompressedTooLargeError
from kafkalog.streaming.records.columns import GROUP_BYTES, BatchGroups, KernelDecompressor
from kafkalog.streaming.records.compression import (
    Codec,
    compress,
    decompress,
    gzip_kernels,
    lz4_kernels,
    zstd_kernels,
)
from kafkalog.streaming.records.compression.gzip_kernels import decompress_gzip_by_library
from kafkalog.streaming.records.compression.lz4_kernels import decompress_frames_by_library
from kafkalog.streaming.records.compression.snappy_kernels import SLACK, decompress_snappy
from kafkalog.streaming.records.compression.zstd_kernels import decompress_zstd_by_library
from kafkalog.streaming.records.jit.inline import INTERPRETED, Context, export, library_of
from kafkalog.streaming.records.jit.kernel import as_python

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TEXT = b"".join(b"record %d;" % i for i in range(9_000))
LIMIT = 4 << 20
END = bytes(4)
RANDOM = np.random.default_rng(1).bytes(100_000)
SKIPPED = bytes.fromhex("502a4d18 03000000") + b"???"
CANARY = 0xA5


@pytest.fixture(params=["library", "python"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run each test both ways: with the libraries' functions exported, and as on builds without."""
    if request.param == "python":
        monkeypatch.setattr(KernelDecompressor, "can", lambda *_: False)
    else:
        assert lz4_kernels.is_exported()
        assert zstd_kernels.is_exported()
        assert gzip_kernels.is_exported()
    return str(request.param)


def grouped(
    bodies: Sequence[bytes], codecs: Sequence[int] = (), limit: int = LIMIT
) -> tuple[list[bytes], list[int], str]:
    """Return the batches, how many came in each group, and what was said of the next one."""
    sizes = np.array([len(body) for body in bodies], np.int64)
    data = np.frombuffer(b"..." + b"".join(bodies), np.uint8)
    named = np.array(codecs or [Codec.LZ4] * len(bodies), np.int64)
    found, counts = [], []
    groups = BatchGroups(limit, are_kept=False).groups(
        data, 3 + np.cumsum(sizes) - sizes, sizes, named
    )
    try:
        for source, ends in groups:
            starts = [0, *ends[:-1].tolist()]
            found += [source[a:b].tobytes() for a, b in zip(starts, ends.tolist(), strict=True)]
            counts.append(len(ends))
    except CorruptRecordError as error:
        return found, counts, f"{type(error).__name__}: {error}"
    return found, counts, ""


def frame(plain: bytes, **choices: object) -> bytes:
    return bytes(lz4.frame.compress(plain, **{"block_linked": False, **choices}))


def zstd_of_one_byte(size: int, window: int = 0) -> bytes:
    """Return a frame with one block: a byte that repeats; ``window`` is the descriptor."""
    block = size << 3 | 0b011
    return bytes.fromhex("28b52ffd 00") + bytes([window]) + block.to_bytes(3, "little") + b"x"


def zstd(plain: bytes, **choices: Any) -> bytes:
    return zstandard.ZstdCompressor(**choices).compress(plain)


def gzip_of(plain: bytes, level: int) -> bytes:
    return gzip.compress(plain, level)


OTHERS = {
    "zstd": (Codec.ZSTD, compress(Codec.ZSTD, TEXT)),
    "zstd, empty": (Codec.ZSTD, compress(Codec.ZSTD, b"")),
    "zstd, not to be compressed": (Codec.ZSTD, compress(Codec.ZSTD, RANDOM)),
    "zstd, one byte repeated": (Codec.ZSTD, compress(Codec.ZSTD, bytes(300_000))),
    "zstd, a block as large as its window": (Codec.ZSTD, zstd_of_one_byte(1024)),
    "zstd, the largest block": (Codec.ZSTD, zstd_of_one_byte(128 << 10, 0x58)),
    "zstd, a block of its window and an eighth": (Codec.ZSTD, zstd_of_one_byte(1152, 0x01)),
    "zstd with its size": (Codec.ZSTD, zstd(TEXT, write_content_size=True)),
    "zstd with its size, small": (Codec.ZSTD, zstd(TEXT[:90], write_content_size=True)),
    "zstd with a checksum": (Codec.ZSTD, zstd(TEXT, write_checksum=True)),
    "zstd, two frames": (Codec.ZSTD, zstd(TEXT) + zstd(b"second")),
    "zstd after a frame to skip": (Codec.ZSTD, SKIPPED + zstd(TEXT)),
    "gzip": (Codec.GZIP, compress(Codec.GZIP, TEXT)),
    "gzip, empty": (Codec.GZIP, compress(Codec.GZIP, b"")),
    "gzip, stored": (Codec.GZIP, gzip_of(TEXT, 0)),
    "gzip, two members": (Codec.GZIP, gzip_of(TEXT, 9) + gzip_of(b"second", 1)),
    "gzip before zeros": (Codec.GZIP, gzip_of(TEXT, 6) + bytes(20)),
    "snappy": (Codec.SNAPPY, compress(Codec.SNAPPY, TEXT)),
    "snappy, empty": (Codec.SNAPPY, compress(Codec.SNAPPY, b"")),
    "snappy, not to be compressed": (Codec.SNAPPY, compress(Codec.SNAPPY, RANDOM)),
    "snappy, one byte repeated": (Codec.SNAPPY, compress(Codec.SNAPPY, bytes(300_000))),
    "snappy, bare": (Codec.SNAPPY, bytes(snappy.compress(TEXT))),
    "snappy that starts again": (Codec.SNAPPY, compress(Codec.SNAPPY, TEXT) * 2),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_every_form_of_the_other_codecs_is_decoded(kind: str) -> None:
    codec, body = OTHERS[kind]
    plain = compress(codec, b"plain")
    found, _, error = grouped([plain, body, plain], [codec] * 3)
    assert error == ""
    assert found == [b"plain", decompress(codec, body), b"plain"]


FRAMES = {
    "kafka's": compress(Codec.LZ4, TEXT),
    "empty": compress(Codec.LZ4, b""),
    "stored": compress(Codec.LZ4, np.random.default_rng(1).bytes(100_000)),
    "block checksums": frame(TEXT, block_checksum=True),
    "content checksum": frame(TEXT, content_checksum=True),
    "content size": frame(TEXT, store_size=True),
    "all of them": frame(TEXT, block_checksum=True, content_checksum=True, store_size=True),
    "blocks of 256 KiB": frame(TEXT * 4, block_size=lz4.frame.BLOCKSIZE_MAX256KB),
    "blocks of 4 MiB": frame(TEXT * 30, block_size=lz4.frame.BLOCKSIZE_MAX4MB),
    "a second frame": compress(Codec.LZ4, TEXT) + compress(Codec.LZ4, b"not looked at"),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_every_form_of_frame_that_kafka_allows_is_decoded(kind: str) -> None:
    plain = compress(Codec.LZ4, b"plain")
    found, _, error = grouped([plain, FRAMES[kind], plain])
    assert error == ""
    assert found == [b"plain", decompress(Codec.LZ4, FRAMES[kind]), b"plain"]


REFUSED = {
    "linked blocks": lz4.frame.compress(TEXT, block_linked=True),
    "magic 0's header checksum": compress(Codec.LZ4, TEXT, magic=0),
    "a wrong block checksum": frame(TEXT[:99], block_checksum=True)[:-5] + b"?" + END,
    "no end mark": compress(Codec.LZ4, TEXT)[:-4],
    "another magic": b"\x05" + compress(Codec.LZ4, TEXT)[1:],
    "a bomb": compress(Codec.LZ4, bytes(LIMIT + 1)),
    "nothing": b"",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused_is_named_after_the_batches_before_it(kind: str) -> None:
    plain = compress(Codec.LZ4, b"plain")
    found, _, error = grouped([plain, plain, REFUSED[kind], plain])
    assert found == [b"plain", b"plain"]
    with pytest.raises(CorruptRecordError) as raised:
        decompress(Codec.LZ4, REFUSED[kind], limit=LIMIT)
    assert error == f"{type(raised.value).__name__}: {raised.value}"


OTHERS_REFUSED = {
    "zstd, cut": (Codec.ZSTD, compress(Codec.ZSTD, TEXT)[:-1]),
    "zstd, more after it": (Codec.ZSTD, compress(Codec.ZSTD, TEXT) + b"?"),
    "zstd, a block above its window": (Codec.ZSTD, zstd_of_one_byte(1025)),
    "zstd, a wrong checksum": (Codec.ZSTD, zstd(TEXT, write_checksum=True)[:-1] + b"?"),
    "zstd, a block above the largest": (Codec.ZSTD, zstd_of_one_byte((128 << 10) + 1, 0x58)),
    "zstd, a block above its window and an eighth": (Codec.ZSTD, zstd_of_one_byte(1153, 0x01)),
    "zstd, a bomb": (Codec.ZSTD, compress(Codec.ZSTD, bytes(LIMIT + 1))),
    "gzip, cut": (Codec.GZIP, compress(Codec.GZIP, TEXT)[:-1]),
    "gzip, a wrong checksum": (Codec.GZIP, compress(Codec.GZIP, TEXT)[:-8] + b"?" * 8),
    "gzip, a bomb": (Codec.GZIP, compress(Codec.GZIP, bytes(LIMIT + 1))),
    "gzip, nothing": (Codec.GZIP, b""),
    "snappy, cut": (Codec.SNAPPY, compress(Codec.SNAPPY, TEXT)[:-1]),
    "snappy, a chunk beyond the end": (Codec.SNAPPY, compress(Codec.SNAPPY, TEXT) + b"\0\0\1\0"),
    "snappy, from before the start": (Codec.SNAPPY, bytes([8, 0, 65, 0b11010, 2, 0])),
    "snappy, from nowhere": (Codec.SNAPPY, bytes([8, 0, 65, 0b11010, 0, 0])),
    "snappy, more than it claims": (Codec.SNAPPY, bytes([1, 4, 65, 66])),
    "snappy, less than it claims": (Codec.SNAPPY, bytes([3, 4, 65, 66])),
    "snappy, a bomb": (Codec.SNAPPY, compress(Codec.SNAPPY, bytes(LIMIT + 1))),
    "snappy, nothing": (Codec.SNAPPY, b""),
}


@pytest.mark.parametrize("kind", OTHERS_REFUSED)
def test_what_is_refused_of_the_other_codecs_is_named_after_the_batches_before_it(
    kind: str,
) -> None:
    codec, body = OTHERS_REFUSED[kind]
    plain = compress(codec, b"plain")
    found, _, error = grouped([plain, plain, body, plain], [codec] * 4)
    assert found == [b"plain", b"plain"]
    with pytest.raises(CorruptRecordError) as raised:
        decompress(codec, body, limit=LIMIT)
    assert error == f"{type(raised.value).__name__}: {raised.value}"


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_the_limit_is_to_the_byte(codec: Codec) -> None:
    bodies = [compress(codec, TEXT[:size]) for size in (50, 51)]
    found, _, error = grouped(bodies, [codec] * 2, limit=50)
    assert found == [TEXT[:50]]
    assert error.startswith(DecompressedTooLargeError.__name__)


def test_codecs_that_take_turns_share_a_group() -> None:
    codecs = [Codec.LZ4, Codec.ZSTD, Codec.LZ4, Codec.LZ4, Codec.GZIP, Codec.SNAPPY] * 5
    plain = [TEXT[: 100 + row] for row in range(len(codecs))]
    bodies = [compress(codec, one) for codec, one in zip(codecs, plain, strict=True)]
    assert grouped(bodies, codecs) == (plain, [len(plain)], "")


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_groups_are_bounded_and_a_large_batch_is_one_by_itself(codec: Codec) -> None:
    sizes = [700_000, 600_000, 900_000, 2_500_000, 100, 1_500_000, 1_900_000, 200]
    plain = [(TEXT * 40)[:size] for size in sizes]
    found, counts, error = grouped([compress(codec, one) for one in plain], [codec] * len(plain))
    assert (found, error) == (plain, "")
    assert counts[0] == 2
    start = 0
    for count in counts:
        assert sum(sizes[start : start + count - 1]) < GROUP_BYTES
        start += count


def test_batches_without_bytes_are_batches() -> None:
    empty = compress(Codec.LZ4, b"")
    assert grouped([empty] * 5) == ([b""] * 5, [5], "")
    assert grouped([]) == ([], [], "")


@pytest.mark.skipif(INTERPRETED, reason="kernels run as Python")
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_the_number_of_batches_makes_no_call_more(way: str, codec: Codec) -> None:
    bodies = [compress(codec, TEXT[:100])] * 1000
    grouped(bodies, [codec] * len(bodies))

    def calls(many: Sequence[bytes]) -> int:
        sizes = np.array([len(body) for body in many], np.int64)
        data = np.frombuffer(b"".join(many), np.uint8)
        codecs = np.full(len(many), codec, np.int64)
        groups = BatchGroups(LIMIT, are_kept=False)
        work = groups.groups(data, np.cumsum(sizes) - sizes, sizes, codecs)
        return sum(calls_of(lambda: [len(ends) for _, ends in work]).values())

    few, many = calls(bodies[:10]), calls(bodies)
    assert many == few if way == "library" else many > few + 990


def test_what_was_kept_is_not_overwritten() -> None:
    plain = [bytes([row]) * 700_000 for row in range(6)]
    bodies = [compress(Codec.LZ4, one) for one in plain]
    sizes = np.array([len(body) for body in bodies], np.int64)
    data = np.frombuffer(b"".join(bodies), np.uint8)
    groups = BatchGroups(LIMIT, are_kept=True).groups(
        data, np.cumsum(sizes) - sizes, sizes, np.full(6, Codec.LZ4, np.int64)
    )
    assert b"".join(source.tobytes() for source, _ in list(groups)) == b"".join(plain)


def test_a_build_that_exports_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look as a fresh process would, for a function that is not there."""
    monkeypatch.undo()
    monkeypatch.setattr(lz4_kernels, "_FUNCTION", "LZ4_not_there")
    monkeypatch.setattr(zstd_kernels, "_FUNCTION", "ZSTD_not_there")
    assert lz4_kernels.is_exported.__wrapped__() is INTERPRETED
    assert zstd_kernels.is_exported.__wrapped__() is INTERPRETED


def test_a_library_that_is_built_in_exports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert library_of(sys) is None
    assert not export(library_of(sys), {"kafkalog_nothing": "inflate"})


@pytest.mark.skipif(INTERPRETED, reason="kernels run as Python")
def test_what_a_library_keeps_between_calls_is_freed() -> None:
    freed = []
    Context(0, lambda: freed.append(True))
    gc.collect()
    assert freed == [True]
    for library in (zstd_kernels, gzip_kernels):
        for _ in range(1000):
            assert library.new_context().address


def by_kernel(
    kernel: Callable[..., int], data: bytes, limit: int, room: int, *context: int
) -> bytes | None:
    """Return what the kernel makes of a batch; it writes nowhere else."""
    memory = np.full(room + 200, CANARY, np.uint8)
    out, ends = memory[100 : 100 + room], np.zeros(1, np.int64)
    starts, sizes = np.zeros(1, np.int64), np.array([len(data)])
    array = np.frombuffer(data, np.uint8)
    one = array, starts, sizes, np.ones(1, np.uint8), *context
    done = kernel(*one, limit, 1 << 62, out, 0, ends)
    assert (memory[:100] == CANARY).all()
    assert (memory[100 + room :] == CANARY).all()
    return out[: ends[0]].tobytes() if done else None


@pytest.mark.parametrize("flags", [{}, {"block_checksum": True, "store_size": True}])
def test_every_cut_and_every_flipped_bit_give_what_python_gives_or_nothing(
    way: str, flags: dict[str, bool]
) -> None:
    kernel = decompress_frames_by_library
    if way == "python":
        kernel = as_python(kernel)
    sound = frame(TEXT[:150] + np.random.default_rng(1).bytes(40) + bytes(60), **flags)
    damaged = [sound, *(sound[:cut] for cut in range(len(sound)))]
    for position in range(len(sound)):
        for bit in range(8) if way == "library" and not INTERPRETED else (position % 8,):
            flipped = bytearray(sound)
            flipped[position] ^= 1 << bit
            damaged.append(bytes(flipped))
    for one in damaged:
        try:
            expected: bytes | None = decompress(Codec.LZ4, one, limit=1000)
        except CorruptRecordError:
            expected = None
        assert by_kernel(kernel, one, 1000, 70_000) == expected
        assert by_kernel(kernel, one, 1000, 100) in {None, expected}


SHORT = TEXT[:150] + RANDOM[:40] + bytes(60)
KERNELS: dict[str, tuple[Codec, Callable[..., int], bytes]] = {
    "zstd": (Codec.ZSTD, decompress_zstd_by_library, compress(Codec.ZSTD, SHORT)),
    "zstd with a checksum": (
        *(Codec.ZSTD, decompress_zstd_by_library),
        zstd(SHORT, write_checksum=True, write_content_size=True),
    ),
    "gzip": (Codec.GZIP, decompress_gzip_by_library, compress(Codec.GZIP, SHORT)),
    "snappy": (Codec.SNAPPY, decompress_snappy, compress(Codec.SNAPPY, SHORT)),
    "snappy, bare": (Codec.SNAPPY, decompress_snappy, bytes(snappy.compress(SHORT))),
}


@pytest.mark.parametrize("kind", KERNELS)
def test_cuts_and_flipped_bits_of_the_other_codecs_give_what_python_gives_or_nothing(
    way: str, kind: str
) -> None:
    codec, kernel, sound = KERNELS[kind]
    libraries = {Codec.ZSTD: zstd_kernels, Codec.GZIP: gzip_kernels}
    kept = [libraries[codec].new_context()] if codec in libraries else []
    context = [each.address for each in kept]
    if way == "python":
        kernel = as_python(kernel)
    is_compiled = way == "library" and not INTERPRETED
    damaged = [sound[:cut] for cut in range(len(sound))]
    for position in range(len(sound)):
        for bit in range(8) if is_compiled else (position % 8,):
            flipped = bytearray(sound)
            flipped[position] ^= 1 << bit
            damaged.append(bytes(flipped))
    assert by_kernel(kernel, sound, 1000, 70_000, *context) == SHORT
    least = len(SHORT) + (SLACK if codec == Codec.SNAPPY else 0)
    assert by_kernel(kernel, sound, 1000, least, *context) == SHORT
    assert by_kernel(kernel, sound, 1000, least - 1, *context) is None
    for one in damaged:
        try:
            expected: bytes | None = decompress(codec, one, limit=1000)
        except CorruptRecordError:
            expected = None
        assert by_kernel(kernel, one, 1000, 70_000, *context) in {None, expected}
        assert by_kernel(kernel, one, 1000, 100, *context) in {None, expected}
