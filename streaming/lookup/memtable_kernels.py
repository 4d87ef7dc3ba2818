"""LevelDB's memtable in arrays: the coding of entries, an arena, and a skip list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.streaming.lookup.key_kernels import is_below
from kafkalog.streaming.records.byte_kernels import copy_bytes
from kafkalog.streaming.records.jit.inline import inlined
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers


# ----------------------------------------------------------------------------------------------
# LevelDB's coding of an entry, and the loops that write and read entries one after the other.
#
# ::
#
#     varint32  length of key and tag
#     bytes     key
#     uint64    tag, little-endian: sequence number << 8 | type (0 deletion, 1 value)
#     varint32  length of the value
#     bytes     value
#
# The sequence number of a record is its offset. A varint32 here is LevelDB's: an unsigned number
# in groups of 7 bits, the least significant first, in at most 5 bytes, without zig-zag.


DELETION: Final = 0
VALUE: Final = 1
TAG_SIZE: Final = 8
SMALLEST_ENTRY: Final = 1 + TAG_SIZE + 1
"""The bytes of an entry without a byte of key and value."""

ANY: Final = 1 << 31
"""A width with which all keys fall into the first bucket."""

BROKEN: Final = -1
"""Bytes that are no entry, or a row outside of its bytes."""

_MASK: Final = 0xFFFFFFFF
_LAST_SHIFT: Final = 28


@inlined
def size_of_varint32(value: int) -> int:
    """Return the bytes that an unsigned number takes."""
    size = 1
    while value >= 0x80:
        size += 1
        value >>= 7
    return size


@inlined
def put_varint32(out: Bytes, position: int, value: int) -> int:
    """Write an unsigned number and return where it ends; the caller has checked the room."""
    while value >= 0x80:
        out[position] = (value & 0x7F) | 0x80
        position += 1
        value >>= 7
    out[position] = value
    return position + 1


@inlined
def read_varint32(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Read a number in ``data[position:end]``; return it and where it ends, or -1 if it does not.

    As in LevelDB, bits of the fifth byte that 32 have no room for are dropped.
    """
    value, shift = np.int64(0), 0
    while position < end and shift <= _LAST_SHIFT:
        byte = np.int64(data[position])
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return int(value) & _MASK, position
        shift += 7
    return 0, -1


@inlined
def put_tag(out: Bytes, position: int, sequence: int, kind: int) -> int:
    """Write a tag and return where it ends; the caller has checked that there is room."""
    out[position] = kind
    for i in range(1, TAG_SIZE):
        out[position + i] = (sequence >> (8 * (i - 1))) & 0xFF
    return position + TAG_SIZE


@inlined
def read_sequence(data: Bytes, position: int) -> int:
    """Read the sequence number of a tag; the caller has checked that it lies inside."""
    sequence = np.int64(0)
    for i in range(1, TAG_SIZE):
        sequence |= np.int64(data[position + i]) << (8 * (i - 1))
    return int(sequence)


@inlined
def size_of_entry(key_length: int, value_length: int) -> int:
    """Return the bytes of an entry."""
    key_size = key_length + TAG_SIZE
    return size_of_varint32(key_size) + key_size + size_of_varint32(value_length) + value_length


@kernel(
    "int64",
    *("const uint8[]", "const int64[]", "const int64[]", "const int64[]"),
    *("const int64[]", "const int64[]", "const int64[]"),
    *("int64", "int64", "int64", "uint8[,]", "int64[]"),
)
def add_to_buckets(
    source: Bytes,
    key_starts: Integers,
    key_lengths: Integers,
    value_lengths: Integers,
    offsets: Integers,
    hashes: Integers,
    rows: Integers,
    left: int,
    low: int,
    width: int,
    buckets: Bytes,
    used: Integers,
) -> int:
    """Write entries without values into the buckets of their keys, the last row first.

    ``rows[:left]`` are taken. The bucket of a key is ``((hash >> 32) - low) // width``. Gives how
    many rows are left, 0 if all were taken: the bucket of the last one that is left has no room.
    Gives BROKEN if a row, key or bucket lies outside of what there is.
    """
    left = min(left, rows.shape[0])
    most = min(
        *(key_starts.shape[0], key_lengths.shape[0], value_lengths.shape[0]),
        *(offsets.shape[0], hashes.shape[0]),
    )
    if width <= 0:
        return BROKEN
    while left > 0:
        row = rows[left - 1]
        if row < 0 or row >= most:
            return BROKEN
        start, length = key_starts[row], key_lengths[row]
        bucket = ((hashes[row] >> 32) - low) // width
        if start < 0 or length < 0 or length > source.shape[0] - start:
            return BROKEN
        if bucket < 0 or bucket >= min(buckets.shape[0], used.shape[0]):
            return BROKEN
        at = used[bucket]
        if at < 0 or size_of_entry(length, 0) > buckets.shape[1] - at:
            return int(left)
        out = buckets[bucket]
        at = put_varint32(out, at, length + TAG_SIZE)
        copy_bytes(out, at, source, start, length)
        at = put_tag(out, at + length, offsets[row], VALUE if value_lengths[row] >= 0 else DELETION)
        used[bucket] = put_varint32(out, at, 0)
        left -= 1
    return 0


