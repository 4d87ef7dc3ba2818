"""Whatever rows go in come out again, here and in decoders that others wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.client_codecs import (
    AioKafkaBuilder,
    AioKafkaRecords,
    KafkaPythonBuilder,
    KafkaPythonRecords,
)
from tests.support.record_batches import (
    Record,
    Row,
    array,
    columns,
    decode,
    encode,
    joined,
    table_of,
)

from kafkalog.streaming.records.batch import invalid_checksums
from kafkalog.streaming.records.builder import BatchBuilder, assign_offsets
from kafkalog.streaming.records.compression import Codec

if TYPE_CHECKING:
    from collections.abc import Sequence

_SIZES = st.sampled_from([0, 1, 2, 62, 63, 64, 65, 127, 128, 1000])
_LARGE = st.sampled_from([8191, 8192, 20_000])


@st.composite
def _bytes(draw: st.DrawFn, sizes: st.SearchStrategy[int] = _SIZES) -> bytes:
    """Bytes of all sizes that matter: few drawn bytes, repeated or not."""
    seed = draw(st.binary(min_size=1, max_size=9))
    size = draw(st.one_of(st.integers(0, 9), sizes))
    if draw(st.booleans()):
        return (seed * (size // len(seed) + 1))[:size]
    return np.random.default_rng(list(seed)).bytes(size)


_VALUES = st.one_of(st.none(), _bytes())
_HEADERS = st.lists(st.tuples(st.text(max_size=6), _VALUES), max_size=3).map(tuple)
_TIMESTAMPS = st.one_of(
    st.integers(1_700_000_000_000, 1_700_000_100_000),
    st.sampled_from([-1, 0, 2**62, -(2**62), 2**63 - 1, -(2**63)]),
)
_ROWS = st.lists(
    st.builds(
        Row,
        key=_VALUES,
        value=st.one_of(_VALUES, _bytes(_LARGE)),
        timestamp=_TIMESTAMPS,
        headers=_HEADERS,
    ),
    min_size=1,
    max_size=20,
)
_FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _expected(rows: Sequence[Row], first_offset: int = 0) -> list[Record]:
    return [
        Record(offset, row.timestamp, 0, row.key, row.value, row.headers or None)
        for offset, row in enumerate(rows, first_offset)
    ]


@_FEW
@given(rows=_ROWS, codec=st.sampled_from(Codec), target=st.sampled_from([1, 100, 5_000, 1 << 18]))
def test_rows_come_back_from_every_codec_and_batch_size(
    rows: list[Row], codec: Codec, target: int
) -> None:
    data = joined(encode(rows, codec, target_bytes=target))
    assert assign_offsets(data, 1000, 7) == 1000 + len(rows)
    table = table_of(data)
    assert not invalid_checksums(data, table).any()
    assert set(table.leader_epoch.tolist()) == {7}
    assert sum(table.count.tolist()) == len(rows)
    assert decode(data) == _expected(rows, 1000)


@_FEW
@given(
    rows=_ROWS,
    max_rows=st.integers(1, 9),
    max_bytes=st.sampled_from([1, 100, 10_000]),
    start=st.integers(0, 40),
    end=st.integers(0, 40),
)
def test_any_bounds_of_output_and_offsets_give_the_same_rows(
    rows: list[Row], max_rows: int, max_bytes: int, start: int, end: int
) -> None:
    data = joined(encode(rows, Codec.ZSTD, target_bytes=1000))
    assign_offsets(data, 0, 0)
    settings = {"max_rows": max_rows, "max_batch_bytes": max_bytes}
    found = decode(data, start_offset=start, end_offset=end, **settings)
    assert found == [one for one in _expected(rows) if start <= one.offset < end]


@_FEW
@given(rows=_ROWS, gaps=st.lists(st.integers(0, 2**33), min_size=40, max_size=40))
def test_offsets_that_are_given_are_kept(rows: list[Row], gaps: list[int]) -> None:
    offsets = (np.arange(len(rows)) + np.cumsum(gaps[: len(rows)])).tolist()
    builder = BatchBuilder(Codec.NONE)
    encoded = builder.append(columns(rows, offsets), np.arange(len(rows)))
    last = builder.finish()
    assert last is not None
    found = []
    for batch in [*encoded, last]:
        data = joined([batch])
        end = assign_offsets(data, batch.first_offset, 0)
        found += decode(data)
        assert end == found[-1].offset + 1
    assert found == [
        one._replace(offset=offset) for one, offset in zip(_expected(rows), offsets, strict=True)
    ]


def _with_usual_timestamps(rows: list[Row]) -> list[Row]:
    """Leave out what wraps around 64 bits, which Java and we do, but Python does not."""
    return [row._replace(timestamp=row.timestamp % 2**42) for row in rows]


def _read_by(reader: Any, data: bytes) -> list[Record]:
    records = []
    batches = reader(data)
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        records += [
            Record(
                one.offset,
                one.timestamp,
                one.timestamp_type,
                one.key,
                one.value,
                tuple(one.headers) or None,
            )
            for one in batch
        ]
    return records


@pytest.mark.parametrize("reader", [KafkaPythonRecords, AioKafkaRecords])
@settings(_FEW, max_examples=30)
@given(rows=_ROWS, codec=st.sampled_from(Codec))
def test_decoders_of_others_read_what_we_wrote(reader: Any, rows: list[Row], codec: Codec) -> None:
    rows = _with_usual_timestamps(rows)
    data = joined(encode(rows, codec, target_bytes=5_000))
    assign_offsets(data, 40, 0)
    assert _read_by(reader, data.tobytes()) == _expected(rows, 40)


@pytest.mark.parametrize("writer", [KafkaPythonBuilder, AioKafkaBuilder])
@settings(_FEW, max_examples=30)
@given(rows=_ROWS, codec=st.sampled_from(Codec))
def test_we_read_what_encoders_of_others_wrote(writer: Any, rows: list[Row], codec: Codec) -> None:
    builder = writer(
        magic=2,
        compression_type=int(codec),
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 24,
    )
    rows = _with_usual_timestamps(rows)
    for offset, row in enumerate(rows):
        builder.append(
            offset,
            timestamp=row.timestamp,
            key=row.key,
            value=row.value,
            headers=list(row.headers),
        )
    data = array(bytes(builder.build()))
    assert not invalid_checksums(data, table_of(data)).any()
    assert decode(data) == _expected(rows)
