"""The benchmarks work; what they find is another matter. All but one of them run in the night."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_WORKS: Final = "read-batch-value,sink,latest-offset,seek,shape-2"
"""One of each kind: to run them all takes minutes."""

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]


def measured(
    module: str, folder: Path, *words: str, page: str = "benchmarks.md", is_whole: bool = False
) -> str:
    """Run a benchmark; return the page that it writes, or on which it puts its section."""
    if not is_whole:
        (folder / page).write_text("# Benchmarks\n", encoding="utf-8")
    command = [sys.executable, "-m", f"benchmarks.{module}", "--quick", "--docs", str(folder)]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return (folder / page).read_text(encoding="utf-8")


@pytest.mark.nightly
def test_peers_are_measured_in_turns_and_the_page_shows_each_with_its_goal(tmp_path: Path) -> None:
    page = measured("peers", tmp_path, "--only", _WORKS, is_whole=True)
    for line in (
        "| batch read, value only | Kafka source |",
        "|  | kafkalog, its own log |",
        "| at least 0.85 x Python source of ready batches |",
        "|  | kafkalog, flush=os |",
        "| shape: batches of 1 record | Kafka source |",
        "| at most 20 ms |",
        "| at most 3 pages | reached |",
    ):
        assert line in page
    assert (tmp_path / "benchmarks-ratios.png").stat().st_size > 0


@pytest.mark.nightly
def test_growth_is_measured_and_drawn(tmp_path: Path) -> None:
    page = measured("growth", tmp_path, page="growth.md", is_whole=True)
    assert "| partitions, one of them changed | 10: " in page
    assert (tmp_path / "growth.png").stat().st_size > 0


@pytest.mark.nightly
def test_the_memory_of_workers_is_measured_by_shape(tmp_path: Path) -> None:
    page = measured("worker_memory", tmp_path, page="memory.md", is_whole=True)
    (line,) = [line for line in page.splitlines() if "batches of 500 records" in line]
    writing, reading = map(int, line.split("|")[3:5])
    assert 100 < writing <= 512
    assert 100 < reading <= 512


@pytest.mark.nightly
def test_the_newest_rows_are_measured_and_put_on_the_page(tmp_path: Path) -> None:
    page = measured("latest", tmp_path)
    assert "|  | kafkalog, view=latest | " in page
    assert "kafkalog.get, " in page


@pytest.mark.nightly
def test_pipelines_are_measured_beside_the_plain_way_and_put_on_the_page(tmp_path: Path) -> None:
    page = measured("pipelines", tmp_path)
    for name in ("archive", "restore", "mirror"):
        assert f"| {name} | plain {name} | " in page
        assert f"|  | {name} | " in page
    assert "| at least 0.5 x plain mirror | " in page


@pytest.mark.nightly
def test_replicas_are_measured_and_put_on_the_page(tmp_path: Path) -> None:
    page = measured("replicas", tmp_path)
    assert "| a writer is killed amid its commit; another one has committed | " in page
    assert "one replica, three, and the share of the rate | " in page


def test_look_ups_are_measured_and_put_on_the_page(tmp_path: Path) -> None:
    page = measured("look_ups", tmp_path)
    assert "| a key that is not there | " in page
    assert "A tailing query over 10 partitions" in page


@pytest.mark.nightly
def test_answers_in_sql_are_measured_and_put_on_the_page(tmp_path: Path) -> None:
    page = measured("sql", tmp_path, page="sql.md")
    assert "## What it costs" in page
    assert "| count by key | " in page
    assert "| the command, count by key | " in page


@pytest.mark.nightly
def test_programs_without_spark_are_measured_beside_other_clients(tmp_path: Path) -> None:
    page = measured("clients", tmp_path)
    assert "## Without Spark" in page
    assert "| read, batches of 256 KiB | confluent-kafka (librdkafka) | " in page
    assert "|  | kafkalog.append, flush=os | " in page


@pytest.mark.nightly
def test_members_of_a_group_are_measured_and_put_on_the_page(tmp_path: Path) -> None:
    page = measured("groups", tmp_path)
    assert "## Consumer groups" in page
    assert "| it leaves | " in page
    assert "| a member that waits in poll | " in page