@kernel("int64", "const uint8[]", "int64[]", "int64[]", "int64[]", "uint8[]")
def find_entries(
    data: Bytes, key_starts: Integers, key_lengths: Integers, sequences: Integers, kinds: Bytes
) -> int:
    """Find the keys and tags of entries, the last one first; values are passed over.

    The columns are filled from their ends on: what comes first in ``data`` comes last there. Gives
    the number of entries. Gives BROKEN for bytes that are no entries, and for too many of them.
    """
    at, end, found = 0, data.shape[0], 0
    room = min(key_starts.shape[0], key_lengths.shape[0], sequences.shape[0], kinds.shape[0])
    while at < end:
        size, at = read_varint32(data, at, end)
        if at < 0 or size < TAG_SIZE or size > end - at or found >= room:
            return BROKEN
        found += 1
        tag = at + size - TAG_SIZE
        key_starts[key_starts.shape[0] - found] = at
        key_lengths[key_lengths.shape[0] - found] = size - TAG_SIZE
        sequences[sequences.shape[0] - found] = read_sequence(data, tag)
        kinds[kinds.shape[0] - found] = data[tag]
        size, at = read_varint32(data, at + size, end)
        if at < 0 or size > end - at:
            return BROKEN
        at += size
    return found


# ----------------------------------------------------------------------------------------------
# LevelDB's memtable in arrays: entries in an arena, and a skip list that keeps them in order.
#
# Order is by key, ascending, byte by byte; of one key the entry with the largest sequence number
# comes first. The coding of an entry is above.
#
# A node of the skip list is a stretch of ``links``: where its entry lies in the arena, and then
# the next node on each of its levels, the lowest first. A node is named by where it begins. The
# head begins at 0 and has all levels, so that a next node of 0 is none. A node gets one level
# more with a chance of 1 in 4, by the random numbers that LevelDB takes (``util/random.h``).
#
# There is one writer. Nothing is read while it writes. Entries are never changed or removed.


MOST_LEVELS: Final = 12
BRANCHING: Final = 4
FIRST_RANDOM: Final = 0xDEADBEEF & 0x7FFFFFFF

# What is known of a table, int64[STATE_SIZE].
USED: Final = 0  # bytes of the arena
LINKED: Final = 1  # numbers of ``links``
LEVELS: Final = 2  # of the highest node
RANDOM: Final = 3
ENTRIES: Final = 4
BEFORE: Final = 5  # while an entry is added: the node before it on each level
STATE_SIZE: Final = BEFORE + MOST_LEVELS

TWICE: Final = -2
"""An entry has the key and sequence number of one that is there."""

ABSENT: Final = 0
DELETED: Final = 1
FOUND: Final = 2

# The columns of a scan, int64[COLUMNS, n].
KEY_START: Final = 0
KEY_LENGTH: Final = 1
SEQUENCE: Final = 2
VALUE_START: Final = 3
VALUE_LENGTH: Final = 4  # -1 for a deletion
COLUMNS: Final = 5

_MULTIPLIER: Final = 16807
_MODULUS: Final = (1 << 31) - 1


@inlined
def _levels(state: Integers) -> int:
    """Draw how many levels a node gets."""
    levels = 1
    while levels < MOST_LEVELS:
        state[RANDOM] = (state[RANDOM] * _MULTIPLIER) % _MODULUS
        if state[RANDOM] % BRANCHING != 0:
            break
        levels += 1
    return levels


