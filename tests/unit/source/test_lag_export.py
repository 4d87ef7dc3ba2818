from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

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
    return SimpleNamespace(
        progress=SimpleNamespace(id="id-1", name="q", batchId=end, sources=[source])
    )


def test_prometheus_gets_a_line_for_each_partition() -> None:
    assert prometheus_text(LAGS).splitlines() == [
        "# HELP kafkalog_query_batch_id The number of the last micro-batch.",
        "# TYPE kafkalog_query_batch_id gauge",
        'kafkalog_query_batch_id{query="id-1",name="q"} 7',
        r'kafkalog_query_batch_id{query="id-2",name="a \"b\"\n\\"} 0',
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


def test_a_listener_exports_what_runs(tmp_path: Path) -> None:
    file = tmp_path / "lags.prom"
    listener = LagListener(textfile=file)
    for end in (4, 6):
        listener.onQueryProgress(progress(end))
        assert file.read_text() == listener.to_prometheus()
    assert file.read_text().endswith('topic="t",partition="0"} 3\n')
    assert json.loads(listener.to_json())["lag_offsets"] == 3
    event: Any = SimpleNamespace(id="id-1")
    listener.onQueryTerminated(event)
    assert "id-1" not in file.read_text()
    assert listener.to_json() == ""


def test_a_file_that_cannot_be_written_fails_no_query(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    listener = LagListener(textfile=tmp_path / "none" / "lags.prom")
    listener.onQueryProgress(progress(4))
    assert "lags.prom" in caplog.text
