"""Members of gzip, many a call, which zlib inflates into one array.

The kernel does what is a single sound member, with nothing after it, and fits. It stops before
anything else, and ``gzip_codec`` says what that is. Every length is checked before zlib sees it.

The kernels of this module may be loaded only where ``zlib_library.is_exported``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.streaming.records.compression.body_kernels import room_for
from kafkalog.streaming.records.compression.zlib_library import inflate_member
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

__all__ = ["decompress_gzip_by_library"]

_LARGEST: Final = 0x7FFFFFFF


@kernel(
    "int64",
    "const uint8[]",
    "const int64[]",
    "const int64[]",
    "const uint8[]",
    "int64",
    "int64",
    "int64",
    "uint8[]",
    "int64",
    "int64[]",
)
def decompress_gzip_by_library(
    data: Bytes,
    starts: Integers,
    sizes: Integers,
    wanted: Bytes,
    context: int,
    limit: int,
    enough: int,
    out: Bytes,
    written: int,
    ends: Integers,
) -> int:
    """Inflate the members ``data[start : start + size]`` into ``out``, one after the other.

    ``context`` is the address of a ``z_stream`` that was made for gzip. All else is as of
    ``lz4_frame_kernels.decompress_frames_by_library``.
    """
    members = min(starts.shape[0], sizes.shape[0], wanted.shape[0], ends.shape[0])
    if written < 0 or limit < 0:
        return 0
    for member in range(members):
        start, size, free = starts[member], sizes[member], out.shape[0] - written
        room = room_for(data, start, size, wanted[member], free, min(limit, _LARGEST))
        if room < 0 or written >= enough or size > _LARGEST:
            return member
        made = inflate_member(context, data, start, size, out, written, room)
        if made < 0 or made > room:
            return member
        written += made
        ends[member] = written
    return members
