"""Our data source with places at which a process can be told to stand still.

For tests that kill it there. The first process that comes to such a place renames a file in the
folder that holds the query's checkpoint, and waits until it is killed or told to go on.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from tests.support.spark import small_session

from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.spark.datasource import KafkaLogDataSource
from kafkalog.streaming.spark.versions import StreamArrowWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

__all__ = ["POINTS", "StoppingSource", "let_go", "run_query", "stop_at", "stopped_in"]

_WITHIN_COMMIT: Final = {"declared": "_declare", "appended": "_apply", "published": "_publish"}

POINTS: Final = ("staging", *_WITHIN_COMMIT, "committed")
"""In a task, amid its rows; in the commit, behind the intent, behind the last byte, and behind the
rename; between the commit and Spark's own note of it."""

_OPTIONS: Final = {"numPartitions": "2", "segment.bytes": "3000", "index.interval.bytes": "500"}
_IN_A_STORE: Final = {"storage.tries": "20"}
"""Four requests of ten may fail."""
_SPARK: Final = {
    "spark.driver.memory": "512m",
    "spark.master": "local[2,8]",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20",
}
_GO_ON: Final = "go on"
_SECONDS: Final = 900


class StoppingSource(KafkaLogDataSource):
    """Ours; what its writer does can be made to stand still."""

    @classmethod
    def name(cls) -> str:
        """Return the short name of the format."""
        return "stopping"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StoppingWriter:  # noqa: N802
        """Make the writer of one micro-batch."""
        folder = Path(self.options["checkpointLocation"]).parent
        writer: Any = super().streamWriter(schema, overwrite)
        return StoppingWriter(writer, folder)


class StoppingWriter(StreamArrowWriter):
    """Hands over to our writer, and stands still on the way."""

    def __init__(self, writer: StreamArrowWriter, folder: Path) -> None:
        self._writer = writer
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        return self._writer.write(self._rows(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the micro-batch."""
        with contextlib.ExitStack() as patches:
            for point, method in _WITHIN_COMMIT.items():
                patches.enter_context(self._stopping(method, point, batchId))
            self._writer.commit(messages, batchId)
        self._stop("committed", batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Drop what was staged."""
        self._writer.abort(messages, batchId)

    def _rows(self, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        batch_id = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        for batch in iterator:
            yield batch
            self._stop("staging", batch_id)

    @contextlib.contextmanager
    def _stopping(self, method: str, point: str, batch_id: int) -> Iterator[None]:
        original = getattr(Committer, method)

        def stopping(*arguments: object, **named: object) -> None:
            original(*arguments, **named)
            self._stop(point, batch_id)

        setattr(Committer, method, stopping)
        try:
            yield
        finally:
            setattr(Committer, method, original)

    def _stop(self, point: str, batch_id: int) -> None:
        try:
            _order(self._folder, point, batch_id).rename(self._folder / f"stopped {os.getpid()}")
        except FileNotFoundError:
            return
        while not (self._folder / _GO_ON).exists():
            time.sleep(0.01)


def stop_at(folder: Path, point: str, batch_id: int) -> None:
    """Have the first process of a query that comes to a point of a micro-batch stand still."""
    _order(folder, point, batch_id).touch()


def stopped_in(folder: Path) -> int | None:
    """Return the process that stood still."""
    found = [int(path.name.split()[1]) for path in folder.glob("stopped *")]
    return found[0] if found else None


def let_go(folder: Path) -> None:
    """Let what stands still go on."""
    (folder / _GO_ON).touch()


def _order(folder: Path, point: str, batch_id: int) -> Path:
    return folder / f"stop {point} {batch_id}"


def run_query(folder: str, log: str) -> None:
    """Write what is left of ``input``, two files in a micro-batch and a task for each."""
    with small_session(**_SPARK) as spark:
        spark.dataSource.register(StoppingSource)
        columns = "value STRING, key STRING, topic STRING, padding STRING"
        rows = spark.readStream.schema(columns).option("maxFilesPerTrigger", "2")
        query = (
            rows.csv(f"{folder}/input")
            .select("value", "key", "topic")
            .writeStream.format(StoppingSource.name())
            .options(**_OPTIONS, **(_IN_A_STORE if "://" in log else {}))
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start(log)
        )
        assert query.awaitTermination(_SECONDS)
