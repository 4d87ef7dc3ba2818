"""How records are compressed in batches and message sets: Kafka's codecs in Kafka's framings.

``codec``, ``batches``
    the codecs by name and number, limits, errors; what compresses batch after batch.
``gzip_codec``, ``snappy_codec``, ``lz4_codec``, ``zstd_codec``
    a module for each, with the same two functions (:class:`~.codec.CodecModule`).
``by_kernel``, ``exported``
    decompress many batches in one call, by functions that a codec's library exports.
``gzip_kernels``, ``snappy_kernels``, ``lz4_kernels``, ``zstd_kernels``, ``body_kernels``
    the loops of that.

A new codec needs its module, its number in ``codec``, and where its library exports functions,
kernels and a branch in ``by_kernel``. A library is loaded when its codec is first used.
"""

from kafkalog.streaming.records.compression.batches import batch_compressor
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
    "batch_compressor",
    "compress",
    "compress_pieces",
    "decompress",
    "decompress_pieces",
]
