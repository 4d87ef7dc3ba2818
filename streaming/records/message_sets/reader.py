"""Entries of magic 0 and 1 made ready for the kernel that finds records in them.

Source: Kafka ``AbstractLegacyRecordBatch.DeepRecordsIterator``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.records.compression import DEFAULT_LIMIT, Codec
from kafkalog.streaming.records.message_sets import decode_kernels as kernels
from kafkalog.streaming.records.message_sets.layout import Wrapper, open_wrapper

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers
    from kafkalog.streaming.records.batch import BatchTable

__all__ = ["MessageGroup", "MessageSetReader", "WrapperFacts"]


class MessageGroup(NamedTuple):
    """Entries to be read in one go.

    ``sections`` is what ``find_messages`` takes, one for each row of ``table``; they lie in
    ``source`` (uint8[n]).
    """

    table: BatchTable
    source: Bytes
    sections: Integers


class WrapperFacts(NamedTuple):
    """What only decompression tells of entries: int64[n] each, offsets absolute."""

    base_offset: Integers
    message_count: Integers


@dataclass(frozen=True, slots=True)
class MessageSetReader:
    """Opens wrappers. Keeps nothing between calls.

    Wrappers are opened together up to about ``group_bytes`` of what they hold, each at most
    ``max_decompressed_bytes``. ``check_inner_crcs`` has the checksums of the messages inside
    checked too. It is off unless asked for: the wrapper's checksum covers the same bytes.
    """

    group_bytes: int = 1 << 20
    max_decompressed_bytes: int = DEFAULT_LIMIT
    check_inner_crcs: bool = False

    def groups(
        self, data: Bytes, table: BatchTable, *, file_position: int = 0, path: str = ""
    ) -> Iterator[MessageGroup]:
        """Yield all entries in groups, in order.

        Args:
            data: uint8[n] that holds the entries.
            table: whole entries of magic 0 and 1, all of them wrappers or none.
            file_position: where in the file ``data`` starts.
            path: the file, for errors.

        Raises:
            CorruptRecordError: an entry is no valid wrapper; those before it have been given.
            DecompressedTooLargeError: a wrapper holds more than ``max_decompressed_bytes``.
            UnsupportedCodecError: a wrapper's codec is none of magic 0 and 1.
        """
        starts = table.position - file_position
        if not (table.codec != Codec.NONE).any():
            yield MessageGroup(table, data, _plain_sections(starts, table.size))
            return
        first, size = 0, 0
        wrappers: list[Wrapper] = []
        for row in range(len(table)):
            try:
                wrapper = self._open(data, table, row, file_position, path)
            except CorruptRecordError:
                if wrappers:
                    yield _group(table[first:row], wrappers)
                raise
            wrappers.append(wrapper)
            size += len(wrapper.messages)
            if size >= self.group_bytes:
                yield _group(table[first : row + 1], wrappers)
                first, size, wrappers = row + 1, 0, []
        if wrappers:
            yield _group(table[first:], wrappers)

    def wrapper_facts(
        self, data: Bytes, table: BatchTable, *, file_position: int = 0, path: str = ""
    ) -> WrapperFacts:
        """Return each entry's first offset and number of messages; wrappers are decompressed.

        Raises:
            CorruptRecordError: as ``groups``.
        """
        facts = WrapperFacts(table.last_offset.copy(), np.ones(len(table), np.int64))
        for row in np.flatnonzero(table.codec != Codec.NONE).tolist():
            wrapper = self._open(data, table, row, file_position, path)
            facts.base_offset[row] = wrapper.first_offset
            facts.message_count[row] = wrapper.message_count
        return facts

    def _open(
        self, data: Bytes, table: BatchTable, row: int, file_position: int, path: str
    ) -> Wrapper:
        position, size = int(table.position[row]), int(table.size[row])
        start = position - file_position
        try:
            return open_wrapper(
                data.data[start : start + size],
                max_decompressed_bytes=self.max_decompressed_bytes,
                check_inner_crcs=self.check_inner_crcs,
            )
        except CorruptRecordError as error:
            offset = int(table.last_offset[row])
            raise type(error)(
                f"{path or 'the buffer'}: the message at byte {position} (offset {offset}, "
                f"{size} bytes) is damaged: {error}",
                path=path,
                position=position,
                offset=offset,
            ) from error


def _plain_sections(starts: Integers, sizes: Integers) -> Integers:
    sections = np.zeros((len(starts), kernels.SECTION_FIELDS), np.int64)
    sections[:, kernels.START] = starts
    sections[:, kernels.END] = starts + sizes
    sections[:, kernels.KIND] = kernels.PLAIN
    return sections


def _group(table: BatchTable, wrappers: list[Wrapper]) -> MessageGroup:
    ends = np.cumsum([len(wrapper.messages) for wrapper in wrappers], dtype=np.int64)
    sections = np.empty((len(wrappers), kernels.SECTION_FIELDS), np.int64)
    sections[:, kernels.START] = ends - [len(wrapper.messages) for wrapper in wrappers]
    sections[:, kernels.END] = ends
    sections[:, kernels.BASE] = [wrapper.base for wrapper in wrappers]
    sections[:, kernels.STAMP] = table.max_timestamp
    create_or_append_time = kernels.WRAPPED_CREATE_TIME + table.is_log_append_time
    sections[:, kernels.KIND] = np.where(
        table.magic == 0, kernels.WRAPPED_V0, create_or_append_time
    )
    parts = [wrapper.messages for wrapper in wrappers]
    return MessageGroup(table, parts[0] if len(parts) == 1 else np.concatenate(parts), sections)
