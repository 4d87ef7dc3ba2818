"""Which kernel decompresses the batches of a codec, where its library is exported to kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kafkalog.streaming.records.compression import gzip_kernels, lz4_kernels, zstd_kernels
from kafkalog.streaming.records.compression.codec import Codec
from kafkalog.streaming.records.compression.gzip_kernels import decompress_gzip_by_library
from kafkalog.streaming.records.compression.lz4_kernels import decompress_frames_by_library
from kafkalog.streaming.records.compression.snappy_kernels import decompress_snappy
from kafkalog.streaming.records.compression.zstd_kernels import decompress_zstd_by_library

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers
    from kafkalog.streaming.records.compression.exported import Context

__all__ = ["Bodies", "KernelDecompressor"]


class Bodies(NamedTuple):
    """Compressed records of batches: ``data[starts[i] : starts[i] + sizes[i]]``.

    ``data`` is uint8[n], ``starts`` and ``sizes`` are int64[m]. ``wanted``, uint8[m], is 1 for
    those of the codec that is asked for.
    """

    data: Bytes
    starts: Integers
    sizes: Integers
    wanted: Bytes

    def after(self, rows: int) -> Bodies:
        """Return all but the first ``rows``."""
        return Bodies(self.data, self.starts[rows:], self.sizes[rows:], self.wanted[rows:])


class KernelDecompressor:
    """Decompresses batches that follow each other, by kernels. Not shared between threads."""

    def __init__(self, limit: int, enough: int) -> None:
        """Prepare; no library is loaded before it is needed.

        Args:
            limit: bytes that one batch may decompress to here.
            enough: bytes after which a call ends.
        """
        self._limit = limit
        self._enough = enough
        self._contexts: dict[int, Context] = {}

    def can(self, codec: int) -> bool:
        """Whether there is a kernel for a codec, as the attributes name it."""
        if codec == Codec.LZ4:
            return lz4_kernels.is_exported()
        if codec == Codec.ZSTD:
            return zstd_kernels.is_exported()
        if codec == Codec.GZIP:
            return gzip_kernels.is_exported()
        return codec == Codec.SNAPPY

    def decompress(
        self, codec: int, bodies: Bodies, out: Bytes, written: int, ends: Integers
    ) -> int:
        """Decompress batches of a codec into ``out``. REQUIRES: there is a kernel for it.

        Args:
            codec: as the attributes name it.
            bodies: the batches, m of them.
            out: uint8[k], of which the first ``written`` bytes are kept.
            written: where the first one goes.
            ends: int64[m]; of what was done it becomes where each one ends in ``out``.

        Returns:
            How many were done: none after the first that is not wanted, is not sound, is of an
            unusual form, or does not fit, nor once ``out`` has enough.
        """
        limit, enough = self._limit, self._enough
        if codec == Codec.LZ4:
            return decompress_frames_by_library(*bodies, limit, enough, out, written, ends)
        if codec == Codec.SNAPPY:
            return decompress_snappy(*bodies, limit, enough, out, written, ends)
        if codec not in self._contexts:
            library = zstd_kernels if codec == Codec.ZSTD else gzip_kernels
            self._contexts[codec] = library.new_context()
        context = self._contexts[codec].address
        if codec == Codec.ZSTD:
            return decompress_zstd_by_library(*bodies, context, limit, enough, out, written, ends)
        return decompress_gzip_by_library(*bodies, context, limit, enough, out, written, ends)
