"""The loops over keys: a hash table of keys that were seen, compared by their bytes.

A slot of the table has the hash of its key, and one more than where the key lies in the arena, so
that a slot of zeros is empty. In the arena a key is 4 bytes of its length, little-endian, and its
bytes. A key is looked for from the slot that its hash gives, slot by slot.

A hash has 62 bits in two halves. The upper half chooses the share of a key, the lower half its
slot. Both start from a seed that is drawn anew for each query, so that nobody can write keys that
all meet in one slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.streaming.records.byte_kernels import copy_bytes, read_word
from kafkalog.streaming.records.jit.inline import inlined
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

# The columns of the table, int64[slots, SLOT_FIELDS]; the number of slots is a power of 2.
HASH: Final = 0
NEXT_PLACE: Final = 1
SLOT_FIELDS: Final = 2

# What is known of the table, int64[STATE_SIZE].
ENTRIES: Final = 0
USED: Final = 1  # bytes of the arena
SEEN: Final = 2  # of no use
STATE_SIZE: Final = 3

SHARES: Final = 1 << 30
"""Into how many shares the upper halves of hashes divide keys."""

LENGTH_SIZE: Final = 4
BROKEN: Final = -1
"""A key lies outside of its bytes."""

_MASK: Final = 0xFFFFFFFF
_LOW_SEED: Final = 0x85EBCA6B
_LOW: Final = 0x9E3779B1
_HIGH: Final = 0xC2B2AE3D
_LAST: Final = 0x27D4EB2F
_AHEAD: Final = 32
"""Rows whose slots are touched before the first of them is used: the core fetches them together,
where the table is larger than its caches."""


@inlined
def _hash_of(source: Bytes, start: int, length: int, seed: int) -> int:
    """Hash a key that lies inside of its bytes."""
    low = (seed ^ length ^ _LOW_SEED) & _MASK
    high = ((seed >> 32) + length) & _MASK
    at, end = start, start + length
    while end - at >= 4:
        word = read_word(source, at)
        low = ((low ^ word) * _LOW) & _MASK
        low ^= low >> 15
        high = ((high + word) * _HIGH) & _MASK
        high ^= high >> 13
        at += 4
    while at < end:
        byte = int(source[at])
        low = ((low ^ byte) * _HIGH) & _MASK
        low ^= low >> 17
        high = ((high + byte) * _LOW) & _MASK
        high ^= high >> 16
        at += 1
    low = (low * _LAST) & _MASK
    low ^= low >> 16
    high = (high * _LAST) & _MASK
    high ^= high >> 15
    return ((high & (SHARES - 1)) << 32) | low


@kernel("int64", "const uint8[]", "const int64[]", "const int64[]", "int64", "int64[]")
def hash_keys(
    source: Bytes, starts: Integers, lengths: Integers, seed: int, hashes: Integers
) -> int:
    """Write the hash of each key, -1 where its length is negative; 0 or BROKEN.

    ``seed`` has 62 bits.
    """
    for row in range(min(starts.shape[0], lengths.shape[0], hashes.shape[0])):
        start, length = starts[row], lengths[row]
        if length < 0:
            hashes[row] = -1
        elif start < 0 or length > source.shape[0] - start:
            return BROKEN
        else:
            hashes[row] = _hash_of(source, start, length, seed)
    return 0


@inlined
def _is_key(arena: Bytes, place: int, source: Bytes, start: int, length: int) -> bool:
    """Return whether the key at a place of the arena is the one in ``source``."""
    if read_word(arena, place) != length:
        return False
    at, end = place + LENGTH_SIZE, place + LENGTH_SIZE + length
    while end - at >= 4:
        if read_word(arena, at) != read_word(source, start):
            return False
        at += 4
        start += 4
    while at < end:
        if arena[at] != source[start]:
            return False
        at += 1
        start += 1
    return True


@inlined
def _touch(hashes: Integers, first: int, end: int, table: Integers, arena: Bytes) -> int:
    """Read the first slot of some keys, and then where their keys lie.

    What comes of it only keeps the compiler from skipping it.
    """
    seen = 0
    mask = table.shape[0] - 1
    for row in range(first, end):
        seen ^= table[max(hashes[row], 0) & mask, NEXT_PLACE]
    for row in range(first, end):
        seen ^= int(arena[max(table[max(hashes[row], 0) & mask, NEXT_PLACE] - 1, 0)])
    return seen


@kernel(
    "int64",
    "const uint8[]",
    "const int64[]",
    "const int64[]",
    "const int64[]",
    "const int64[]",
    "int64",
    "int64",
    "int64",
    "int64",
    "int64",
    "int64[,]",
    "uint8[]",
    "int64[]",
    "uint8[]",
)
def add_newest(
    source: Bytes,
    starts: Integers,
    lengths: Integers,
    hashes: Integers,
    offsets: Integers,
    low: int,
    high: int,
    below: int,
    rows: int,
    most: int,
    table: Integers,
    arena: Bytes,
    state: Integers,
    newest: Bytes,
) -> int:
    """Add the keys of the first ``rows`` rows, the last row first.

    ``newest[row]`` becomes 1 for a row whose key was not there yet and whose offset lies below
    ``below``, else 0. Keys of other shares than ``[low, high)`` are passed over, and so is what
    has a negative hash. Gives the number of rows that are left, 0 if all were taken: then the table
    has ``most`` entries, or the arena has no room for the key of the last row that is left. Gives
    BROKEN if a key lies outside of its bytes.
    """
    slots = table.shape[0]
    entries, used = state[ENTRIES], state[USED]
    left = min(
        rows,
        starts.shape[0],
        lengths.shape[0],
        hashes.shape[0],
        offsets.shape[0],
        newest.shape[0],
    )
    ahead = left
    while left > 0:
        row = left - 1
        if left == ahead:
            ahead = max(left - _AHEAD, 0)
            state[SEEN] = _touch(hashes, ahead, left, table, arena)
        hashed, start, length = hashes[row], starts[row], lengths[row]
        newest[row] = 0
        left = row
        if hashed < 0 or not low <= hashed >> 32 < high:
            continue
        if start < 0 or length < 0 or length > source.shape[0] - start:
            return BROKEN
        slot = hashed & (slots - 1)
        found = False
        while table[slot, NEXT_PLACE] != 0:
            place = table[slot, NEXT_PLACE] - 1
            if table[slot, HASH] == hashed and _is_key(arena, place, source, start, length):
                found = True
                break
            slot = (slot + 1) & (slots - 1)
        if found:
            continue
        if entries >= most or entries + 1 >= slots or LENGTH_SIZE + length > arena.shape[0] - used:
            left = row + 1
            break
        for i in range(LENGTH_SIZE):
            arena[used + i] = (length >> (8 * i)) & 0xFF
        copy_bytes(arena, used + LENGTH_SIZE, source, start, length)
        table[slot, HASH] = hashed
        table[slot, NEXT_PLACE] = used + 1
        used += LENGTH_SIZE + length
        entries += 1
        newest[row] = offsets[row] < below
    state[ENTRIES], state[USED] = entries, used
    return int(left)


@kernel(
    "int64",
    "const int64[,]",
    "const uint8[]",
    "int64",
    "int64",
    "int64[,]",
    "uint8[]",
    "int64[]",
)
def take_over(
    table: Integers,
    arena: Bytes,
    low: int,
    high: int,
    new_table: Integers,
    new_arena: Bytes,
    state: Integers,
) -> int:
    """Put the keys of the shares ``[low, high)`` into an empty table with an arena of its own.

    Gives their number, or BROKEN if they do not fit or a place lies outside of the arena.
    ``state`` is that of the new table then.
    """
    slots = new_table.shape[0]
    entries, used = 0, 0
    for old in range(table.shape[0]):
        place = table[old, NEXT_PLACE] - 1
        hashed = table[old, HASH]
        if place < 0 or not low <= hashed >> 32 < high:
            continue
        if place > arena.shape[0] - LENGTH_SIZE:
            return BROKEN
        size = LENGTH_SIZE + read_word(arena, place)
        if size > arena.shape[0] - place or size > new_arena.shape[0] - used:
            return BROKEN
        if entries + 1 >= slots:
            return BROKEN
        slot = hashed & (slots - 1)
        while new_table[slot, NEXT_PLACE] != 0:
            slot = (slot + 1) & (slots - 1)
        copy_bytes(new_arena, used, arena, place, size)
        new_table[slot, HASH] = hashed
        new_table[slot, NEXT_PLACE] = used + 1
        used += size
        entries += 1
    state[ENTRIES], state[USED] = entries, used
    return entries


@kernel(
    "int64",
    *("const uint8[]", "const int64[]", "const int64[]", "const int64[]"),
    *("int64", "int64", "int64", "const int64[,]", "const uint8[]", "int64[]", "uint8[]"),
)
def find_unknown(
    source: Bytes,
    starts: Integers,
    lengths: Integers,
    hashes: Integers,
    low: int,
    high: int,
    rows: int,
    table: Integers,
    arena: Bytes,
    state: Integers,
    unknown: Bytes,
) -> int:
    """Write 1 for each of the first ``rows`` rows whose key the table has not, else 0.

    Keys of other shares than ``[low, high)`` get 0, and so does what has a negative hash. Gives 0,
    or BROKEN if a key lies outside of its bytes.
    """
    slots = table.shape[0]
    left = min(rows, starts.shape[0], lengths.shape[0], hashes.shape[0], unknown.shape[0])
    ahead = left
    while left > 0:
        row = left - 1
        if left == ahead:
            ahead = max(left - _AHEAD, 0)
            state[SEEN] = _touch(hashes, ahead, left, table, arena)
        hashed, start, length = hashes[row], starts[row], lengths[row]
        unknown[row] = 0
        left = row
        if hashed < 0 or not low <= hashed >> 32 < high:
            continue
        if start < 0 or length < 0 or length > source.shape[0] - start:
            return BROKEN
        slot = hashed & (slots - 1)
        unknown[row] = 1
        while table[slot, NEXT_PLACE] != 0:
            place = table[slot, NEXT_PLACE] - 1
            if table[slot, HASH] == hashed and _is_key(arena, place, source, start, length):
                unknown[row] = 0
                break
            slot = (slot + 1) & (slots - 1)
    return 0


@inlined
def is_below(left: Bytes, start: int, length: int, right: Bytes, size: int) -> bool:
    """Return whether ``left[start : start + length]`` lies below ``right[:size]``."""
    for i in range(min(length, size)):
        if left[start + i] != right[i]:
            return bool(left[start + i] < right[i])
    return length < size


@kernel(
    "int64",
    "const uint8[]",
    "const int64[]",
    "const int64[]",
    "const uint8[]",
    "int64",
    "const uint8[]",
    "int64",
    "uint8[]",
)
def keys_between(
    source: Bytes,
    starts: Integers,
    lengths: Integers,
    low: Bytes,
    low_size: int,
    high: Bytes,
    high_size: int,
    inside: Bytes,
) -> int:
    """Write 1 into ``inside`` for each key from ``low[:low_size]`` on and below the other bound.

    A negative ``high_size`` is no bound. A negative length is no key, and gets 0. Gives 0, or
    BROKEN.
    """
    if low_size > low.shape[0] or high_size > high.shape[0]:
        return BROKEN
    for row in range(min(starts.shape[0], lengths.shape[0], inside.shape[0])):
        start, length = starts[row], lengths[row]
        inside[row] = 0
        if length < 0:
            continue
        if start < 0 or length > source.shape[0] - start:
            return BROKEN
        if is_below(source, start, length, low, low_size):
            continue
        inside[row] = high_size < 0 or is_below(source, start, length, high, high_size)
    return 0
