"""Histories of an archive with Spark and Delta: source, table and checkpoint are set back.

The judge is that of :mod:`tests.pipelines`: the rows of the table, read as anybody reads them,
against the rows that the source ever had.
"""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.errors import StreamingQueryException
from tests.pipelines.archives import Archived, Row
from tests.pipelines.histories import History
from tests.support.spark import delta_session

from kafkalog.errors import CommitError, DataLossError, TargetMismatchError
from kafkalog.jobs.pipelines.delta_tables import DeltaTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession
    from tests.pipelines.sources import Source

pytestmark = pytest.mark.spark

_LISTING_TASKS: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_RETENTION_CHECK: Final = "spark.databricks.delta.retentionDurationCheck.enabled"
_REFUSALS: Final = (TargetMismatchError, CommitError, DataLossError)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with delta_session() as session:
        session.conf.set(_RETENTION_CHECK, "false")
        session.conf.set(_LISTING_TASKS, "2")  # VACUUM's, which are 10,000 else
        yield session


class ArchivedInDelta(Archived):
    """A table of Delta's; ``ways`` are those that are followed."""

    def __init__(self, *given: Any, spark: SparkSession, ways: tuple[str, ...]) -> None:
        super().__init__(*given)
        self.spark, self.ways = spark, ways
        self._kept_version = -1
        self._is_running = False
        self._seen: tuple[Any, list[Row]] = (None, [])

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.spark, str(self.path))

    @property
    def _commits(self) -> list[Path]:
        return sorted(self.path.glob("_delta_log/*.json"))

    @property
    def version(self) -> int:
        return int(self._commits[-1].stem)

    def every_row(self) -> Iterable[Row]:
        newest = [(path, path.stat().st_mtime_ns) for path in self._commits[-1:]]
        if newest and newest != self._seen[0]:
            frame = self.spark.read.format("delta").load(str(self.path))
            found = frame.select("partition", "offset", "value", "key").collect()
            self._seen = newest, [Row(*at, v.decode(), k.decode(), 0) for *at, v, k in found]
        return self._seen[1] if newest else ()

    def keep(self) -> None:
        """Keep its newest version in mind."""
        self._kept_version = self.version

    def put_back(self) -> None:
        self.spark.sql(f"RESTORE TABLE {self.table.name} TO VERSION AS OF {self._kept_version}")
        self._set_back(self._kept_version)

    def clone(self) -> None:
        """Go on with a clone, and the same checkpoint."""
        table, self.path = self.table, self.fresh("clone")
        self.spark.sql(f"CREATE TABLE {self.table.name} SHALLOW CLONE {table.name}")
        self._noted = {0: (self.copied, dict(self.held), self.is_foreign)}

    def optimize(self) -> None:
        self.spark.sql(f"OPTIMIZE {self.table.name}")
        self.spark.sql(f"VACUUM {self.table.name} RETAIN 0 HOURS")

    def clean_up(self) -> None:
        """Let Delta have removed all commits but the newest one."""
        interval = "SET TBLPROPERTIES ('delta.checkpointInterval' = '1')"
        self.spark.sql(f"ALTER TABLE {self.table.name} {interval}")
        for file in self._commits[:-1]:
            file.unlink()
            (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
        jvm: Any = self.spark._jvm
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def run(self, source: Source, step: Callable[[str], None], way: str = "", **given: Any) -> None:
        options = {"maxOffsetsPerTrigger": "12", **given.get("options", {})}
        archive, spark = self.archive(source, str(self.path), way, options), self.spark
        if self._is_running:  # it is another job, which has an older checkpoint or none
            spark = spark.newSession()
            archive.checkpoint = str(self.fresh("checkpoint-of-twin"))
            if self._older is not None:
                shutil.copytree(self._older[0], archive.checkpoint)
        self._is_running, was_running = True, self._is_running
        try:
            query = archive.start(spark)
            try:
                step("started")
            finally:
                query.awaitTermination()
            archive.finish(spark)
        except StreamingQueryException as error:
            raise _reason(error) from error
        finally:
            self._is_running = was_running


def _reason(error: StreamingQueryException) -> Exception:
    text = str(error)
    kind = next((each for each in _REFUSALS if f"{each.__name__}: " in text), None)
    if kind is None:
        raise error
    return kind(text.partition(f"{kind.__name__}: ")[2].splitlines()[0])


@pytest.mark.parametrize(
    ("way", "steps"),
    [
        pytest.param(
            "--from-target",
            "run, target keep, source append, run, target put_back, run, "
            "target put_back, target lose_checkpoint, source append, run",
            id="RESTORE, with its checkpoint and without one",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "--rebuild",
            "source keep, source append, run, target clean_up, source append, run, "
            "target clean_up, target lose_checkpoint, source put_back, source append, "
            "source append, source append, run",
            id="Delta cleans its log up, and the source is put back and grows",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "--rebuild",
            "run, target keep_checkpoint, source append, run, target optimize, "
            "target put_checkpoint_back, source append, run, target lose_last_commit, "
            "source append, run",
            id="OPTIMIZE and VACUUM, an older checkpoint, one whose last commit is gone",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "another TABLE",
            "source keep, source append, run, target clone, source append, run, target clone, "
            "target lose_checkpoint, source put_back, source append, source append, "
            "source append, run",
            id="a clone is continued, and of another one the source is put back and grows",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "--rebuild",
            "run, target keep_checkpoint, source append, source append, two runs, run, "
            "target lose_checkpoint, source append, source append, two runs, run",
            id="two runs at once, with an older checkpoint and a new one",
        ),
    ],
)
def test_a_table_has_what_its_source_held_whatever_is_set_back(
    spark: SparkSession, tmp_path: Path, way: str, steps: str
) -> None:
    target = partial(ArchivedInDelta, spark=spark, ways=(way,))
    History(tmp_path, "delta/1", "archive", target).follow(steps.split(", "))