@inlined
def _compare(
    arena: Bytes, used: int, place: int, key: Bytes, start: int, length: int, sequence: int
) -> int:
    """Tell where the entry at a place lies: before (-1), at (0) or after (1) a key and sequence.

    Gives 2 if there is no entry.
    """
    if place < 0 or place >= used:
        return 2
    size, at = read_varint32(arena, place, used)
    if at < 0 or size < TAG_SIZE or size > used - at:
        return 2
    size -= TAG_SIZE
    for i in range(min(size, length)):
        if arena[at + i] != key[start + i]:
            return -1 if arena[at + i] < key[start + i] else 1
    if size != length:
        return -1 if size < length else 1
    found = read_sequence(arena, at + size)
    if found == sequence:
        return 0
    return -1 if found > sequence else 1


@inlined
def _first_from(
    arena: Bytes,
    links: Integers,
    state: Integers,
    key: Bytes,
    start: int,
    length: int,
    sequence: int,
) -> int:
    """Find the first node that does not lie before a key and sequence, 0 for none.

    ``state`` keeps the node before that one, on each level. Gives BROKEN for links that lead
    nowhere.
    """
    linked = min(state[LINKED], links.shape[0])
    used = min(state[USED], arena.shape[0])
    node, level, moves = 0, state[LEVELS] - 1, 0
    if level < 0 or level >= MOST_LEVELS:
        return BROKEN
    while moves <= linked:  # links that lead in a circle do not end
        if node < 0 or 1 + level >= linked - node:
            return BROKEN
        after = links[node + 1 + level]
        if after < 0 or after >= linked:
            return BROKEN
        order = 1
        if after != 0:
            order = _compare(arena, used, links[after], key, start, length, sequence)
            if order > 1:
                return BROKEN
        if order < 0:
            node = after
            moves += 1
            continue
        state[BEFORE + level] = node
        if level == 0:
            return int(after)
        level -= 1
    return BROKEN


@inlined
def _at(arena: Bytes, used: int, place: int) -> tuple[int, int, int, int]:
    """Return where the key and the value of an entry begin, and their lengths; -1 for none."""
    if place < 0 or place >= used:
        return -1, 0, 0, 0
    size, at = read_varint32(arena, place, used)
    if at < 0 or size < TAG_SIZE or size > used - at:
        return -1, 0, 0, 0
    length, value = read_varint32(arena, at + size, used)
    if value < 0 or length > used - value:
        return -1, 0, 0, 0
    if arena[at + size - TAG_SIZE] == DELETION:
        length = -1
    return at, size - TAG_SIZE, value, length


@kernel(
    "int64",
    *("const uint8[]", "const int64[]", "const int64[]"),
    *("const int64[]", "const int64[]", "const int64[]", "int64", "uint8[]", "int64[]", "int64[]"),
)
def add_entries(
    source: Bytes,
    key_starts: Integers,
    key_lengths: Integers,
    value_starts: Integers,
    value_lengths: Integers,
    sequences: Integers,
    first: int,
    arena: Bytes,
    links: Integers,
    state: Integers,
) -> int:
    """Add the rows from ``first`` on; a negative value length is a deletion.

    Gives the number of rows that were taken, with those before ``first``: if it is not all of them,
    arena or links have no room for the next one. Gives BROKEN if a row lies outside of its bytes,
    TWICE if its key and sequence number are there already.
    """
    count = min(
        *(key_starts.shape[0], key_lengths.shape[0], value_starts.shape[0]),
        *(value_lengths.shape[0], sequences.shape[0]),
    )
    if first < 0 or state.shape[0] < STATE_SIZE:
        return BROKEN
    for row in range(first, count):
        start, length = key_starts[row], key_lengths[row]
        value, size = value_starts[row], max(value_lengths[row], 0)
        if start < 0 or length < 0 or length > source.shape[0] - start:
            return BROKEN
        if size > 0 and (value < 0 or size > source.shape[0] - value):
            return BROKEN
        used, linked = state[USED], state[LINKED]
        if used < 0 or size_of_entry(length, size) > arena.shape[0] - used:
            return int(row)
        if linked <= 0 or 1 + MOST_LEVELS > links.shape[0] - linked:
            return int(row)
        found = _first_from(arena, links, state, source, start, length, sequences[row])
        if found == BROKEN:
            return BROKEN
        if found > 0 and (
            _compare(arena, used, links[found], source, start, length, sequences[row]) == 0
        ):
            return TWICE
        kind = VALUE if value_lengths[row] >= 0 else DELETION
        at = put_varint32(arena, used, length + TAG_SIZE)
        copy_bytes(arena, at, source, start, length)
        at = put_tag(arena, at + length, sequences[row], kind)
        at = put_varint32(arena, at, size)
        if size > 0:
            copy_bytes(arena, at, source, value, size)
        state[USED] = at + size
        levels = _levels(state)
        while state[LEVELS] < levels:
            state[BEFORE + state[LEVELS]] = 0
            state[LEVELS] += 1
        links[linked] = used
        for level in range(levels):
            before = state[BEFORE + level] + 1 + level
            links[linked + 1 + level] = links[before]
            links[before] = linked
        state[LINKED] = linked + 1 + levels
        state[ENTRIES] += 1
    return int(count)


