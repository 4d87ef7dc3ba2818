"""Decode the records of ``__consumer_offsets`` and ``__transaction_state`` into plain values.

Works on one record at a time, in Python: these topics are compacted and small beside the data they
speak of, and their records have too many shapes for a kernel.

Source: ``GroupCoordinatorRecordSerde``, ``TransactionLog`` and ``ConsumerProtocol`` of Kafka 4.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.errors import CorruptRecordError
from kafkalog.streaming.coordinator.schemas import (
    CONSUMER_ASSIGNMENT,
    CONSUMER_SUBSCRIPTION,
    RecordType,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkalog.streaming.coordinator.message_schema import Fields, Schema

__all__ = [
    "CONSUMER_PROTOCOL_TYPE",
    "DecodedKey",
    "DecodedValue",
    "decode_assignment",
    "decode_key",
    "decode_subscription",
    "decode_value",
    "value_version",
]

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
"""The protocol type of classic groups whose members' bytes are subscriptions and assignments."""

_PREFIX_BYTES: Final = 2


class DecodedKey(NamedTuple):
    """A record's key: its int16, what that stands for (None if not known) and its fields."""

    version: int
    record_type: RecordType | None
    fields: Fields


class DecodedValue(NamedTuple):
    """A record's value: its version and its fields."""

    version: int
    fields: Fields


def decode_key(record_types: Mapping[int, RecordType], data: bytes | None) -> DecodedKey:
    """Decode a record's key.

    A type that is not in ``record_types`` is no error: brokers ignore what newer ones wrote.

    Raises:
        CorruptRecordError: no key, or one that ends early; the message says where.
    """
    if data is None:
        raise CorruptRecordError("the record has no key")
    version = _leading_int16(data, "key")
    record_type = record_types.get(version)
    if record_type is None:
        return DecodedKey(version, None, {})
    return DecodedKey(version, record_type, _decode(record_type.key, data, version=0, part="key"))


def decode_value(schema: Schema, data: bytes) -> DecodedValue:
    """Decode a value, which is not a tombstone, of a record whose key's type has this schema.

    Raises:
        UnsupportedFormatError: a version that is not known.
        CorruptRecordError: the bytes are not of the version they name; the message says where.
    """
    version = value_version(data)
    return DecodedValue(version, _decode(schema, data, version=version, part="value"))


def value_version(data: bytes) -> int:
    """Return the version that a value, which is not a tombstone, names.

    Raises:
        CorruptRecordError: it is shorter than that.
    """
    return _leading_int16(data, "value")


def decode_subscription(data: bytes) -> Fields:
    """Decode what a member of a classic consumer group subscribed to, with its ``version``.

    Raises:
        CorruptRecordError: the bytes are no subscription.
    """
    return _decode_consumer_protocol(CONSUMER_SUBSCRIPTION, data, "subscription")


def decode_assignment(data: bytes) -> Fields:
    """Decode what a member of a classic consumer group was assigned, with its ``version``.

    Raises:
        CorruptRecordError: the bytes are no assignment.
    """
    return _decode_consumer_protocol(CONSUMER_ASSIGNMENT, data, "assignment")


def _decode_consumer_protocol(schema: Schema, data: bytes, part: str) -> Fields:
    version = _leading_int16(data, part)
    # A newer client only adds fields at the end, so that its bytes can be read as the last version.
    fields = _decode(schema, data, version=min(version, schema.last_version), part=part)
    return {"version": version, **fields}


def _decode(schema: Schema, data: bytes, *, version: int, part: str) -> Fields:
    try:
        return schema.decode(data[_PREFIX_BYTES:], version)
    except CorruptRecordError as error:
        raise type(error)(f"{part}: {error}") from error


def _leading_int16(data: bytes, part: str) -> int:
    if len(data) < _PREFIX_BYTES:
        raise CorruptRecordError(f"{part}: {len(data)} bytes, too few for its leading int16")
    return int.from_bytes(data[:_PREFIX_BYTES], "big", signed=True)
