"""Kafka's judges on the appender: the dump tool, and a broker that goes on where it stopped."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import pytest
from tests.support.dump_log import dump_log_segments, partition_files
from tests.support.kafka import Topic, serve
from tests.support.log_files import FLIGHTS, append, cut, make_batches, read_offsets, scan

from kafkalog.streaming.log.partition_log import PartitionLog
from kafkalog.streaming.log.recovery import cut_segment, recover_segment
from kafkalog.streaming.options.topic_settings import LogConfig

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.interop

CONFIGS = {
    "dense": LogConfig(segment_bytes=5000, index_interval_bytes=0),
    "sparse": LogConfig(segment_bytes=9000, index_interval_bytes=1000),
    "default": LogConfig(),
    "small-index": LogConfig(index_interval_bytes=300, segment_index_bytes=128),
    "by-time": LogConfig(segment_ms=300, segment_jitter_ms=200, index_interval_bytes=500),
}


def _data(batches: int, first_offset: int = 0) -> bytes:
    chosen = random.Random(batches)
    times = [1_700_000_000_000 + 10 * slot + chosen.randint(-200, 200) for slot in range(batches)]
    return make_batches(first_offset, [chosen.randint(1, 9) for _ in times], timestamps=times)


def _append_in_pieces(directory: Path, data: bytes, config: LogConfig) -> None:
    _, table = scan(data)
    for start, end in itertools.pairwise([0, *table.end_position.tolist()[::7], len(data)]):
        if start < end:
            append(directory, data[start:end], config)


def test_the_dump_tool_finds_nothing_in_any_way_of_appending(tmp_path: Path) -> None:
    data = _data(120)
    for name, config in CONFIGS.items():
        append(tmp_path / f"{name}-at-once-0", data, config)
        _append_in_pieces(tmp_path / f"{name}-in-pieces-0", data, config)
    rebuilt = tmp_path / "rebuilt-0"
    append(rebuilt, data, CONFIGS["default"])
    recover_segment(rebuilt, 0, index_interval_bytes=700)
    recovered = tmp_path / "recovered-0"
    append(recovered, data, CONFIGS["default"])
    cut(recovered / f"{0:020d}.log", len(data) - 5)
    recover_segment(recovered, 0, index_interval_bytes=4096)
    shortened = tmp_path / "shortened-0"
    append(shortened, data, CONFIGS["default"])
    size = int(scan(data)[1].position[33])
    cut_segment(shortened, 0, size, index_interval_bytes=4096)

    # The tool takes an index without entries for one that is full of zeros.
    files = [path for path in partition_files(tmp_path) if path.stat().st_size]
    assert len(files) > 100
    assert dump_log_segments(files).findings == []


def test_a_broker_goes_on_behind_us_and_we_behind_it(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    config = LogConfig(segment_bytes=9000, index_interval_bytes=1000)
    append(ours / "flights-0", _data(120), config)
    with PartitionLog(ours / "flights-0", FLIGHTS) as log:
        written = log.log_end_offset()
    settings = {"index.interval.bytes": "1000"}
    with serve(tmp_path / "broker", [ours], [Topic("flights", config=settings)]) as broker:
        assert [record.offset for record in broker.consume_all("flights")] == [*range(written)]
        broker.produce("flights", [(b"k", b"v" * 700)] * 50, **{"batch.num.messages": 3})
        broker.stop()
        (data,) = broker.log_dirs
        directory = data / "flights-0"
        with PartitionLog(directory, FLIGHTS) as log:
            end = log.log_end_offset()
            assert end >= written + 50
        append(directory, _data(60, first_offset=end), config)
        with PartitionLog(directory, FLIGHTS) as log:
            final = log.log_end_offset()
            assert read_offsets(log, 0, final, pieces=2) == [*range(final)]
        files = [path for path in partition_files(data) if path.stat().st_size]
        assert dump_log_segments(f for f in files if f.parent == directory).findings == []
        (data / ".kafka_cleanshutdown").unlink()
        broker.start()
        broker.wait_for_leaders(Topic("flights"))
        assert [record.offset for record in broker.consume_all("flights")] == [*range(final)]
        assert [line for line in broker.complaints() if "flights-0" in line] == []
