"""Frames of LZ4 by our own kernel: what the library makes of them, or nothing."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import lz4.block
import lz4.frame
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.records.compression import Codec, compress, decompress
from kafkalog.streaming.records.compression.copy_kernels import SLACK
from kafkalog.streaming.records.compression.lz4_kernels import decompress_frames
from kafkalog.streaming.records.jit.inline import INTERPRETED
from kafkalog.streaming.records.jit.kernel import as_python

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Kernel = Callable[..., int]

KERNELS = [decompress_frames, as_python(decompress_frames)]
HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
END = bytes(4)
CANARY = 0xA5
TEXT = b"".join(b"record %d;" % i for i in range(9_000))
NOISE = np.random.default_rng(1).bytes(70_000)

both = pytest.mark.parametrize("kernel", KERNELS, ids=["compiled", "python"])


def decompressed(
    kernel: Kernel, frames: Sequence[bytes], room: int, wanted: Sequence[int] = (), at: int = 0
) -> list[bytes]:
    """Return what the kernel makes of frames, as far as it goes; it writes nowhere else."""
    sizes = np.array([len(frame) for frame in frames], np.int64)
    data = np.frombuffer(b"".join(frames), np.uint8)
    memory = np.full(at + room + 2 * SLACK, CANARY, np.uint8)
    ends = np.empty(len(frames), np.int64)
    choice = np.array(wanted or [1] * len(frames), np.uint8)
    out = memory[: at + room + SLACK]
    done = kernel(data, np.cumsum(sizes) - sizes, sizes, choice, out, at, ends)
    assert (memory[:at] == CANARY).all()
    assert (memory[len(out) :] == CANARY).all()
    bounds = [at, *ends[:done].tolist()]
    assert bounds[-1] <= at + room
    return [out[a:b].tobytes() for a, b in itertools.pairwise(bounds)]


def block(*sequences: tuple[bytes, int, int], last: bytes) -> bytes:
    """Encode sequences of (literals, offset, length of the match), and the last literals."""
    parts = []
    for literals, offset, length in sequences:
        parts.append(_lengths(len(literals), length - 4) + literals + offset.to_bytes(2, "little"))
        if length - 4 >= 15:
            parts.append(_more(length - 4))
    return b"".join(parts) + _lengths(len(last), 0) + last


def _lengths(literals: int, match: int) -> bytes:
    token = bytes([min(literals, 15) << 4 | min(match, 15)])
    return token + (_more(literals) if literals >= 15 else b"")


def _more(length: int) -> bytes:
    full, rest = divmod(length - 15, 255)
    return b"\xff" * full + bytes([rest])


def framed(*blocks: bytes) -> bytes:
    return HEADER + b"".join(len(one).to_bytes(4, "little") + one for one in blocks) + END


@both
def test_what_was_compressed_comes_back(kernel: Kernel) -> None:
    sizes = [0, 1, 12, 13, 1000] if kernel is KERNELS[1] else [0, 1, 12, 13, 1000, 65_536, 70_000]
    for content in (TEXT, NOISE, bytes(70_000)):
        plain = [content[:size] for size in sizes]
        frames = [compress(Codec.LZ4, one) for one in plain]
        assert decompressed(kernel, frames, sum(sizes)) == plain


@both
def test_matches_repeat_from_every_distance_for_every_length(kernel: Kernel) -> None:
    lengths = (4, 5, 15, 16, 17, 18, 19, 31, 32, 33, 48, 64, 70, 300)
    for offset in range(1, 70, 5 if kernel is KERNELS[1] else 1):
        literals = NOISE[:offset]
        encoded = [block((literals, offset, length), last=b"!last") for length in lengths]
        expected = [lz4.block.decompress(one, uncompressed_size=1000) for one in encoded]
        assert decompressed(kernel, [framed(one) for one in encoded], 20_000) == expected


@both
def test_literals_of_every_length_are_copied_up_to_the_end_of_the_data(kernel: Kernel) -> None:
    for length in (5, 14, 15, 16, 31, 32, 33, 63, 64, 65, 269, 270, 271):
        encoded = block((NOISE[: length + 1], 1, 4), last=NOISE[:length])
        expected = lz4.block.decompress(encoded, uncompressed_size=1000)
        assert decompressed(kernel, [framed(encoded)], len(expected)) == [expected]


@both
def test_it_stops_before_a_frame_that_does_not_fit(kernel: Kernel) -> None:
    plain = [TEXT[:900], NOISE[:600], TEXT[:300]]
    frames = [compress(Codec.LZ4, one) for one in plain]
    for room in (*range(0, 900, 100), 899, 900, 1499, 1500, 1501, 1799, 1800):
        fit = [one for row, one in enumerate(plain) if sum(map(len, plain[: row + 1])) <= room]
        assert decompressed(kernel, frames, room) == fit


@both
def test_it_stops_before_what_is_not_wanted_and_begins_where_it_is_told(kernel: Kernel) -> None:
    frames = [compress(Codec.LZ4, TEXT[:size]) for size in (50, 60, 70)]
    assert decompressed(kernel, frames, 500, [1, 0, 1], at=33) == [TEXT[:50]]
    assert decompressed(kernel, frames, 500, [0, 1, 1]) == []
    assert decompressed(kernel, frames, 500, at=-1) == []


@both
@pytest.mark.parametrize(
    "frame",
    [
        b"",
        HEADER,
        HEADER[:6],
        HEADER + END[:3],
        lz4.frame.compress(TEXT[:500], store_size=True, block_linked=False),
        lz4.frame.compress(TEXT[:500], content_checksum=True, block_linked=False),
        lz4.frame.compress(TEXT[:500], block_checksum=True, block_linked=False),
        lz4.frame.compress(TEXT[:500], block_size=lz4.frame.BLOCKSIZE_MAX1MB, block_linked=False),
        compress(Codec.LZ4, TEXT[:500], magic=0),
    ],
)
def test_other_frames_are_left_to_the_library(kernel: Kernel, frame: bytes) -> None:
    assert decompressed(kernel, [frame], 1000) == []


@both
@pytest.mark.parametrize(
    "encoded",
    [
        block((b"abcd", 0, 8), last=b"12345"),  # no offset
        block((b"abcd", 5, 8), last=b"12345"),  # before the block
        block((b"abcd", 4, 8), last=b"1234"),  # too near to the end for the library
        block((b"abcd", 4, 65_537), last=b"12345"),  # more than a block holds
        block((b"abcd", 4, 65_530), last=b"12345"),
        b"\xf0" + b"\xff" * 300,  # a length without an end
        b"\x0f" * 300,
        b"\x50abc",  # fewer literals than announced
    ],
)
def test_blocks_that_are_not_sound_are_left_to_the_library(kernel: Kernel, encoded: bytes) -> None:
    sound = compress(Codec.LZ4, TEXT[:100])
    assert decompressed(kernel, [sound, framed(encoded), sound], 200_000) == [TEXT[:100]]


@both
def test_blocks_that_are_stored_are_copied(kernel: Kernel) -> None:
    stored = [(len(one) | 1 << 31).to_bytes(4, "little") + one for one in (b"", b"abc", b"de")]
    frame = HEADER + b"".join(stored) + END
    assert decompress(Codec.LZ4, frame) == b"abcde"
    assert decompressed(kernel, [frame], 5) == [b"abcde"]
    assert decompressed(kernel, [frame], 4) == []
    assert decompressed(kernel, [frame[:-6]], 5) == []


def test_every_cut_and_every_flipped_bit_give_what_the_library_gives_or_nothing() -> None:
    frame = compress(Codec.LZ4, TEXT[:150] + NOISE[:40] + bytes(60) + TEXT[:90])
    damaged = [frame[:cut] for cut in range(len(frame))]
    for position in range(len(frame)):
        for bit in range(0, 8, 4 if INTERPRETED else 1):
            flipped = bytearray(frame)
            flipped[position] ^= 1 << bit
            damaged.append(bytes(flipped))
    assert sum(_agrees(decompress_frames, one) for one in damaged) > 100


@both
@given(data=st.binary(max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_block_gives_what_the_library_gives_or_nothing(kernel: Kernel, data: bytes) -> None:
    _agrees(kernel, framed(block((b"0123456789", 3, 20), last=b"")[:-1] + data))
    _agrees(kernel, framed(data))


def _agrees(kernel: Kernel, frame: bytes) -> bool:
    found = decompressed(kernel, [frame], 70_000)
    if found:
        assert found == [decompress(Codec.LZ4, frame)]
    return bool(found)


def test_the_library_takes_hardly_anything_that_the_kernel_leaves() -> None:
    """Random text of all sizes: the kernel does each frame that our own writer, or lz4's, makes."""
    random = np.random.default_rng(3)
    for size in random.integers(0, 20_000, 50).tolist():
        plain = bytes(random.integers(97, 97 + random.integers(1, 26), size, np.uint8))
        assert decompressed(decompress_frames, [compress(Codec.LZ4, plain)], size) == [plain]
        slow = lz4.frame.compress(
            plain, 9, lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False
        )
        assert decompressed(decompress_frames, [slow], size) == [plain]


def test_a_bomb_is_left_when_the_room_is_full() -> None:
    frame = compress(Codec.LZ4, bytes(3_000_000))
    assert decompressed(decompress_frames, [frame], 1_000_000) == []
    with pytest.raises(CorruptRecordError):
        decompress(Codec.LZ4, frame, limit=1_000_000)
