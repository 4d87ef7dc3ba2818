"""The pipelines under spark-submit, with nothing installed but what ``--py-files`` brings."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq
import pytest
from tests.support.compacting import latest, read, updates, writer
from tests.support.distributions import ROOT, build, environment_without_kafkalog
from tests.support.foreign import read_partition

from kafkalog.jobs.process.jars import JarError, delta_jars, fetch
from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.spark

ROWS: Final = 500
SETTINGS: Final = (
    "--master=local[2]",
    "--driver-memory=512m",
    "--conf=spark.ui.enabled=false",
    "--conf=spark.log.level=ERROR",
)


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Give the environment of a machine that has everything but kafkalog."""
    return environment_without_kafkalog(tmp_path_factory.mktemp("packages") / "links")


@pytest.fixture(scope="module")
def py_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("dist")).py_files


@pytest.fixture
def submit(variables: dict[str, str], py_files: Path, tmp_path: Path) -> Callable[..., None]:
    """Give a function that runs a script of ``jobs/`` by spark-submit, away from the checkout."""

    def run(script: str, *arguments: str, options: tuple[str, ...] = ()) -> None:
        home = (Path(variables["PYTHONPATH"]) / "pyspark").resolve()
        ran = subprocess.run(
            [
                *(str(home / "bin" / "spark-submit"), *SETTINGS, *options),
                *("--py-files", str(py_files), str(ROOT / "jobs" / script), *arguments),
            ],
            env={**variables, "SPARK_HOME": str(home)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-6000:]

    return run


def table_format_of_this_spark() -> tuple[str, tuple[str, ...]]:
    """Return the option of `archive` and `restore`, and those of spark-submit that go with it."""
    try:
        delta = delta_jars()
    except JarError:  # the newest Spark may have no Delta yet
        return "--format=parquet", ()
    jars = ",".join(map(str, fetch(delta)))  # as --packages would bring them
    return "--format=delta", (f"--jars={jars}",)


@pytest.mark.parametrize("comes_back", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_files_become_a_topic_and_the_topic_a_table(
    submit: Callable[..., None], tmp_path: Path, *, comes_back: bool
) -> None:
    log, table = str(tmp_path / "log"), str(tmp_path / "table")
    source = tmp_path / "input"
    source.mkdir()
    lines = [f"{number},name {number % 9},2024-02-03T04:05:06Z" for number in range(ROWS)]
    (source / "a.csv").write_text("\n".join(["id,name,at", *lines]) + "\n", encoding="utf-8")

    submit(
        *("ingest.py", str(source), log, "--topic=people", f"--checkpoint={tmp_path / 'c1'}"),
        *("--key=name", "--timestamp=at", "--set=numPartitions=2", "--set=compression.type=zstd"),
    )
    records = [
        record
        for partition in range(2)
        for record in read_partition(tmp_path / "log" / f"people-{partition}")
    ]
    values = [json.loads(record.value or b"") for record in records]

    assert sorted(int(value["id"]) for value in values) == list(range(ROWS))
    assert {record.timestamp for record in records} == {1706933106000}
    assert all(
        (record.key or b"").decode() == value["name"]
        for record, value in zip(records, values, strict=True)
    )

    table_format, options = table_format_of_this_spark()
    submit(
        *("archive.py", log, table, "--topic=people", f"--checkpoint={tmp_path / 'c2'}"),
        table_format,
        options=options,
    )
    archived = [
        row for path in Path(table).rglob("*.parquet") for row in pq.read_table(path).to_pylist()
    ]

    assert Counter((row["key"], row["value"]) for row in archived) == Counter(
        (record.key, record.value) for record in records
    )
    for partition in range(2):
        offsets = sorted(row["offset"] for row in archived if row["partition"] == partition)
        assert offsets == list(range(len(offsets)))
    if not comes_back:
        return

    restored = tmp_path / "restored"
    words = ("restore.py", table, str(restored), "--topic=people", table_format)
    submit(*words, options=options)
    copied = [read_partition(restored / f"people-{partition}") for partition in range(2)]
    assert [record for each in copied for record in each] == records

    again = tmp_path / "again"
    submit("replay.py", str(restored), str(again), "--topic=people", "--until=1706933106001")
    played = [read_partition(again / f"people-{partition}") for partition in range(2)]
    assert played == copied, "nothing was left out, so offsets are the same too"


@pytest.mark.nightly
def test_a_compacted_topic_is_looked_after(submit: Callable[..., None], tmp_path: Path) -> None:
    log = tmp_path / "log"
    into = writer(log, numPartitions="2", min__cleanable__dirty__ratio="0.1")
    for batch in range(6):
        updates(into, [{"a": f"{batch}", f"b{batch}": "once"}], first=batch, partition=batch % 2)
    keys = [TopicPartition("t", number) for number in range(2)]
    before = [read(log, key) for key in keys]

    submit("maintain.py", str(log))

    after = [read(log, key) for key in keys]
    assert [latest(each) for each in after] == [latest(each) for each in before]
    assert all(len(each) < len(whole) for each, whole in zip(after, before, strict=True))
