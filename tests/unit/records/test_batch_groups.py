"""Compressed batches, decompressed side by side: by liblz4 from a kernel, and from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lz4.frame
import numpy as np
import pytest
from tests.support.counted_work import calls_of

from kafkalog.errors import CorruptRecordError, DecompressedTooLargeError
from kafkalog.streaming.records.batch_groups import GROUP_BYTES, BatchGroups
from kafkalog.streaming.records.compression import Codec, compress, decompress, lz4_library
from kafkalog.streaming.records.compression.lz4_frame_kernels import decompress_frames_by_library
from kafkalog.streaming.records.jit.inline import INTERPRETED
from kafkalog.streaming.records.jit.kernel import as_python

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TEXT = b"".join(b"record %d;" % i for i in range(9_000))
LIMIT = 4 << 20
END = bytes(4)
CANARY = 0xA5


@pytest.fixture(params=["library", "python"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run each test both ways: with liblz4's functions exported, and as on a build without."""
    if request.param == "python":
        monkeypatch.setattr(lz4_library, "is_exported", lambda: False)
    else:
        assert lz4_library.is_exported()
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


def test_the_limit_is_to_the_byte() -> None:
    bodies = [compress(Codec.LZ4, TEXT[:size]) for size in (50, 51)]
    found, _, error = grouped(bodies, limit=50)
    assert found == [TEXT[:50]]
    assert error.startswith(DecompressedTooLargeError.__name__)


def test_codecs_that_take_turns_share_a_group() -> None:
    codecs = [Codec.LZ4, Codec.ZSTD, Codec.LZ4, Codec.LZ4, Codec.GZIP, Codec.SNAPPY] * 5
    plain = [TEXT[: 100 + row] for row in range(len(codecs))]
    bodies = [compress(codec, one) for codec, one in zip(codecs, plain, strict=True)]
    assert grouped(bodies, codecs) == (plain, [len(plain)], "")


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
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
def test_the_number_of_batches_makes_no_call_more(way: str) -> None:
    bodies = [compress(Codec.LZ4, TEXT[:100])] * 1000
    grouped(bodies)

    def calls(many: Sequence[bytes]) -> int:
        sizes = np.array([len(body) for body in many], np.int64)
        data = np.frombuffer(b"".join(many), np.uint8)
        codecs = np.full(len(many), Codec.LZ4, np.int64)
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
    monkeypatch.setattr(lz4_library, "_FUNCTION", "LZ4_not_there")
    assert lz4_library.is_exported.__wrapped__() is INTERPRETED


def by_kernel(kernel: Callable[..., int], data: bytes, limit: int, room: int) -> bytes | None:
    """Return what the kernel makes of a frame; it writes nowhere else."""
    memory = np.full(room + 200, CANARY, np.uint8)
    out, ends = memory[100 : 100 + room], np.zeros(1, np.int64)
    starts, sizes = np.zeros(1, np.int64), np.array([len(data)])
    array = np.frombuffer(data, np.uint8)
    done = kernel(array, starts, sizes, np.ones(1, np.uint8), limit, 1 << 62, out, 0, ends)
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
