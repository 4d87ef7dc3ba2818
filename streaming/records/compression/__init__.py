"""How records are compressed in batches and message sets: Kafka's codecs in Kafka's framings.

Each codec has a module with the same two functions (``CodecModule``). ``codec`` chooses the module,
checks the output against a limit, and turns failures into errors. A codec's library is loaded when
the codec is first used.
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
