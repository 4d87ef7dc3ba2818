"""Control records: what a broker writes between the records of users to end their transactions.

A control batch (attributes bit 5) holds one record, which takes up an offset and is no row. Its key
says what it is, and its value who wrote it, big-endian:

====  ====  =================  ============================================================
byte  size  field of the key   meaning
====  ====  =================  ============================================================
0     2     version            0; later ones may be longer
2     2     type               0 ABORT, 1 COMMIT; 2 to 6 occur in KRaft's own log only
====  ====  =================  ============================================================

====  ====  =================  ============================================================
byte  size  field of the value meaning (types 0 and 1)
====  ====  =================  ============================================================
0     2     version            0; later ones may be longer
2     4     coordinatorEpoch   of the transaction coordinator that ended the transaction
====  ====  =================  ============================================================

Which transaction is ended says the batch: the open one of its producer id. The cleaner may leave a
control batch without its record, when nothing of the transaction is left; it ends nothing.

Source: Kafka ``ControlRecordType``, ``EndTransactionMarker``, ``ProducerAppendInfo``.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from kafkalog.errors import CorruptRecordError
from kafkalog.model import NO_PRODUCER_ID, NO_SEQUENCE
from kafkalog.streaming.records.batch import BatchTable
from kafkalog.streaming.records.batch_layout import CONTROL_MASK, TRANSACTIONAL_MASK, seal_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.records.arrow_buffers import Bytes, Integers
    from kafkalog.streaming.records.columns import RecordDecoder

__all__ = [
    "NO_MARKER",
    "MarkerReader",
    "MarkerType",
    "as_data_batches",
    "coordinator_epoch",
    "end_transaction_marker",
    "marker_type",
]

_KEY_BYTES: Final = 4
_VALUE_BYTES: Final = 6

_MARKER: Final = struct.Struct(">5xhhxhix")
"""The record: lengths and deltas as varints, which are bytes here; key and value as above."""

NO_MARKER: Final = -1
"""The type of a batch that ends no transaction."""


class MarkerType(IntEnum):
    """How a transaction ended: the type of its control record."""

    ABORT = 0
    COMMIT = 1


def marker_type(key: bytes | None) -> int:
    """Return the type in a control record's key: a :class:`MarkerType`, or a number beyond them.

    Raises:
        CorruptRecordError: the key is too short to tell; the caller knows where it stands.
    """
    if key is None or len(key) < _KEY_BYTES:
        raise CorruptRecordError("a control record whose key tells no type")
    return int.from_bytes(key[2:_KEY_BYTES], "big")


def coordinator_epoch(value: bytes | None) -> int:
    """Return the epoch of the coordinator in a marker's value; -1 if the value is too short."""
    if value is None or len(value) < _VALUE_BYTES:
        return -1
    return int.from_bytes(value[2:_VALUE_BYTES], "big", signed=True)


def end_transaction_marker(
    kind: MarkerType,
    offset: int,
    *,
    leader_epoch: int,
    timestamp_ms: int,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
) -> bytes:
    """Encode the control batch that ends a producer's transaction."""
    record = bytearray(_MARKER.pack(0, kind, 0, coordinator_epoch))
    record[0] = 2 * (len(record) - 1)
    record[4], record[9] = 2 * _KEY_BYTES, 2 * _VALUE_BYTES
    return seal_batch(
        [record],
        base_offset=offset,
        leader_epoch=leader_epoch,
        attributes=TRANSACTIONAL_MASK | CONTROL_MASK,
        last_offset_delta=0,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        count=1,
    )


def as_data_batches(table: BatchTable) -> BatchTable:
    """Return a copy of a table by which a decoder decodes control records like any others."""
    plain = BatchTable(table.facts.copy())
    np.bitwise_and(plain.attributes, ~CONTROL_MASK, out=plain.attributes)
    return plain


class MarkerReader:
    """Reads the markers among batches. Not shared between threads."""

    def __init__(self) -> None:
        self._decoder: RecordDecoder | None = None

    def types(self, data: Bytes, table: BatchTable, *, file_position: int, path: str) -> Integers:
        """Return which batches end a transaction, and how.

        Args:
            data: uint8[n], in which the batches lie.
            table: m batches of ``data``.
            file_position: where in the file ``data`` starts.
            path: the file, for messages.

        Returns:
            int64[m]: a type for each control batch of a producer that holds a record, ``NO_MARKER``
            for all other batches.

        Raises:
            CorruptRecordError: a control batch that cannot be decoded, with its place.
        """
        types = np.full(len(table), NO_MARKER, np.int64)
        rows = np.flatnonzero(
            table.is_control & (table.count > 0) & (table.producer_id != NO_PRODUCER_ID)
        )
        if len(rows):
            markers = table[rows]
            # The first record counts, as for Kafka: later ones are written over here.
            for offset, key in reversed(list(self._records(data, markers, file_position, path))):
                slot = int(np.searchsorted(markers.last_offset, offset))
                if slot < len(rows):  # else the record claims an offset beyond its batch
                    types[rows[slot]] = self._type_of(key, markers, slot, path)
        return types

    def _records(
        self, data: Bytes, markers: BatchTable, file_position: int, path: str
    ) -> Iterator[tuple[int, bytes | None]]:
        if self._decoder is None:
            # not at import: many logs have no transactions
            from kafkalog.streaming.records.columns import Columns, RecordDecoder  # noqa: PLC0415

            self._decoder = RecordDecoder(Columns.KEY | Columns.OFFSET, max_rows=1024)
        for batch in self._decoder.decode(
            data, as_data_batches(markers), file_position=file_position, path=path
        ):
            keys, offsets = (batch.column(name).to_pylist() for name in ("key", "offset"))
            yield from zip(offsets, keys, strict=True)

    @staticmethod
    def _type_of(key: bytes | None, markers: BatchTable, slot: int, path: str) -> int:
        try:
            return marker_type(key)
        except CorruptRecordError as error:
            position, offset = int(markers.position[slot]), int(markers.base_offset[slot])
            raise CorruptRecordError(
                f"{path}: the batch at position {position}, offset {offset}: {error}",
                path=path,
                position=position,
                offset=offset,
            ) from error
