"""What compresses the batches of a writer, one after the other."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from kafkalog.streaming.records.compression.codec import Codec, compress_pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kafkalog.streaming.records.compression.codec import Data

__all__ = ["batch_compressor"]


def batch_compressor(codec: Codec, level: int | None = None) -> Callable[[Data], Sequence[Data]]:
    """Return what compresses batches of magic 2, one after the other, like ``compress_pieces``.

    It may go by what those before were like: one for each kind of rows, not shared by threads.
    """
    if codec is Codec.LZ4:
        from kafkalog.streaming.records.compression import lz4_codec  # noqa: PLC0415 - if used

        if lz4_codec.is_fast(level):
            return lz4_codec.BatchCompressor()
    return functools.partial(compress_pieces, codec, level=level)
