"""Records of compressed batches, found side by side: any codecs, sizes, and damage."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.cleaning import batch

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.log.compaction.batch_filter import Scratch, find_records
from kafkalog.streaming.records.batch import scan_batches
from kafkalog.streaming.records.batch_layout import HEADER_SIZE
from kafkalog.streaming.records.compression import Codec

CODECS = [codec for codec in Codec if codec is not Codec.NONE]
MORE_THAN_A_GROUP = (1 << 20) + 5


def keys_found(batches: list[bytes]) -> list[bytes]:
    data = np.frombuffer(b"".join(batches), np.uint8)
    table = scan_batches(data).table
    found = []
    for records in find_records(data, table, Scratch(), file_position=0, path="the log"):
        assert len(records.firsts) == len(records.table)
        for start, length in zip(records.key_starts, records.key_lengths, strict=True):
            found.append(records.source[start : start + length].tobytes())
    return found


@pytest.mark.parametrize("codecs", [[Codec.LZ4], CODECS, [Codec.LZ4, Codec.GZIP], list(Codec)])
def test_batches_of_all_codecs_and_sizes_are_found_in_order(codecs: list[Codec]) -> None:
    random = np.random.default_rng(5)
    batches, keys = [], []
    for number in range(60):
        size = MORE_THAN_A_GROUP if number % 20 == 11 else int(random.integers(0, 80_000))
        rows = [(b"%d-%d" % (number, row), random.bytes(40) * (size // 120)) for row in range(3)]
        batches.append(batch(3 * number, rows, codec=codecs[number % len(codecs)]))
        keys += [key for key, _ in rows]
    assert keys_found(batches) == keys


@pytest.mark.parametrize("damaged", [0, 1, 37, 59])
def test_the_batch_that_cannot_be_decompressed_is_named(damaged: int) -> None:
    batches = [batch(n, [(b"%d" % n, b"v" * 30_000)], codec=Codec.LZ4) for n in range(60)]
    position = len(b"".join(batches[:damaged]))
    broken = bytearray(batches[damaged])
    broken[HEADER_SIZE + 7 + 4] ^= 0x40  # the first token
    batches[damaged] = bytes(broken)
    with pytest.raises(CorruptRecordError, match="cannot be cleaned") as caught:
        keys_found(batches)
    assert (caught.value.position, caught.value.offset) == (position, damaged)
