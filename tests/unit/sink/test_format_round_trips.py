"""Each format with each of its codecs: what a topic's settings make of rows is read again.

By our decoder, and by those of two other clients; with keys and values that are null, empty and
long, headers, holes in and between batches, and values of up to 1 MB.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.client_codecs import AioKafkaRecords, KafkaPythonRecords
from tests.support.legacy_clients import read_with
from tests.support.record_batches import Record, Row, array, columns, decode, table_of

from kafkalog.model import NO_TIMESTAMP, TimestampType
from kafkalog.streaming.commit.staging.formats import BatchFormat
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.records.batch import invalid_checksums
from kafkalog.streaming.records.builder import assign_offsets
from kafkalog.streaming.records.compression import Codec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kafkalog.streaming.records.builder import EncodedBatch

OLD_CODECS: Final = ("none", "gzip", "snappy", "lz4")
MATRIX: Final = (*product(("v0", "v1", "v2"), OLD_CODECS), ("v2", "zstd"))
READABLE: Final = [pair for pair in MATRIX if pair != ("v0", "lz4")]
"""The lz4 frames of magic 0 are beyond the clients here; Kafka's dump tool reads them."""

CLIENTS: Final = ("kafka-python", "aiokafka")
STAMP_MS: Final = 1_700_000_123_456
FIRST: Final = 1000

