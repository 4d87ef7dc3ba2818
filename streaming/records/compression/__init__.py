"""How records are compressed in batches and message sets: Kafka's codecs in Kafka's framings.

``codec``
    the codecs by name and number, limits, errors.
``gzip_codec``, ``snappy_codec``, ``lz4_codec``, ``zstd_codec``
    a module for each, with the same two functions (:class:`~.codec.CodecModule`).
``gzip_kernels``, ``snappy_kernels``, ``lz4_kernels``, ``zstd_kernels``
    decompress many batches in one call, by functions that a codec's library exports.

A library is loaded when its codec is first used. All that a new codec needs, its option, level and
library too: CONTRIBUTING.md, "A codec".
"""

from kafkalog.streaming.records.compression.codec import (
    DEFAULT_LIMIT,
    Codec,
    compress,
    compress_pieces,
    decompress,
    decompress_pieces,
)

__all__ = [
    "DEFAULT_LIMIT",
    "Codec",
    "compress",
    "compress_pieces",
    "decompress",
    "decompress_pieces",
]
