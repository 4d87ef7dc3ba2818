"""The loops over keys: MD5, and the open hash table of offsets by it.

A slot of the table is 24 bytes: both halves of a key's MD5, and one more than its last offset, so
that a slot of zeros is empty. A key is looked for at numbers that its hash gives, ten of them, and
then from the last one on. Kafka probes likewise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.streaming.records.jit.inline import inlined
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

# The columns of the table, int64[slots, SLOT_FIELDS].
LOW: Final = 0
HIGH: Final = 1
NEXT_OFFSET: Final = 2
SLOT_FIELDS: Final = 3

# What is known of the table, int64[STATE_SIZE].
ENTRIES: Final = 0
LATEST_OFFSET: Final = 1
STATE_SIZE: Final = 2

BROKEN: Final = -1  # a key lies outside of its bytes

SCRATCH_SIZE: Final = 20
_A: Final = 16  # where the scratch has the state of MD5, after the words of a block
_B: Final = 17
_C: Final = 18
_D: Final = 19
_WORD: Final = 0xFFFFFFFF
_HASH_PROBES: Final = 10

MD5_CONSTANTS: Final = np.array(
    [
        [int(abs(np.sin(step + 1)) * 2**32) for step in range(64)],
        [
            *(7, 12, 17, 22) * 4,
            *(5, 9, 14, 20) * 4,
            *(4, 11, 16, 23) * 4,
            *(6, 10, 15, 21) * 4,
        ],
    ],
    np.int64,
)
"""int64[2, 64]: what RFC 1321 adds at each step, and by how many bits it rotates."""


@inlined
def _digest_block(scratch: Integers, constants: Integers) -> None:
    """Take the words ``scratch[:16]`` into the state."""
    a, b, c, d = scratch[_A], scratch[_B], scratch[_C], scratch[_D]
    for step in range(64):
        if step < 16:
            mixed = (b & c) | (~b & d & _WORD)
            word = step
        elif step < 32:
            mixed = (d & b) | (~d & c & _WORD)
            word = (5 * step + 1) & 15
        elif step < 48:
            mixed = b ^ c ^ d
            word = (3 * step + 5) & 15
        else:
            mixed = c ^ (b | (~d & _WORD))
            word = (7 * step) & 15
        mixed = (mixed + a + constants[0, step] + scratch[word]) & _WORD
        bits = constants[1, step]
        a, d, c = d, c, b
        b = (b + ((mixed << bits) | (mixed >> (32 - bits)))) & _WORD
    scratch[_A] = (scratch[_A] + a) & _WORD
    scratch[_B] = (scratch[_B] + b) & _WORD
    scratch[_C] = (scratch[_C] + c) & _WORD
    scratch[_D] = (scratch[_D] + d) & _WORD


@inlined
def _digest(data: Bytes, start: int, length: int, scratch: Integers, constants: Integers) -> None:
    """Leave the MD5 of ``data[start : start + length]`` in the scratch; the caller checked it."""
    scratch[_A], scratch[_B], scratch[_C], scratch[_D] = (
        0x67452301,
        0xEFCDAB89,
        0x98BADCFE,
        0x10325476,
    )
    at = start
    end = start + length
    while end - at >= 64:
        for word in range(16):
            scratch[word] = (
                np.int64(data[at])
                | np.int64(data[at + 1]) << 8
                | np.int64(data[at + 2]) << 16
                | np.int64(data[at + 3]) << 24
            )
            at += 4
        _digest_block(scratch, constants)
    for word in range(16):
        scratch[word] = 0
    rest = end - at
    for i in range(rest):
        scratch[i >> 2] |= np.int64(data[at + i]) << (8 * (i & 3))
    scratch[rest >> 2] |= np.int64(0x80) << (8 * (rest & 3))
    if rest >= 56:
        _digest_block(scratch, constants)
        for word in range(16):
            scratch[word] = 0
    scratch[14] = (length << 3) & _WORD
    scratch[15] = (length >> 29) & _WORD
    _digest_block(scratch, constants)


@inlined
def _slot_of(low: int, high: int, table: Integers) -> int:
    """Return the slot of a key, or the empty one where it would be put; -1 in a full table."""
    slots = table.shape[0]
    slot = np.int64(0)
    for attempt in range(_HASH_PROBES + slots):
        if attempt < _HASH_PROBES // 2:
            slot = ((low >> (8 * attempt)) & _WORD) % slots
        elif attempt < _HASH_PROBES:
            slot = ((high >> (8 * attempt - 40)) & _WORD) % slots
        else:
            slot = slot + 1 if slot + 1 < slots else np.int64(0)
        if table[slot, NEXT_OFFSET] == 0:
            return slot
        if table[slot, LOW] == low and table[slot, HIGH] == high:
            return slot
    return np.int64(-1)


@kernel(
    "int64",
    "const uint8[]",
    "const int64[]",
    "const int64[]",
    "const int64[]",
    "int64",
    "const int64[,]",
    "int64[]",
    "int64[,]",
    "int64[]",
)
def put_keys(
    source: Bytes,
    key_starts: Integers,
    key_lengths: Integers,
    offsets: Integers,
    most: int,
    constants: Integers,
    scratch: Integers,
    table: Integers,
    state: Integers,
) -> int:
    """Note the offsets of keys, until the table has ``most`` entries.

    A key is ``source[start : start + length]``; a negative length is none, which is passed over.
    Gives the number of rows that were taken, which is less than there are if the table was full
    before a row with a key, whether or not that key is in it; ``BROKEN`` for a key outside.
    """
    entries = state[ENTRIES]
    latest = state[LATEST_OFFSET]
    rows = min(key_starts.shape[0], key_lengths.shape[0], offsets.shape[0])
    row = 0
    while row < rows:
        start, length = key_starts[row], key_lengths[row]
        if length >= 0:
            if entries >= most:
                break
            if start < 0 or length > source.shape[0] - start:
                row = BROKEN
                break
            _digest(source, start, length, scratch, constants)
            low = scratch[_A] | (scratch[_B] << 32)
            high = scratch[_C] | (scratch[_D] << 32)
            slot = _slot_of(low, high, table)
            if slot < 0:
                break
            if table[slot, NEXT_OFFSET] == 0:
                table[slot, LOW], table[slot, HIGH] = low, high
                entries += 1
            latest = offsets[row]
            table[slot, NEXT_OFFSET] = latest + 1
        row += 1
    state[ENTRIES], state[LATEST_OFFSET] = entries, latest
    return row


@kernel(
    "int64",
    "const uint8[]",
    "const int64[]",
    "const int64[]",
    "const int64[,]",
    "int64[]",
    "const int64[,]",
    "int64[]",
)
def find_keys(
    source: Bytes,
    key_starts: Integers,
    key_lengths: Integers,
    constants: Integers,
    scratch: Integers,
    table: Integers,
    found: Integers,
) -> int:
    """Write the offset of each key into ``found``, or -1; see ``put_keys``.

    Gives the number of rows, or ``BROKEN`` for a key outside of its bytes.
    """
    rows = min(key_starts.shape[0], key_lengths.shape[0], found.shape[0])
    for row in range(rows):
        start, length = key_starts[row], key_lengths[row]
        found[row] = -1
        if length >= 0:
            if start < 0 or length > source.shape[0] - start:
                return BROKEN
            _digest(source, start, length, scratch, constants)
            low = scratch[_A] | (scratch[_B] << 32)
            high = scratch[_C] | (scratch[_D] << 32)
            slot = _slot_of(low, high, table)
            if slot >= 0:
                found[row] = table[slot, NEXT_OFFSET] - 1
    return rows
