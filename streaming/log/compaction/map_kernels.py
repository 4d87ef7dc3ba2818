"""The kernels of the offset map: MD5 of keys, and the hash table of offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kafkalog.streaming.records.byte_kernels import read_word
from kafkalog.streaming.records.jit.inline import compiled_later, inlined
from kafkalog.streaming.records.jit.kernel import kernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers

    Words = NDArray[np.uint32]


# ----------------------------------------------------------------------------------------------
# The MD5 of keys, sixteen at a time (RFC 1321).
#
# Each of the 64 steps of MD5 waits for the one before, so one key alone leaves most of a core
# idle. Sixteen keys go side by side, each in a lane of a vector: 0.04 µs a key instead of 0.7.


LANES: Final = 16
WORK_SIZE: Final = 20 * LANES
"""uint32: of each lane the 16 words of a block, then its state of 4 words; word by word."""

# What a lane is at, int64[LANES, LANE_FIELDS].
ROW: Final = 0
START: Final = 1
LENGTH: Final = 2
AT: Final = 3  # bytes of the key that were taken
LANE_FIELDS: Final = 4

# The columns of the digests, int64[n, DIGEST_FIELDS]: the halves, little-endian.
LOW: Final = 0
HIGH: Final = 1
DIGEST_FIELDS: Final = 2

BROKEN: Final = -1  # a key lies outside of its bytes

_A: Final = 16 * LANES
_B: Final = 17 * LANES
_C: Final = 18 * LANES
_D: Final = 19 * LANES
_BLOCK: Final = 64
_LENGTH_BYTES: Final = 8
_WORD: Final = 0xFFFFFFFF

_ADDED: Final = tuple(int(abs(np.sin(step + 1)) * 2**32) for step in range(64))
_BITS: Final = ((7, 12, 17, 22), (5, 9, 14, 20), (4, 11, 16, 23), (6, 10, 15, 21))
_NEXT_WORD: Final = ((1, 0), (5, 1), (3, 5), (7, 0))
"""A round takes word ``(factor * step + first) % 16`` at each step."""


def _take_blocks(work: Words) -> None:
    """Take the block of each lane into its state.

    Compiled, a row of ``work`` is one vector. ``work`` has ``WORK_SIZE`` words.
    """
    rows = np.asarray(work).reshape(20, LANES)
    a, b, c, d = state = rows[16:].copy()
    for step, added in enumerate(_ADDED):
        part = step // 16
        mixed = (d ^ (b & (c ^ d)), c ^ (d & (b ^ c)), b ^ c ^ d, c ^ (b | ~d))[part]
        factor, first = _NEXT_WORD[part]
        total = a + mixed + rows[(factor * step + first) % 16] + np.uint32(added)
        bits = _BITS[part][step % 4]
        a, d, c, b = d, c, b, b + ((total << bits) | (total >> (32 - bits)))
    rows[16:] = state + np.stack((a, b, c, d))


def _compiled_blocks() -> Any:  # noqa: ANN401
    from llvmlite import ir  # noqa: PLC0415
    from numba import types  # noqa: PLC0415
    from numba.extending import intrinsic  # noqa: PLC0415

    vector = ir.VectorType(ir.IntType(32), LANES)

    def all_of(value: int) -> Any:  # noqa: ANN401
        return ir.Constant(vector, [value] * LANES)

    def mix(build: Any, part: int, b: Any, c: Any, d: Any) -> Any:  # noqa: ANN401
        if part == 0:
            return build.xor(d, build.and_(b, build.xor(c, d)))
        if part == 1:
            return build.xor(c, build.and_(d, build.xor(b, c)))
        if part == 2:
            return build.xor(b, build.xor(c, d))
        return build.xor(c, build.or_(b, build.xor(d, all_of(_WORD))))

    def generate(context: Any, build: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        start = context.make_array(signature.args[0])(context, build, arguments[0]).data

        def row(number: int) -> Any:  # noqa: ANN401
            at = build.gep(start, [ir.Constant(ir.IntType(64), number * LANES)])
            return build.bitcast(at, vector.as_pointer())

        words = [build.load(row(number), align=4) for number in range(16)]
        state = a, b, c, d = [build.load(row(number), align=4) for number in range(16, 20)]
        for step, added in enumerate(_ADDED):
            part = step // 16
            factor, first = _NEXT_WORD[part]
            word = build.add(words[(factor * step + first) % 16], all_of(added))
            total = build.add(build.add(a, word), mix(build, part, b, c, d))
            bits = _BITS[part][step % 4]
            left, right = all_of(bits), all_of(32 - bits)
            turned = build.or_(build.shl(total, left), build.lshr(total, right))
            a, d, c, b = d, c, b, build.add(b, turned)
        for number, (old, new) in enumerate(zip(state, (a, b, c, d), strict=True), 16):
            build.store(build.add(old, new), row(number), align=4)
        return context.get_dummy_value()

    @intrinsic
    def take_blocks(_typing: Any, work: Any) -> Any:  # noqa: ANN401
        return types.void(work), generate

    return take_blocks


_take_all: Callable[[Words], None] = compiled_later(_take_blocks, _compiled_blocks)


@inlined
def _begin(row: int, start: int, length: int, lane: int, lanes: Integers, work: Words) -> None:
    lanes[lane, ROW], lanes[lane, START] = row, start
    lanes[lane, LENGTH], lanes[lane, AT] = length, 0
    work[_A + lane], work[_B + lane] = 0x67452301, 0xEFCDAB89
    work[_C + lane], work[_D + lane] = 0x98BADCFE, 0x10325476


@inlined
def _fill(source: Bytes, lane: int, lanes: Integers, work: Words) -> None:
    """Write the next block of a lane's key: its bytes, then 80, zeros, and its length in bits."""
    length = lanes[lane, LENGTH]
    left = length - lanes[lane, AT]
    at = lanes[lane, START] + lanes[lane, AT]
    words = min(max(left, 0), _BLOCK) >> 2
    for word in range(words):
        work[word * LANES + lane] = read_word(source, at)
        at += 4
    for word in range(words, 16):
        work[word * LANES + lane] = 0
    if 0 <= left < _BLOCK:
        last = np.int64(0x80) << (8 * (left & 3))
        for byte in range(left & 3):
            last |= np.int64(source[at + byte]) << (8 * byte)
        work[words * LANES + lane] = last
    if left <= _BLOCK - 1 - _LENGTH_BYTES:
        work[14 * LANES + lane] = (length << 3) & _WORD
        work[15 * LANES + lane] = (length >> 29) & _WORD


