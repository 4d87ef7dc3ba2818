"""``kafkalog lag --output prometheus`` and ``serve-metrics``: what they export of a log."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import yaml
from tests.support.prometheus import prometheus, prometheus_program
from typer.testing import CliRunner

import kafkalog
from kafkalog.files.system import system
from kafkalog.jobs.cli.app import app
from kafkalog.jobs.inspection.lag import LagTargets
from kafkalog.jobs.inspection.metrics import LogMetrics, describe_disks, serve
from kafkalog.model import TopicPartition
from kafkalog.streaming.spark.listeners import QueryLag, Unread, prometheus_text
from kafkalog.texts import metrics_text

if TYPE_CHECKING:
    from collections.abc import Iterator

DEPLOY = Path(__file__).parents[3] / "docs" / "deploy"
STAMP = 1_700_000_000_000
NOW_S = STAMP / 1000 + 3600
DAY = 86400


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "log"
    for number in range(3):
        stamps = pa.array([STAMP + number * 1000] * 2, pa.timestamp("ms"))
        rows = pa.table({"value": ["a", "b"], "timestamp": stamps})
        kafkalog.append(folder, "t", rows, transactional_id="w", version=number)
    monkeypatch.setattr(system, "time_ns", lambda: int(NOW_S * 1e9))
    return folder


def values(text: str) -> dict[str, float]:
    """Give the samples of a page by their names and labels."""
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def ran(*words: str) -> str:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_lag_prints_all_metrics_of_a_log(log: Path) -> None:
    text = ran("lag", str(log), "--offsets", '{"t":{"0":2}}', "--output", "prometheus")
    found = values(text)
    place = 'topic="t",partition="0"'
    assert found[f'kafkalog_lag_records{{reader="offsets",{place}}}'] == 4
    assert found[f'kafkalog_lag_seconds{{reader="offsets",{place}}}'] == 3599
    assert found[f'kafkalog_lag_bytes{{reader="offsets",{place}}}'] > 0
    assert found[f'kafkalog_reader_lost{{reader="offsets",{place}}}'] == 0
    assert found[f"kafkalog_partition_start_offset{{{place}}}"] == 0
    assert found[f"kafkalog_partition_end_offset{{{place}}}"] == 6
    assert found[f"kafkalog_partition_oldest_age_seconds{{{place}}}"] == 3600
    assert found[f"kafkalog_partition_newest_age_seconds{{{place}}}"] == 3598
    assert found['kafkalog_writer_batch{writer="w",topic="t"}'] == 2
    assert found["kafkalog_commits_total"] == 3
    assert found["kafkalog_commit_unfinished"] == 0
    assert found[f'kafkalog_disk_free_bytes{{path="{log}"}}'] > 0


def test_the_form_has_two_names_and_belongs_to_lag_alone(log: Path) -> None:
    named = ran("lag", str(log), "-f", "prometheus"), ran("lag", str(log), "--format=prometheus")
    assert all("kafkalog_partition_bytes" in text for text in named)
    refused = CliRunner().invoke(app, ["topic", "list", str(log), "--output", "prometheus"])
    assert refused.exit_code == 2
    assert "'kafkalog lag' alone" in refused.output
    both = CliRunner().invoke(app, ["lag", str(log), "--json", "-f", "prometheus"])
    assert (both.exit_code, "not both" in both.output) == (2, True)
    assert json.loads(ran("lag", str(log), "--offsets", '{"t":{"0":2}}', "-f", "json"))["lag"] == 4


def test_a_reader_beyond_the_end_is_lost(log: Path) -> None:
    found = values(ran("lag", str(log), "--offsets", '{"t":{"0":9}}', "--output", "prometheus"))
    labels = 'reader="offsets",topic="t",partition="0"'
    assert found[f"kafkalog_reader_lost{{{labels}}}"] == 1
    assert f"kafkalog_lag_records{{{labels}}}" not in found


def test_a_log_that_no_group_reads_has_metrics_too(log: Path) -> None:
    found = values(metrics_text(LogMetrics([str(log)], LagTargets()).collect()))
    assert not [name for name in found if name.startswith("kafkalog_lag")]
    assert 'kafkalog_partition_bytes{topic="t",partition="0"}' in found


def test_a_page_is_served_as_of_each_request(log: Path) -> None:
    server, thread = serve(
        LogMetrics([str(log)], LagTargets(offsets='{"t":{"0":2}}')), "127.0.0.1", 0
    )
    try:
        pages = []
        for _ in range(2):
            url = f"http://127.0.0.1:{server.server_port}/metrics"
            with urllib.request.urlopen(url, timeout=120) as answer:
                pages.append(values(answer.read().decode()))
            kafkalog.append(log, "t", pa.table({"value": ["c"]}))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    ends = [page['kafkalog_partition_end_offset{partition="0",topic="t"}'] for page in pages]
    assert ends == [6, 7]
    assert [page["kafkalog_commits_total"] for page in pages] == [3, 4]


@pytest.mark.parametrize("command", ["serve-metrics", "lag"])
def test_a_checkpoint_that_can_never_be_read_ends_the_command(log: Path, command: str) -> None:
    words = [command, str(log), "--checkpoint", "s3://bucket/checkpoint"]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 2
    assert "is not one folder of this machine" in " ".join(refused.output.split())


def test_without_the_library_the_command_that_is_named_prints_the_same(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    refused = CliRunner().invoke(app, ["serve-metrics", str(log)])
    assert refused.exit_code == 2
    assert "pip install prometheus-client" in refused.output
    (command,) = re.findall("`kafkalog (.+?)`", refused.output.replace("\n", " "))
    found = values(ran(*command.replace("LOG", str(log)).split()))
    assert 'kafkalog_partition_bytes{topic="t",partition="0"}' in found


def test_days_until_full_are_those_of_what_was_written_in_a_week(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "time_ns", lambda: int(NOW_S * 1e9))
    room = os.statvfs_result((4096, 4096, 1000, 700, 700, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: room)
    folder = tmp_path / "t-0"
    folder.mkdir()
    ages = {"partition.metadata": 9, "0.log": 8, "1.log": 6, "2.log": 0}
    for name, days in ages.items():
        (folder / name).write_bytes(b"x" * 7000)
        os.utime(folder / name, (NOW_S - days * DAY,) * 2)
    row: dict[str, Any] = {"path": str(folder), "start": 0, "retention": "keeps everything"}
    (found,) = describe_disks([row])
    # half of the second segment, and the third
    assert found["bytesPerDay"] == 10500 // 7
    assert found["daysUntilFull"] == round(700 * 4096 / 1500, 1)
    (steady,) = describe_disks([{**row, "start": 5, "retention": "by retention.ms"}])
    assert (steady["bytesPerDay"], steady["daysUntilFull"]) == (None, None)
    os.utime(folder / "partition.metadata", (NOW_S - 60,) * 2)
    (young,) = describe_disks([row])
    assert (young["bytesPerDay"], young["daysUntilFull"]) == (None, None)


def test_a_disk_that_is_gone_has_no_row(tmp_path: Path) -> None:
    row = {"path": str(tmp_path / "none" / "t-0"), "start": 0, "retention": None}
    assert describe_disks([row]) == []


# ----------------------------------------------------------------------------------------------
# The dashboard and the alert rules ask for what is exported.


def exported(log: Path) -> set[str]:
    """Name the metrics that a log and a query can have."""
    key = TopicPartition("t", 0)
    named = LagTargets(offsets='{"t":{"0":2}}')
    known = {each.name for each in LogMetrics([str(log)], named).collect()}
    lag = QueryLag("i", "n", 1, [{key: 1}], 1, 1, {"addBatch": 1.0}, {key: Unread(1, 1)})
    return known | set(re.findall(r"^# TYPE (\w+)", prometheus_text([lag]), re.MULTILINE))


def queries() -> Iterator[str]:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        assert {"alert", "expr", "labels", "annotations"} <= rule.keys() <= {*rule, "for"}
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"].keys() == {"summary", "action"}
        yield rule["expr"]
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    assert len({each["id"] for each in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in dashboard["panels"]:
        (target,) = panel["targets"]
        yield target["expr"]


def test_dashboard_and_alerts_ask_for_metrics_that_there_are(log: Path) -> None:
    asked = {name for each in queries() for name in re.findall(r"kafkalog_\w+", each)}
    assert len(asked) >= 15
    assert asked - exported(log) == set()


@pytest.mark.nightly
def test_promtool_finds_no_fault_in_the_rules_and_in_what_is_exported(log: Path) -> None:
    promtool = prometheus_program("promtool")
    for words, given in (
        (["check", "rules", str(DEPLOY / "alerts.yaml")], ""),
        (["check", "metrics"], ran("lag", str(log), "-f", "prometheus")),
    ):
        checked = subprocess.run(
            [promtool, *words], input=given, capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.nightly
def test_a_prometheus_answers_each_query_over_what_a_log_and_a_query_export(
    log: Path, tmp_path: Path
) -> None:
    key = TopicPartition("t", 0)
    lag = QueryLag("i", "n", 1, [{key: 1}], 1, 1, {"addBatch": 1.0}, {key: Unread(1, 1)})
    page = prometheus_text([lag]).encode()

    class OfQuery(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    of_query = ThreadingHTTPServer(("127.0.0.1", 0), OfQuery)
    Thread(target=of_query.serve_forever, daemon=True).start()
    of_log, _ = serve(LogMetrics([str(log)], LagTargets(offsets='{"t":{"0":2}}')), "127.0.0.1", 0)
    targets = [f"127.0.0.1:{each.server_port}" for each in (of_query, of_log)]
    try:
        with prometheus(tmp_path, targets, DEPLOY / "alerts.yaml") as asked:
            names = {name for each in queries() for name in re.findall(r"kafkalog_\w+", each)}
            there = {name for name in names if asked.ask(name)}
            for each in queries():
                asked.ask(each)
            assert len(there) >= 15, names - there
    finally:
        for server in (of_query, of_log):
            server.shutdown()
            server.server_close()
