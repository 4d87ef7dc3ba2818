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
    [int(abs(np.sin(step + 1)) * 2**32) for step in range(64)], np.int64
)
"""int64[64]: what RFC 1321 adds at each step."""


@inlined
def _step(a: int, b: int, mixed: int, word: int, bits: int) -> int:
    """Return what becomes of ``a``, all of them words of 32 bits."""
    total = (a + mixed + word) & _WORD
    return (b + ((total << bits) | (total >> (32 - bits)))) & _WORD


@inlined
def _digest_block(scratch: Integers, constants: Integers) -> None:
    """Take the words ``scratch[:16]`` into the state: four rounds of 16 steps, four at a time."""
    a, b, c, d = scratch[_A], scratch[_B], scratch[_C], scratch[_D]
    for i in range(0, 16, 4):
        a = _step(a, b, (b & c) | (~b & d), constants[i] + scratch[i], 7)
        d = _step(d, a, (a & b) | (~a & c), constants[i + 1] + scratch[i + 1], 12)
        c = _step(c, d, (d & a) | (~d & b), constants[i + 2] + scratch[i + 2], 17)
        b = _step(b, c, (c & d) | (~c & a), constants[i + 3] + scratch[i + 3], 22)
    for i in range(0, 16, 4):
        at = 5 * i + 1
        a = _step(a, b, (d & b) | (~d & c), constants[16 + i] + scratch[at & 15], 5)
        d = _step(d, a, (c & a) | (~c & b), constants[17 + i] + scratch[(at + 5) & 15], 9)
        c = _step(c, d, (b & d) | (~b & a), constants[18 + i] + scratch[(at + 10) & 15], 14)
        b = _step(b, c, (a & c) | (~a & d), constants[19 + i] + scratch[(at + 15) & 15], 20)
    for i in range(0, 16, 4):
        at = 3 * i + 5
        a = _step(a, b, b ^ c ^ d, constants[32 + i] + scratch[at & 15], 4)
        d = _step(d, a, a ^ b ^ c, constants[33 + i] + scratch[(at + 3) & 15], 11)
        c = _step(c, d, d ^ a ^ b, constants[34 + i] + scratch[(at + 6) & 15], 16)
        b = _step(b, c, c ^ d ^ a, constants[35 + i] + scratch[(at + 9) & 15], 23)
    for i in range(0, 16, 4):
        at = 7 * i
        a = _step(a, b, c ^ (b | (~d & _WORD)), constants[48 + i] + scratch[at & 15], 6)
        d = _step(d, a, b ^ (a | (~c & _WORD)), constants[49 + i] + scratch[(at + 7) & 15], 10)
        c = _step(c, d, a ^ (d | (~b & _WORD)), constants[50 + i] + scratch[(at + 14) & 15], 15)
        b = _step(b, c, d ^ (c | (~a & _WORD)), constants[51 + i] + scratch[(at + 21) & 15], 21)
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
    "const int64[]",
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
    "const int64[]",
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


@kernel("void", "const int64[,]", "int64", "uint8[]")
def mark_last_offsets(table: Integers, first: int, marks: Bytes) -> None:
    """Write 1 into ``marks[offset - first]`` for each offset in the table, as far as they go."""
    for slot in range(table.shape[0]):
        at = table[slot, NEXT_OFFSET] - 1 - first
        if table[slot, NEXT_OFFSET] != 0 and 0 <= at < marks.shape[0]:
            marks[at] = 1
