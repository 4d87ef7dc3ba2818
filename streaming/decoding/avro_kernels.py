"""The loop that walks over many values of Avro, and notes what each of their fields has.

A schema is a program, ``int64[n, 4]``: its types in the order in which a value's bytes have them.

=========  ======================================================================================
``KIND``   what is read: one of the constants below
``MORE``   of ``NULLABLE`` the number of null; of ``FIXED`` its bytes; of ``ENUM`` how many symbols
           it has; of ``DECIMAL`` the least number with too many digits
``SKIP``   where the program goes on after this type and all within it
``BASE``   where the type's entries begin in ``cells`` and ``lengths``
=========  ======================================================================================

A type has an entry for each time that it is met. ``lengths`` is -1 where it is null. ``cells`` has
the number; of floats the bits; of strings and bytes where they start, of ``LIST`` the items.

Nothing is trusted: each length is compared with the bytes that are left. A value that is not read
to its end, or not plainly, is a fault of its row: it has nulls, and fastavro decides what it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafkalog.streaming.records.byte_kernels import read_int, read_varlong, read_word
from kafkalog.streaming.records.jit.inline import inlined
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

KIND: Final = 0
MORE: Final = 1
SKIP: Final = 2
BASE: Final = 3
FIELDS: Final = 4

INT: Final = 0
LONG: Final = 1
MILLIS: Final = 2  # a time in ms, noted in µs
BOOLEAN: Final = 3
FLOAT: Final = 4
DOUBLE: Final = 5
BYTES: Final = 6
STRING: Final = 7
FIXED: Final = 8
ENUM: Final = 9
DECIMAL: Final = 10  # of at most 8 bytes
NULLABLE: Final = 11
LIST: Final = 12

FAULT: Final = -1
MOST_LISTS: Final = 64
"""How deep lists lie within lists at most."""
# The columns of `lists`, int64[MOST_LISTS, LIST_FIELDS]: those that are being read.
_LIST: Final = 0  # where its type stands in the program
_LEFT: Final = 1  # items of the block that are not read yet
_ITEMS: Final = 2  # items so far
_ENTRY: Final = 3  # its own entry
LIST_FIELDS: Final = 4

_INT_END: Final = 2**31
_MOST_MILLIS: Final = (2**63 - 1) // 1000
_LONGEST_DECIMAL: Final = 8


@inlined
def _is_text(source: Bytes, at: int, end: int) -> bool:
    """Whether bytes are UTF-8; the caller has checked that they lie inside."""
    while at < end:
        first = int(source[at])
        at += 1
        if first < 0x80:
            continue
        lowest, highest, more = 0x80, 0xBF, 0
        if 0xC2 <= first <= 0xDF:
            more = 1
        elif 0xE0 <= first <= 0xEF:
            more = 2
            lowest = 0xA0 if first == 0xE0 else 0x80
            highest = 0x9F if first == 0xED else 0xBF  # no surrogates
        elif 0xF0 <= first <= 0xF4:
            more = 3
            lowest = 0x90 if first == 0xF0 else 0x80
            highest = 0x8F if first == 0xF4 else 0xBF
        if more == 0 or more > end - at:
            return False
        for _ in range(more):
            byte = int(source[at])
            if byte < lowest or byte > highest:
                return False
            lowest, highest = 0x80, 0xBF
            at += 1
    return True


@inlined
def _read_count(source: Bytes, at: int, end: int) -> tuple[int, int]:
    """Read how many items a block of a list has, and where they start; FAULT if there are fewer.

    Each item takes a byte at least: other lists are not walked over here. Blocks that say their
    size (a negative count) are left to fastavro: it follows the size where it passes over a list.
    """
    count, at = read_varlong(source, at, end)
    if at < 0 or count < 0 or count > end - at:
        return 0, FAULT
    return count, at


@inlined
def _read_plain(source: Bytes, at: int, end: int, kind: int, more: int) -> tuple[int, int, int]:
    """Read a type without others in it: its cell, its length, and where it ends, or FAULT."""
    if kind <= MILLIS or kind == ENUM:
        value, at = read_varlong(source, at, end)
        if kind == INT and not -_INT_END <= value < _INT_END:
            return 0, 0, FAULT
        if kind == ENUM and not 0 <= value < more:
            return 0, 0, FAULT
        if kind == MILLIS:
            if not -_MOST_MILLIS <= value <= _MOST_MILLIS:
                return 0, 0, FAULT
            value *= 1000
        return value, 0, at
    if kind == BOOLEAN:
        if at >= end or int(source[at]) > 1:
            return 0, 0, FAULT
        return int(source[at]), 0, at + 1
    if kind == FLOAT:
        if end - at < 4:
            return 0, 0, FAULT
        return read_word(source, at), 0, at + 4
    if kind == DOUBLE:
        if end - at < 8:
            return 0, 0, FAULT
        return read_word(source, at) | (read_word(source, at + 4) << 32), 0, at + 8
    length = more
    if kind != FIXED:
        length, at = read_varlong(source, at, end)
    if at < 0 or length < 0 or length > end - at:
        return 0, 0, FAULT
    if kind == STRING and not _is_text(source, at, at + length):
        return 0, 0, FAULT
    if kind == DECIMAL:
        if not 0 < length <= _LONGEST_DECIMAL:
            return 0, 0, FAULT
        value = read_int(source, at, length)
        if not -more < value < more:
            return 0, 0, FAULT
        return value, 0, at + length
    return at, length, at + length


@inlined
def _note(
    program: Integers,
    counts: Integers,
    cells: Integers,
    lengths: Integers,
    step: int,
    cell: int,
    length: int,
) -> None:
    """Note an entry of a type, or only count it where there is no room: the first time."""
    entry = program[step, BASE] + counts[step]
    counts[step] += 1
    if 0 <= entry < min(cells.shape[0], lengths.shape[0]):
        cells[entry] = cell
        lengths[entry] = length


@inlined
def _note_nulls(
    program: Integers, counts: Integers, cells: Integers, lengths: Integers, step: int, end: int
) -> None:
    """Note a null for each type in a part of the program; lists have no items."""
    while step < end:
        _note(program, counts, cells, lengths, step, 0, -1)
        step = program[step, SKIP] if program[step, KIND] == LIST else step + 1


@inlined
def _walk_row(
    source: Bytes,
    at: int,
    end: int,
    program: Integers,
    counts: Integers,
    cells: Integers,
    lengths: Integers,
    lists: Integers,
) -> int:
    """Walk over a value, and return where it ends, or FAULT."""
    step, depth = 0, 0
    while True:
        while depth > 0 and step == program[lists[depth - 1, _LIST], SKIP]:
            inner = lists[depth - 1, _LIST]
            lists[depth - 1, _LEFT] -= 1
            if lists[depth - 1, _LEFT] <= 0:
                count, at = _read_count(source, at, end)
                if at < 0:
                    return FAULT
                lists[depth - 1, _LEFT] = count
                lists[depth - 1, _ITEMS] += count
            if lists[depth - 1, _LEFT] > 0:
                step = inner + 1
                break
            entry = lists[depth - 1, _ENTRY]
            if 0 <= entry < cells.shape[0]:
                cells[entry] = lists[depth - 1, _ITEMS]
            depth -= 1
        if step >= program.shape[0]:
            return at
        kind, more = program[step, KIND], program[step, MORE]
        if kind == NULLABLE:
            branch, at = read_varlong(source, at, end)
            if at < 0 or not 0 <= branch <= 1:
                return FAULT
            if branch == more:
                _note_nulls(program, counts, cells, lengths, step, program[step, SKIP])
                step = program[step, SKIP]
            else:
                _note(program, counts, cells, lengths, step, 0, 0)
                step += 1
        elif kind == LIST:
            count, at = _read_count(source, at, end)
            if at < 0 or depth >= lists.shape[0]:
                return FAULT
            if count == 0:
                _note(program, counts, cells, lengths, step, 0, 0)
                step = program[step, SKIP]
            else:
                lists[depth, _LIST], lists[depth, _LEFT], lists[depth, _ITEMS] = step, count, count
                lists[depth, _ENTRY] = program[step, BASE] + counts[step]
                _note(program, counts, cells, lengths, step, 0, 0)
                depth += 1
                step += 1
        else:
            cell, length, at = _read_plain(source, at, end, kind, more)
            if at < 0:
                return FAULT
            _note(program, counts, cells, lengths, step, cell, length)
            step += 1


@kernel(
    "int64",
    "const uint8[]",
    "const int64[]",
    "const int64[]",
    "const int64[,]",
    "int64[]",
    "int64[]",
    "uint8[]",
    "int64[]",
    "int64[]",
    "int64[,]",
)
def walk_values(
    source: Bytes,
    starts: Integers,
    ends: Integers,
    program: Integers,
    counts: Integers,
    before: Integers,
    faults: Bytes,
    cells: Integers,
    lengths: Integers,
    lists: Integers,
) -> int:
    """Walk over the values ``source[starts[i]:ends[i]]``; return how many of them are faults.

    Called twice. At first ``cells`` and ``lengths`` are empty: it counts the entries of each type,
    and sets ``faults`` where a value is one. Then it notes them, with nulls for faults.

    Args:
        source: the bytes.
        starts: of each value.
        ends: of each value.
        program: the schema, see the module; each ``SKIP`` lies behind its step.
        counts: entries of each type, all 0.
        before: as long as ``counts``, to work with.
        faults: 0 for each value; not 0 has nulls.
        cells: see the module.
        lengths: see the module.
        lists: int64[MOST_LISTS, LIST_FIELDS], to work with.
    """
    steps, found = program.shape[0], 0
    if min(counts.shape[0], before.shape[0]) < steps:
        return FAULT
    for row in range(min(starts.shape[0], ends.shape[0], faults.shape[0])):
        at, end = starts[row], ends[row]
        if faults[row] == 0 and 0 <= at <= end <= source.shape[0]:
            for step in range(steps):
                before[step] = counts[step]
            if _walk_row(source, at, end, program, counts, cells, lengths, lists) >= 0:
                continue
            for step in range(steps):
                counts[step] = before[step]
        faults[row] = 1
        found += 1
        _note_nulls(program, counts, cells, lengths, 0, steps)
    return found
