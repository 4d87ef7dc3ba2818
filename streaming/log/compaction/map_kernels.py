"""The loops over keys: the open hash table of offsets by MD5.

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
SEEN: Final = 2  # of no use
STATE_SIZE: Final = 3

MOST_SLOTS: Final = 2**31 - 1

_WORD: Final = 0xFFFFFFFF
_HASH_PROBES: Final = 10
_AHEAD: Final = 32
"""Rows whose slots are touched before the first of them is used: the core fetches them together,
where the table is larger than its caches."""


@inlined
def _share(hashed: int, slots: int) -> int:
    """Return the slot that 32 bits of a hash give; a division would cost more than all else."""
    return ((hashed & _WORD) * slots) >> 32


@inlined
def _slot_of(low: int, high: int, table: Integers) -> int:
    """Return the slot of a key, or the empty one where it would be put; -1 in a full table."""
    slots = table.shape[0]
    slot = np.int64(0)
    for attempt in range(_HASH_PROBES + slots):
        if attempt < _HASH_PROBES // 2:
            slot = _share(low >> (8 * attempt), slots)
        elif attempt < _HASH_PROBES:
            slot = _share(high >> (8 * attempt - 40), slots)
        else:
            slot = slot + 1 if slot + 1 < slots else np.int64(0)
        if table[slot, NEXT_OFFSET] == 0:
            return slot
        if table[slot, LOW] == low and table[slot, HIGH] == high:
            return slot
    return np.int64(-1)


@inlined
def _touch(digests: Integers, first: int, end: int, table: Integers) -> int:
    """Read the first slot of some keys; what comes of it only keeps the compiler from skipping."""
    seen = np.int64(0)
    for row in range(first, end):
        seen ^= table[_share(digests[row, LOW], table.shape[0]), NEXT_OFFSET]
    return seen


@kernel(
    "int64",
    "const int64[,]",
    "const int64[]",
    "const int64[]",
    "int64",
    "int64[,]",
    "int64[]",
)
def put_keys(
    digests: Integers,
    key_lengths: Integers,
    offsets: Integers,
    most: int,
    table: Integers,
    state: Integers,
) -> int:
    """Note the offsets of keys by their digests, until the table has ``most`` entries.

    A negative length is no key, and is passed over. Gives the number of rows that were taken, which
    is less than there are if the table was full before a row with a key, whether or not that key is
    in it. The table has less than ``MOST_SLOTS`` slots, or none is taken.
    """
    entries = state[ENTRIES]
    latest = state[LATEST_OFFSET]
    rows = min(digests.shape[0], key_lengths.shape[0], offsets.shape[0])
    if table.shape[0] > MOST_SLOTS:
        return 0
    row, ahead = 0, 0
    while row < rows:
        if row == ahead:
            ahead = min(row + _AHEAD, rows)
            state[SEEN] = _touch(digests, row, ahead, table)
        if key_lengths[row] >= 0:
            if entries >= most:
                break
            low, high = digests[row, LOW], digests[row, HIGH]
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


@kernel("int64", "const int64[,]", "const int64[]", "const int64[,]", "int64[]", "int64[]")
def find_keys(
    digests: Integers, key_lengths: Integers, table: Integers, found: Integers, state: Integers
) -> int:
    """Write the offset of each key into ``found``, or -1; see ``put_keys``.

    Gives the number of rows.
    """
    rows = min(digests.shape[0], key_lengths.shape[0], found.shape[0])
    if table.shape[0] > MOST_SLOTS:
        return 0
    ahead = 0
    for row in range(rows):
        if row == ahead:
            ahead = min(row + _AHEAD, rows)
            state[SEEN] = _touch(digests, row, ahead, table)
        found[row] = -1
        if key_lengths[row] >= 0:
            slot = _slot_of(digests[row, LOW], digests[row, HIGH], table)
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


@kernel("void", "const uint8[]", "const int64[]", "const int64[]", "uint8[]")
def find_unmarked(marks: Bytes, starts: Integers, ends: Integers, found: Bytes) -> None:
    """Write into ``found`` 1 for each ``marks[start:end]`` without a mark, 0 for another.

    One that does not lie in ``marks`` gets 0 too.
    """
    for row in range(min(starts.shape[0], ends.shape[0], found.shape[0])):
        found[row] = 0
        if 0 <= starts[row] <= ends[row] <= marks.shape[0]:
            seen = 0
            for at in range(starts[row], ends[row]):
                seen |= marks[at]
            found[row] = seen == 0
