"""The loop that writes the records that stay in a batch, with another base timestamp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.streaming.records.byte_kernels import (
    copy_bytes,
    put_varint,
    read_varint,
    read_varlong,
    varint_size,
)
from kafkalog.streaming.records.decode_kernels import COUNT, END, START
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

BROKEN: Final = -1
MOST_ADDED: Final = 12
"""Bytes by which a record may grow: its timestamp's delta from 1 to 10, its length by fewer."""


@kernel(
    "int64",
    "const uint8[]",
    "const int64[,]",
    "const int64[]",
    "const int64[]",
    "const uint8[]",
    "const int64[]",
    "uint8[]",
    "int64[]",
)
def rewrite_records(
    source: Bytes,
    sections: Integers,
    firsts: Integers,
    timestamps: Integers,
    keep: Bytes,
    base_timestamps: Integers,
    out: Bytes,
    ends: Integers,
) -> int:
    """Write the records that are kept of some batches into ``out``, one batch after the other.

    ``sections`` are those of ``find_records``, which has checked them. ``firsts`` has the row of
    each batch's first record in ``timestamps`` (ms) and ``keep``. Offsets and all else stay.
    ``ends[i]`` becomes where the records of a batch end. Gives the bytes written, or ``BROKEN``
    where something lies outside of its array.
    """
    written = 0
    for section in range(min(sections.shape[0], firsts.shape[0])):
        if section >= base_timestamps.shape[0] or section >= ends.shape[0]:
            return BROKEN
        at, end = sections[section, START], sections[section, END]
        first, count = firsts[section], sections[section, COUNT]
        if at < 0 or end > source.shape[0] or first < 0:
            return BROKEN
        if first + count > min(timestamps.shape[0], keep.shape[0]):
            return BROKEN
        for row in range(first, first + count):
            length, at = read_varint(source, at, end)
            if at < 0 or length < 1 or length > end - at:
                return BROKEN
            record_end = at + length
            if keep[row] != 0:
                _, delta_at = read_varlong(source, at + 1, record_end)
                if delta_at < 0:
                    return BROKEN
                rest = record_end - delta_at
                delta = timestamps[row] - base_timestamps[section]
                body = 1 + varint_size(delta) + rest
                if out.shape[0] - written < varint_size(body) + body:
                    return BROKEN
                written = put_varint(out, written, body)
                out[written] = 0
                written = put_varint(out, written + 1, delta)
                copy_bytes(out, written, source, delta_at, rest)
                written += rest
            at = record_end
        ends[section] = written
    return written
