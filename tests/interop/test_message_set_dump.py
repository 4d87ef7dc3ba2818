"""Kafka's dump tool finds nothing wrong with message sets of magic 0 and 1 as we write them."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from tests.support.dump_log import dump_log_segments
from tests.support.message_set_encoding import encode_message_set

from kafkalog.streaming.records.builder import RecordColumns
from kafkalog.streaming.records.compression import Codec

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.interop

ROWS = 500
CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)


def write_segment(
    directory: Path, magic: int, codec: Codec, offsets: list[int] | None = None
) -> Path:
    """Write one segment that starts at offset 1000 and has several wrappers."""
    rows = range(ROWS)
    records = RecordColumns.from_arrow(
        timestamps=np.array([1_700_000_000_000 + row * 7 % 50 for row in rows], np.int64),
        key=pa.array([None if row % 3 == 0 else b"key %d" % row for row in rows], pa.binary()),
        value=pa.array([None if row % 7 == 0 else b"v" * row for row in rows], pa.binary()),
        offsets=None if offsets is None else np.array(offsets, np.int64),
    )
    path = directory / f"v{magic}-{codec.name.lower()}-0" / f"{1000:020}.log"
    path.parent.mkdir()
    target = 32 * 1024
    data = encode_message_set(records, np.arange(ROWS), magic, codec, 1000, target_bytes=target)
    path.write_bytes(data)
    return path


def test_the_dump_tool_finds_nothing_wrong_in_any_message(tmp_path: Path) -> None:
    segments = {
        write_segment(tmp_path, magic, codec): (magic, codec)
        for magic, codec in product((0, 1), CODECS)
    }
    report = dump_log_segments(segments)
    assert not report.findings
    for path, (magic, codec) in segments.items():
        printed = report.batches[path]
        kinds = {(line["magic"], line["compresscodec"]) for line in printed}
        assert kinds == {(str(magic), codec.name.lower())}
        assert int(printed[-1]["offset"]) == 1000 + ROWS - 1
        assert (len(printed) == ROWS) == (codec is Codec.NONE)


def test_the_dump_tool_sees_a_hole_inside_of_a_wrapper(tmp_path: Path) -> None:
    path = write_segment(tmp_path, 1, Codec.GZIP, offsets=[*range(1000, 1100), *range(1101, 1501)])
    assert any("Non-consecutive" in line for line in dump_log_segments([path]).findings)