each_format = pytest.mark.parametrize(
    ("message_format", "codec"), MATRIX, ids=map("-".join, MATRIX)
)
_FEW: Final = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def _bytes(draw: st.DrawFn, *sizes: int) -> bytes:
    """Bytes of one of the sizes or a small one: few drawn ones, repeated, or noise of them."""
    seed = draw(st.binary(min_size=1, max_size=5))
    size = draw(st.one_of(st.integers(0, 9), st.sampled_from(sizes)))
    if draw(st.booleans()):
        return (seed * (size // len(seed) + 1))[:size]
    return np.random.default_rng(list(seed)).bytes(size)


_KEYS = st.none() | _bytes(0, 63, 64, 1000)
_VALUES = st.none() | _bytes(0, 63, 64, 127, 128, 8191, 8192, 70_000)
_LARGE_VALUES = st.none() | _bytes(0, 65_536, 300_000, 999_000)
_HEADERS = st.lists(st.tuples(st.text(max_size=6), st.none() | _bytes(64)), max_size=3).map(tuple)
_TIMESTAMPS = st.integers(0, 2**42) | st.just(NO_TIMESTAMP)


def _rows(values: st.SearchStrategy[bytes | None], max_size: int) -> st.SearchStrategy[list[Row]]:
    rows = st.builds(Row, key=_KEYS, value=values, timestamp=_TIMESTAMPS, headers=_HEADERS)
    return st.lists(rows, min_size=1, max_size=max_size)


_ROWS = _rows(_VALUES, 15)
_LARGE_ROWS = _rows(_LARGE_VALUES, 4)
_GAPS = st.lists(st.sampled_from([0, 0, 0, 1, 7, 2**20]), min_size=15, max_size=15)


def written(
    message_format: str,
    codec: str,
    rows: Sequence[Row],
    offsets: Sequence[int] | None = None,
    *,
    stamped: bool = False,
) -> bytes:
    """Encode rows as a task and a commit together do, at ``offsets`` or from ``FIRST`` on."""
    config = LogConfig(
        message_format=message_format,
        compression_type=codec,
        message_timestamp_type=TimestampType(int(stamped)),
    )
    made = BatchFormat(config)
    builder = made.builder(STAMP_MS)
    bare = [row if made.magic == 2 else row._replace(headers=()) for row in rows]
    encoded = builder.append(columns(bare, offsets), np.arange(len(rows)))
    last = builder.finish()
    batches = [made.staged(batch) for batch in (encoded if last is None else [*encoded, last])]
    return b"".join(batch.data for batch in batches) if offsets else _numbered(made, batches)


def _numbered(made: BatchFormat, batches: Sequence[EncodedBatch]) -> bytes:
    offset, parts = FIRST, []
    for batch in batches:
        final = made.with_offsets(batch, offset) if made.compresses_late else batch
        data = np.frombuffer(bytearray(final.data), np.uint8)
        if not made.compresses_late:
            assign_offsets(data, offset, 0)
        parts.append(data.tobytes())
        offset += batch.count
    return b"".join(parts)


def expected(
    message_format: str,
    rows: Sequence[Row],
    offsets: Sequence[int] | None = None,
    *,
    stamped: bool = False,
) -> list[Record]:
    """Give what must be read of rows."""
    numbers = offsets or range(FIRST, FIRST + len(rows))
    return [
        Record(
            offset,
            NO_TIMESTAMP if message_format == "v0" else STAMP_MS if stamped else row.timestamp,
            -1 if message_format == "v0" else int(stamped),
            row.key,
            row.value,
            (row.headers or None) if message_format == "v2" else None,
        )
        for offset, row in zip(numbers, rows, strict=True)
    ]


def check_made_as_asked(data: bytes, message_format: str, codec: str) -> None:
    table = table_of(array(data))
    assert not invalid_checksums(array(data), table).any()
    assert set(table.magic.tolist()) == {int(message_format[1])}
    assert set(table.codec.tolist()) <= {int(Codec.from_name(codec)), 0}


@each_format
@_FEW
@given(rows=_ROWS, stamped=st.booleans())
def test_rows_come_back_from_each_format(
    message_format: str, codec: str, rows: list[Row], stamped: bool
) -> None:
    data = written(message_format, codec, rows, stamped=stamped)
    check_made_as_asked(data, message_format, codec)
    assert decode(data) == expected(message_format, rows, stamped=stamped)


@each_format
@_FEW
@given(rows=_ROWS, gaps=_GAPS)
def test_holes_in_and_between_batches_come_back_from_each_format(
    message_format: str, codec: str, rows: list[Row], gaps: list[int]
) -> None:
    offsets = (np.arange(len(rows)) + np.cumsum(gaps[: len(rows)])).tolist()
    data = written(message_format, codec, rows, offsets)
    check_made_as_asked(data, message_format, codec)
    assert decode(data) == expected(message_format, rows, offsets)


@each_format
@settings(_FEW, max_examples=3)
@given(rows=_LARGE_ROWS)
def test_values_of_up_to_1_mb_come_back_from_each_format(
    message_format: str, codec: str, rows: list[Row]
) -> None:
    data = written(message_format, codec, rows)
    check_made_as_asked(data, message_format, codec)
    assert decode(data) == expected(message_format, rows)
    if (message_format, codec) in READABLE:
        for client in CLIENTS:
            assert read_by(client, message_format, data) == expected(message_format, rows)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(("message_format", "codec"), READABLE, ids=map("-".join, READABLE))
@settings(_FEW, max_examples=8)
@given(rows=_ROWS, gaps=_GAPS)
def test_other_clients_read_the_same_from_each_format(
    client: str, message_format: str, codec: str, rows: list[Row], gaps: list[int]
) -> None:
    offsets = (np.arange(len(rows)) + np.cumsum(gaps[: len(rows)])).tolist()
    data = written(message_format, codec, rows, offsets)
    assert read_by(client, message_format, data) == expected(message_format, rows, offsets)


def read_by(client: str, message_format: str, data: bytes) -> list[Record]:
    """Read all records with a client's own decoder; it must find the checksums right."""
    if message_format != "v2":
        return [Record(*row, None) for row in read_with(client, data)]
    kinds: dict[str, Any] = {"kafka-python": KafkaPythonRecords, "aiokafka": AioKafkaRecords}
    records = []
    batches = kinds[client](data)
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        records += [
            Record(
                r.offset, r.timestamp, r.timestamp_type, r.key, r.value, tuple(r.headers) or None
            )
            for r in batch
        ]
    return records
