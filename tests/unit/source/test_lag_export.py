from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import kafkalog
from kafkalog.files.system import system
from kafkalog.model import TopicPartition
from kafkalog.streaming.spark.listeners import LagListener, QueryLag, json_lines, prometheus_text

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

LAGS = [
    QueryLag("id-1", "q", 7, [{TopicPartition("t", 10): 0, TopicPartition("t", 2): 5}]),
    QueryLag("id-2", 'a "b"\n\\', 0, [{}, {TopicPartition("u", 0): 1}]),
]


def progress(end: int) -> Any:
    source = {"endOffset": json.dumps({"t": {"0": end}}), "latestOffset": '{"t": {"0": 9}}'}
    known = {"id": "id-1", "name": "q", "batchId": end, "numInputRows": 2, "sources": [source]}
    return SimpleNamespace(progress=SimpleNamespace(**known, durationMs={"addBatch": 250}))


def test_prometheus_gets_a_line_for_each_partition() -> None:
    assert prometheus_text(LAGS).splitlines() == [
        "# HELP kafkalog_query_batch_id The number of the last micro-batch.",
        "# TYPE kafkalog_query_batch_id gauge",
        'kafkalog_query_batch_id{query="id-1",name="q"} 7',
        r'kafkalog_query_batch_id{query="id-2",name="a \"b\"\n\\"} 0',
        "# HELP kafkalog_query_running 1 while the query runs, 0 once it has ended.",
        "# TYPE kafkalog_query_running gauge",
        'kafkalog_query_running{query="id-1",name="q"} 1',
        r'kafkalog_query_running{query="id-2",name="a \"b\"\n\\"} 1',
        "# HELP kafkalog_query_failures_total How often the query has ended by an error.",
        "# TYPE kafkalog_query_failures_total counter",
        'kafkalog_query_failures_total{query="id-1",name="q"} 0',
        r'kafkalog_query_failures_total{query="id-2",name="a \"b\"\n\\"} 0',
        (
            "# HELP kafkalog_query_retries_total How often the query was started again after an "
            "error, and tried its micro-batch again."
        ),
        "# TYPE kafkalog_query_retries_total counter",
        'kafkalog_query_retries_total{query="id-1",name="q"} 0',
        r'kafkalog_query_retries_total{query="id-2",name="a \"b\"\n\\"} 0',
        (
            "# HELP kafkalog_query_lag_offsets Offsets that are committed and were not read at "
            "the end of the last micro-batch."
        ),
        "# TYPE kafkalog_query_lag_offsets gauge",
        'kafkalog_query_lag_offsets{query="id-1",name="q",source="0",topic="t",partition="2"} 5',
        'kafkalog_query_lag_offsets{query="id-1",name="q",source="0",topic="t",partition="10"} 0',
        (
            r'kafkalog_query_lag_offsets{query="id-2",name="a \"b\"\n\\",source="1",topic="u",'
            'partition="0"} 1'
        ),
    ]


def test_json_has_the_same() -> None:
    rows = [json.loads(line) for line in json_lines(LAGS).splitlines()]
    assert [(row["query"], row["partition"], row["lag_offsets"]) for row in rows] == [
        ("id-1", 2, 5),
        ("id-1", 10, 0),
        ("id-2", 0, 1),
    ]
    assert rows[0] == {
        "query": "id-1",
        "name": "q",
        "source": 0,
        "topic": "t",
        "partition": 2,
        "batch_id": 7,
        "lag_offsets": 5,
    }


def test_a_listener_exports_what_runs_and_keeps_it_when_that_ends(tmp_path: Path) -> None:
    file = tmp_path / "lags.prom"
    listener = LagListener(textfile=file)
    for end in (4, 6):
        listener.onQueryProgress(progress(end))
        assert file.read_text() == listener.to_prometheus()
    assert file.read_text().endswith('topic="t",partition="0"} 3\n')
    assert json.loads(listener.to_json())["lag_offsets"] == 3
    assert 'kafkalog_query_running{query="id-1",name="q"} 1' in file.read_text()
    for failures, exception in enumerate((None, "lost")):
        event: Any = SimpleNamespace(id="id-1", exception=exception)
        listener.onQueryTerminated(event)
        for line in (
            'kafkalog_query_running{query="id-1",name="q"} 0',
            f'kafkalog_query_failures_total{{query="id-1",name="q"}} {failures}',
            'kafkalog_query_batch_rows{query="id-1",name="q"} 2',
            'kafkalog_query_step_seconds{query="id-1",name="q",step="addBatch"} 0.25',
        ):
            assert line in file.read_text().splitlines()
    assert json.loads(listener.to_json())["lag_offsets"] == 3
    listener.onQueryProgress(progress(7))
    assert 'kafkalog_query_failures_total{query="id-1",name="q"} 1' in listener.to_prometheus()


def test_a_start_after_an_error_is_a_retry_and_another_one_is_not() -> None:
    listener = LagListener()
    started: Any = SimpleNamespace(id="id-1", name="q")
    for end, (exception, retries) in enumerate([("lost", 1), ("lost", 2), (None, 2)], 1):
        listener.onQueryStarted(started)
        listener.onQueryProgress(progress(end))
        listener.onQueryTerminated(SimpleNamespace(id="id-1", exception=exception))  # type: ignore[arg-type]
        listener.onQueryStarted(started)
        said = f'kafkalog_query_retries_total{{query="id-1",name="q"}} {retries}'
        assert said in listener.to_prometheus().splitlines()


def test_a_query_that_nobody_has_followed_may_end() -> None:
    listener, event = LagListener(), SimpleNamespace(id="other", exception=None)
    listener.onQueryTerminated(event)  # type: ignore[arg-type]
    assert listener.to_prometheus() == ""


def test_with_the_path_of_the_log_lag_is_known_in_bytes_and_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, stamp = tmp_path / "log", 1_700_000_000_000
    monkeypatch.setattr(system, "time_ns", lambda: (stamp + 60_000) * 1_000_000)
    for number in range(9):
        rows = {"value": ["x" * 100], "timestamp": pa.array([stamp + number], pa.timestamp("ms"))}
        kafkalog.append(log, "t", pa.table(rows), options={"index.interval.bytes": "1"})
    size = (log / "t-0" / "00000000000000000000.log").stat().st_size
    listener = LagListener(path=str(log))
    listener.onQueryProgress(progress(6))
    labels = 'query="id-1",name="q",source="0",topic="t",partition="0"'
    lines = listener.to_prometheus().splitlines()
    assert f'kafkalog_query_batch_bytes{{query="id-1",name="q"}} {size * 6 // 9}' in lines
    assert f"kafkalog_query_lag_bytes{{{labels}}} {size * 3 // 9}" in lines
    assert f"kafkalog_query_lag_seconds{{{labels}}} 59.994" in lines


def test_a_log_that_cannot_be_read_fails_no_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    listener = LagListener(path=str(tmp_path / "none"))
    listener.onQueryProgress(progress(6))
    assert "the lag in bytes is not known" in caplog.text
    assert "kafkalog_query_lag_offsets" in listener.to_prometheus()


def test_a_file_that_cannot_be_written_fails_no_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    listener = LagListener(textfile=tmp_path / "none" / "lags.prom")
    listener.onQueryProgress(progress(4))
    assert "lags.prom" in caplog.text
