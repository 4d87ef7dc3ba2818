"""What a real 2.8 broker keeps in magic 0 and 1: every record, and every fact of its messages."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.support.corpus import CORPUS, UnpackedCase

from kafkalog.streaming.records.batch import BatchTable, invalid_checksums, scan_batches
from kafkalog.streaming.records.columns import ALL_COLUMNS, Columns, RecordDecoder
from kafkalog.streaming.records.compression import Codec
from kafkalog.streaming.records.message_sets.reader import MessageSetReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kafkalog.streaming.records.arrow_buffers import Bytes

CASE = "p13-v0v1"


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> UnpackedCase:
    return UnpackedCase(CASE, tmp_path_factory.mktemp(CASE))


def scanned_segments(case: UnpackedCase) -> Iterator[tuple[Path, Bytes, BatchTable]]:
    """Scan every segment of the case to its end."""
    for path in sorted(Path(case.path).glob("*/*.log")):
        data = np.fromfile(path, np.uint8)
        scan = scan_batches(data, path=str(path))
        assert (scan.consumed, scan.invalid) == (len(data), None)
        yield path, data, scan.table


@pytest.mark.parametrize("max_rows", [8192, 5])
def test_every_record_is_what_clients_read(case: UnpackedCase, max_rows: int) -> None:
    rows = []
    decoder = RecordDecoder(ALL_COLUMNS | Columns.TIMESTAMP_MS, max_rows=max_rows)
    for path, data, table in scanned_segments(case):
        topic, _, partition = path.parent.name.rpartition("-")
        for batch in decoder.decode(data, table, path=str(path)):
            for row in batch.to_pylist():
                row["timestamp"] = row["timestampMs"]
                rows.append(row | {"topic": topic, "partition": int(partition)})
    assert not case.differences(rows)
    assert len(rows) == 2821


@cache
def dumped() -> dict[tuple[str, int], dict[str, Any]]:
    """Give what Kafka's dump tool says of each message, by file and position."""
    rows = pq.read_table(CORPUS / CASE / "batches.parquet").to_pylist()
    return {(row["file"], row["position"]): row for row in rows}


def test_every_fact_of_a_message_is_what_the_dump_tool_says(case: UnpackedCase) -> None:
    types = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}
    seen = 0
    for path, data, table in scanned_segments(case):
        name = str(path.relative_to(Path(case.path).parent))
        bad = invalid_checksums(data, table)
        for row in range(len(table)):
            magic = int(table.magic[row])
            kind = int(table.is_log_append_time[row]) if magic else -1
            expected = dumped()[name, int(table.position[row])]
            actual = {
                "last_offset": table.last_offset[row],
                "size": table.size[row],
                "magic": magic,
                "codec": Codec(table.codec[row]).name,
                "crc": table.crc[row],
                "valid": not bad[row],
                "ts_type": types[kind],
                "max_timestamp": table.max_timestamp[row],
            }
            assert {field: expected[field] for field in actual} == actual
            seen += 1
    assert seen == len(dumped())


def test_wrappers_follow_each_other_without_holes_where_nothing_was_compacted(
    case: UnpackedCase,
) -> None:
    wrappers = 0
    for path, data, table in scanned_segments(case):
        if path.parent.name.startswith("__"):
            continue
        facts = MessageSetReader().wrapper_facts(data, table, path=str(path))
        assert (facts.base_offset + facts.message_count - 1 <= table.last_offset).all()
        if "-compact-" not in path.parent.name:
            assert (facts.base_offset + facts.message_count - 1 == table.last_offset).all()
            assert (facts.base_offset[1:] == table.last_offset[:-1] + 1).all()
        wrappers += int((table.codec != Codec.NONE).sum())
    assert wrappers == 189