@kernel(
    *("int64", "const uint8[]", "int64", "int64"),
    *("const uint8[]", "const int64[]", "int64[]", "int64[]"),
)
def look_up(
    key: Bytes,
    length: int,
    sequence: int,
    arena: Bytes,
    links: Integers,
    state: Integers,
    found: Integers,
) -> int:
    """Find the newest entry of ``key[:length]`` up to a sequence number.

    Gives FOUND, and writes its columns to ``found``, int64[COLUMNS]; or DELETED, or ABSENT.
    """
    if length < 0 or length > key.shape[0] or found.shape[0] < COLUMNS:
        return BROKEN
    if state.shape[0] < STATE_SIZE:
        return BROKEN
    node = _first_from(arena, links, state, key, 0, length, sequence)
    if node <= 0:
        return BROKEN if node < 0 else ABSENT
    start, size, value, value_length = _at(arena, min(state[USED], arena.shape[0]), links[node])
    if start < 0:
        return BROKEN
    if size != length:
        return ABSENT
    for i in range(length):
        if arena[start + i] != key[i]:
            return ABSENT
    found[KEY_START] = start
    found[KEY_LENGTH] = size
    found[SEQUENCE] = read_sequence(arena, start + size)
    found[VALUE_START] = value
    found[VALUE_LENGTH] = value_length
    return DELETED if value_length < 0 else FOUND


@kernel("int64", "const uint8[]", "int64", "const uint8[]", "const int64[]", "int64[]")
def seek(key: Bytes, length: int, arena: Bytes, links: Integers, state: Integers) -> int:
    """Find the first node from ``key[:length]`` on; 0 for none, or BROKEN."""
    if length < 0 or length > key.shape[0] or state.shape[0] < STATE_SIZE:
        return BROKEN
    return _first_from(arena, links, state, key, 0, length, (1 << 56) - 1)


@kernel(
    *("int64", "const uint8[]", "int64", "int64"),
    *("const uint8[]", "const int64[]", "const int64[]", "int64[,]", "int64[]"),
)
def scan(
    high: Bytes,
    high_length: int,
    newest_only: int,
    arena: Bytes,
    links: Integers,
    state: Integers,
    columns: Integers,
    cursor: Integers,
) -> int:
    """List entries from a node on and below ``high[:high_length]``, a negative length is no bound.

    With ``newest_only`` the first entry of each key alone. ``cursor`` has the node to begin with,
    and where the key before it lies in the arena, with its length (-1 for none). It is moved on: a
    node of 0 is the end. Gives the number of entries, at most as many as ``columns`` has room for,
    or BROKEN.
    """
    if cursor.shape[0] < 3 or columns.shape[0] < COLUMNS or high_length > high.shape[0]:
        return BROKEN
    used = min(state[USED], arena.shape[0])
    linked = min(state[LINKED], links.shape[0])
    node, last, last_length = cursor[0], cursor[1], cursor[2]
    if last < 0 or last_length > used - last:
        return BROKEN
    count, passed = 0, 0
    while node != 0 and count < columns.shape[1]:
        if node < 0 or node >= linked - 1 or passed > linked:
            return BROKEN
        start, size, value, value_length = _at(arena, used, links[node])
        if start < 0:
            return BROKEN
        if high_length >= 0 and not is_below(arena, start, size, high, high_length):
            node = 0
            break
        is_same = size == last_length
        for i in range(size):
            if not is_same or arena[start + i] != arena[last + i]:
                is_same = False
                break
        if newest_only == 0 or not is_same:
            columns[KEY_START, count] = start
            columns[KEY_LENGTH, count] = size
            columns[SEQUENCE, count] = read_sequence(arena, start + size)
            columns[VALUE_START, count] = value
            columns[VALUE_LENGTH, count] = value_length
            count += 1
        last, last_length = start, size
        node = links[node + 1]
        passed += 1
    cursor[0] = node
    cursor[1] = last
    cursor[2] = last_length
    return count
