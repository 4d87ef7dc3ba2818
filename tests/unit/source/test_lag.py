from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.logs import Row, batch_bytes, write_checkpoint, write_segment

from kafkalog.model import TopicPartition
from kafkalog.streaming.spark.listeners import lag, offsets_behind_latest, partition_lags

if TYPE_CHECKING:
    from pathlib import Path

T0, T1, T2 = (TopicPartition("t", partition) for partition in range(3))


def test_lags_are_what_is_there_beyond_what_was_read() -> None:
    source = {
        "endOffset": '{"t": {"0": 4, "1": 9}}',
        "latestOffset": '{"t": {"0": 10, "1": 9, "2": 3}}',
    }
    assert partition_lags(source) == {T0: 6, T1: 0, T2: 3}
    assert offsets_behind_latest(source) == {
        "minOffsetsBehindLatest": "0",
        "maxOffsetsBehindLatest": "6",
        "avgOffsetsBehindLatest": "3.0",
    }


def test_a_progress_that_does_not_say_gives_no_numbers() -> None:
    for source in ({}, {"endOffset": None, "latestOffset": None}, {"endOffset": '{"t":{"0":1}}'}):
        assert partition_lags(source) == {}
        assert offsets_behind_latest(source) == {}


def test_the_progress_of_another_source_gives_no_numbers() -> None:
    for offset in ("5", '{"logOffset": 7}', '{"t": {"0": "x"}}', "text", '{"t": {"x": 1}}'):
        assert partition_lags({"endOffset": offset, "latestOffset": offset}) == {}


def test_the_lag_of_given_offsets_is_counted_in_the_directories(tmp_path: Path) -> None:
    for partition in range(3):
        write_segment(tmp_path / f"t-{partition}", 0, batch_bytes(0, [Row()] * 10))
    write_segment(tmp_path / "u-0", 0, batch_bytes(0, [Row()] * 10))
    write_checkpoint(tmp_path, "log-start-offset-checkpoint", {"t-2": 4})
    read = '{"t": {"0": 4, "1": 12, "9": 1}}'
    assert lag(str(tmp_path), read) == {T0: 6, T1: 0, T2: 6}
    assert lag(str(tmp_path), {}) == {}
