"""LevelDB's memtable in arrays: entries in an arena, and a skip list that keeps them in order.

Order is by key, ascending, byte by byte; of one key the entry with the largest sequence number
comes first. ``entry_kernels`` has the coding of an entry.

A node of the skip list is a stretch of ``links``: where its entry lies in the arena, and then the
next node on each of its levels, the lowest first. A node is named by where it begins. The head
begins at 0 and has all levels, so that a next node of 0 is none. A node gets one level more with a
chance of 1 in 4, by the random numbers that LevelDB takes (``util/random.h``).

There is one writer. Nothing is read while it writes. Entries are never changed or removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.streaming.lookup.entry_kernels import (
    BROKEN,
    DELETION,
    TAG_SIZE,
    VALUE,
    put_tag,
    put_varint32,
    read_sequence,
    read_varint32,
    size_of_entry,
)
from kafkalog.streaming.records.byte_kernels import copy_bytes
from kafkalog.streaming.records.jit.inline import inlined
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

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
        if high_length >= 0 and not _is_below(arena, start, size, high, high_length):
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


@inlined
def _is_below(left: Bytes, start: int, length: int, right: Bytes, size: int) -> bool:
    """Return whether ``left[start : start + length]`` lies below ``right[:size]``."""
    for i in range(min(length, size)):
        if left[start + i] != right[i]:
            return bool(left[start + i] < right[i])
    return length < size
