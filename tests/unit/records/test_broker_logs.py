"""Segments that real brokers wrote, of all magics, hold exactly what their clients read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.support.corpus import CORPUS, UnpackedCase
from tests.support.record_batches import STORED_COLUMNS, Record, records_of

from kafkalog.model import TimestampType
from kafkalog.streaming.records.batch import invalid_checksums, scan_batches
from kafkalog.streaming.records.columns import RecordDecoder

_TYPES = {
    "NoTimestampType": TimestampType.NO_TIMESTAMP_TYPE,
    "CreateTime": TimestampType.CREATE_TIME,
    "LogAppendTime": TimestampType.LOG_APPEND_TIME,
}
_CASES = sorted(path.parent.name for path in CORPUS.glob("*/expected.parquet"))

Records = dict[str, dict[int, Record]]


def _expected(case: str) -> Records:
    found: Records = {}
    for row in pq.read_table(CORPUS / case / "expected.parquet").to_pylist():
        headers = tuple((one["key"], one["value"]) for one in row["headers"] or ())
        found.setdefault(f"{row['topic']}-{row['partition']}", {})[row["offset"]] = Record(
            row["offset"],
            row["timestamp"],
            int(_TYPES[row["ts_type"]]),
            row["key"],
            row["value"],
            headers or None,
        )
    return found


def _actual(case: UnpackedCase) -> Records:
    """Decode every segment of every live partition, from its log start offset on."""
    found: Records = {}
    for start in case.partitions:
        name = f"{start['topic']}-{start['partition']}"
        for log_dir in case.path.split(","):
            for path in sorted((Path(log_dir) / name).glob("*.log")):
                data = np.frombuffer(path.read_bytes(), np.uint8)
                table = scan_batches(data).table
                assert not invalid_checksums(data, table).any()
                decoder = RecordDecoder(STORED_COLUMNS)
                batches = decoder.decode(data, table, start_offset=start["log_start"])
                for record in records_of(batches):
                    found.setdefault(name, {})[record.offset] = record
    return found


@pytest.mark.long
@pytest.mark.parametrize("name", _CASES)
def test_segments_of_a_broker_hold_what_its_clients_read(name: str, tmp_path: Path) -> None:
    case = UnpackedCase(name, tmp_path)
    assert _actual(case) == _expected(name)