@inlined
def _move(lane: int, to: int, lanes: Integers, work: Words) -> None:
    for field in range(LANE_FIELDS):
        lanes[to, field] = lanes[lane, field]
    for word in range(16, 20):
        work[word * LANES + to] = work[word * LANES + lane]


@kernel(
    "int64", "const uint8[]", "const int64[]", "const int64[]", "uint32[]", "int64[,]", "int64[,]"
)
def digest_keys(
    source: Bytes,
    starts: Integers,
    lengths: Integers,
    work: Words,
    lanes: Integers,
    digests: Integers,
) -> int:
    """Write the MD5 of each key into ``digests``; that of a row without a key stays as it is.

    A key is ``source[start : start + length]``; a negative length is none. ``work`` and ``lanes``
    are memory to work in. Gives the number of rows, or ``BROKEN`` for a key outside of its bytes.
    """
    rows = min(starts.shape[0], lengths.shape[0], digests.shape[0])
    if work.shape[0] < WORK_SIZE or lanes.shape[0] < LANES:
        return BROKEN
    row, used = 0, 0
    while True:
        while used < LANES and row < rows:
            length = lengths[row]
            if length >= 0:
                if starts[row] < 0 or length > source.shape[0] - starts[row]:
                    return BROKEN
                _begin(row, starts[row], length, used, lanes, work)
                used += 1
            row += 1
        if used == 0:
            return rows
        for lane in range(used):
            _fill(source, lane, lanes, work)
        _take_all(work)
        # Lanes whose keys have blocks left move to the front.
        unfinished = 0
        for lane in range(used):
            if lanes[lane, LENGTH] - lanes[lane, AT] <= _BLOCK - 1 - _LENGTH_BYTES:
                done = lanes[lane, ROW]
                digests[done, LOW] = np.int64(work[_A + lane]) | np.int64(work[_B + lane]) << 32
                digests[done, HIGH] = np.int64(work[_C + lane]) | np.int64(work[_D + lane]) << 32
            else:
                lanes[lane, AT] += _BLOCK
                _move(lane, unfinished, lanes, work)
                unfinished += 1
        used = unfinished


# ----------------------------------------------------------------------------------------------
# The loops over keys: the open hash table of offsets by MD5.
#
# A slot of the table is 24 bytes: both halves of a key's MD5, and one more than its last offset,
# so that a slot of zeros is empty. A key is looked for at numbers that its hash gives, ten of
# them, and then from the last one on. Kafka probes likewise.

NEXT_OFFSET: Final = 2
SLOT_FIELDS: Final = 3

# What is known of the table, int64[STATE_SIZE].
ENTRIES: Final = 0
LATEST_OFFSET: Final = 1
SEEN: Final = 2  # of no use
STATE_SIZE: Final = 3

MOST_SLOTS: Final = 2**31 - 1
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
