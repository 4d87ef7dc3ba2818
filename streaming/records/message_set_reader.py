"""Message sets of magic 0 and 1 in, columns of positions and numbers out, many records a call.

Source: Kafka ``AbstractLegacyRecordBatch.DeepRecordsIterator``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.records import message_set_kernels as kernels
from kafkalog.streaming.records.compression import DEFAULT_LIMIT, Codec
from kafkalog.streaming.records.message_set import Wrapper, fault, open_wrapper

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers
    from kafkalog.streaming.records.batch import BatchTable

__all__ = ["MessageSetReader", "Messages", "WrapperFacts"]

_MAX_OFFSET: Final = 2**63 - 1


class Messages(NamedTuple):
    """Some records: where they lie in ``data`` (uint8[n]), and their numbers; columns are [m].

    Lengths are -1 for null. ``timestamps`` are in ms, -1 for none; ``types`` are the ids of
    ``TimestampType``. The columns are overwritten when the next ones are asked for.
    """

    data: Bytes
    offsets: Integers
    timestamps: Integers
    types: NDArray[np.int32]
    key_starts: Integers
    key_lengths: Integers
    value_starts: Integers
    value_lengths: Integers


class WrapperFacts(NamedTuple):
    """What only decompression tells of entries: int64[n] each, offsets absolute."""

    base_offset: Integers
    message_count: Integers


@dataclass(frozen=True, slots=True)
class MessageSetReader:
    """Reads the records of message sets. Keeps nothing between calls.

    ``check_inner_crcs`` has the checksums of messages inside of wrappers checked too. It is off
    unless asked for: the wrapper's checksum covers the same bytes.
    """

    max_rows: int = 8192
    max_bytes: int = 1 << 20
    max_decompressed_bytes: int = DEFAULT_LIMIT
    check_inner_crcs: bool = False

    def read(
        self,
        data: Bytes,
        table: BatchTable,
        *,
        file_position: int = 0,
        path: str = "",
        start_offset: int = 0,
        end_offset: int = _MAX_OFFSET,
    ) -> Iterator[Messages]:
        """Find the records with ``start_offset <= offset < end_offset``, in file order.

        They come at most ``max_rows`` at a time with at most ``max_bytes`` of keys and values, one
        record at least. Wrappers are decompressed together up to about ``max_bytes``. Checksums
        of the entries themselves are not checked here.

        Args:
            data: uint8[n] that holds the entries of ``table``.
            table: whole entries, all of magic 0 and 1.
            file_position: where in the file ``data`` starts.
            path: the file, for errors.
            start_offset: the first offset wanted.
            end_offset: the first offset not wanted.

        Raises:
            CorruptRecordError: an entry is no valid message or wrapper. The records of all entries
                before it have been given, and none of a corrupt wrapper.
            DecompressedTooLargeError: a wrapper holds more than ``max_decompressed_bytes``.
            UnsupportedCodecError: a wrapper's codec is none of magic 0 and 1.
        """
        source = _Source(data, file_position, path)
        columns = _Columns(self.max_rows, self.max_bytes, start_offset, end_offset)
        group = _Group(source)
        for unit in _units(table[_overlapping(table, start_offset, end_offset)]):
            if unit.codec[0] == Codec.NONE:
                group.add_messages(unit)
            else:
                try:
                    wrapper = self._open(source, unit)
                except CorruptRecordError:
                    yield from columns.fill(group)
                    raise
                group.add_wrapper(unit, wrapper)
            if group.size >= self.max_bytes:
                yield from columns.fill(group)
                group = _Group(source)
        yield from columns.fill(group)

    def wrapper_facts(
        self, data: Bytes, table: BatchTable, *, file_position: int = 0, path: str = ""
    ) -> WrapperFacts:
        """Give each entry's first offset and its number of messages; wrappers are decompressed.

        Raises:
            CorruptRecordError: as ``read``.
        """
        source = _Source(data, file_position, path)
        facts = WrapperFacts(table.last_offset.copy(), np.ones(len(table), np.int64))
        for row in np.flatnonzero(table.codec != Codec.NONE).tolist():
            wrapper = self._open(source, table[row : row + 1])
            facts.base_offset[row] = wrapper.first_offset
            facts.message_count[row] = wrapper.message_count
        return facts

    def _open(self, source: _Source, entry: BatchTable) -> Wrapper:
        start = source.start(entry)
        try:
            return open_wrapper(
                source.data.data[start : start + int(entry.size[0])],
                max_decompressed_bytes=self.max_decompressed_bytes,
                check_inner_crcs=self.check_inner_crcs,
            )
        except CorruptRecordError as error:
            position, offset = int(entry.position[0]), int(entry.last_offset[0])
            raise source.located(error, position, offset) from error


@dataclass(frozen=True, slots=True)
class _Source:
    """The bytes of a file that entries lie in."""

    data: Bytes
    file_position: int
    path: str

    def start(self, entries: BatchTable) -> int:
        return int(entries.position[0]) - self.file_position

    def located(self, error: CorruptRecordError, position: int, offset: int) -> CorruptRecordError:
        """Make the same error, saying where."""
        where = f"{self.path or 'the buffer'} at byte {position}, offset {offset}"
        return type(error)(f"{where}: {error}", path=self.path, position=position, offset=offset)


@dataclass(slots=True)
class _Group:
    """Entries to be read in one go: plain messages where they are, wrappers decompressed."""

    source: _Source
    size: int = 0
    parts: list[Bytes] = field(default_factory=list)
    sections: list[tuple[int, ...]] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    def add_messages(self, entries: BatchTable) -> None:
        """Add messages that are not compressed and follow each other."""
        start = self.source.start(entries)
        end = int(entries.end_position[-1]) - self.source.file_position
        self._add(self.source.data[start:end], kernels.PLAIN, 0, 0, int(entries.position[0]))

    def add_wrapper(self, entry: BatchTable, wrapper: Wrapper) -> None:
        """Add what a wrapper holds."""
        if entry.magic[0] == 0:
            kind = kernels.WRAPPED_V0
        elif entry.is_log_append_time[0]:
            kind = kernels.WRAPPED_APPEND_TIME
        else:
            kind = kernels.WRAPPED_CREATE_TIME
        timestamp = int(entry.max_timestamp[0])
        self._add(wrapper.messages, kind, wrapper.base, timestamp, int(entry.position[0]))

    def _add(self, part: Bytes, kind: int, base: int, timestamp: int, position: int) -> None:
        self.sections.append((self.size, self.size + len(part), kind, base, timestamp))
        self.positions.append(position)
        self.parts.append(part)
        self.size += len(part)


class _Columns:
    """The columns that records are found into, and which records are wanted."""

    def __init__(self, max_rows: int, max_bytes: int, start_offset: int, end_offset: int) -> None:
        self._range = (start_offset, end_offset, max_bytes)
        self._columns = (
            np.empty(max_rows, np.int64),
            np.empty(max_rows, np.int64),
            np.empty(max_rows, np.int32),
            *np.empty((4, max_rows), np.int64),
        )

    def fill(self, group: _Group) -> Iterator[Messages]:
        if not group.parts:
            return
        data = group.parts[0] if len(group.parts) == 1 else np.concatenate(group.parts)
        sections = np.array(group.sections, np.int64)
        state = np.zeros(kernels.STATE_FIELDS, np.int64)
        code = kernels.FULL
        while code == kernels.FULL:
            code = kernels.index_messages(data, sections, *self._range, state, *self._columns)
            rows = int(state[kernels.STATE_ROWS])
            if rows:
                yield Messages(data, *(column[:rows] for column in self._columns))
        if code != kernels.DONE:
            raise self._fault(group, data, code, state)

    def _fault(self, group: _Group, data: Bytes, code: int, state: Integers) -> CorruptRecordError:
        section, at = int(state[kernels.STATE_SECTION]), int(state[kernels.STATE_POSITION])
        position = group.positions[section] + at - group.sections[section][kernels.SECTION_START]
        offset = int.from_bytes(data[at : at + 8].tobytes(), "big", signed=True)
        return group.source.located(fault(code, "a message"), position, offset)


def _overlapping(table: BatchTable, start_offset: int, end_offset: int) -> NDArray[np.bool_]:
    """Tell which entries may have records in the range, as their last offsets tell."""
    last = table.last_offset
    overlapping = last >= start_offset
    overlapping[1:] &= last[:-1] < end_offset - 1
    return overlapping


def _units(table: BatchTable) -> Iterator[BatchTable]:
    """Cut a table into single wrappers and runs of messages that follow each other."""
    if not len(table):
        return
    wrapper = table.codec != Codec.NONE
    apart = table.position[1:] != table.end_position[:-1]
    bounds = 1 + np.flatnonzero(wrapper[1:] | wrapper[:-1] | apart)
    for start, end in zip([0, *bounds.tolist()], [*bounds.tolist(), len(table)], strict=True):
        yield table[start:end]
