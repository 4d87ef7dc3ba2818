"""A query's checkpoint folder on any of Spark's file systems.

Spark writes ``offsets/<batch>`` before a micro-batch runs, and ``commits/<batch>`` once it has
ended (:mod:`kafkalog.checkpoints.query_checkpoint`).
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kafkalog.checkpoints.query_checkpoint import query_offsets
from kafkalog.errors import CheckpointError
from kafkalog.files.system import system
from kafkalog.streaming.source.offsets import from_json_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kafkalog.streaming.source.offsets import PartitionOffsets


__all__ = [
    "CheckpointFolder",
    "exists",
    "list_names",
    "qualified",
    "reached_of",
    "read_text",
    "remove_older",
    "rename",
    "write_text",
]


# ----------------------------------------------------------------------------------------------
# Files where Spark keeps them: by Hadoop's file systems, local or not.


def qualified(spark: SparkSession, path: str) -> str:
    """Return the whole name of a path, with the file system that Spark would take it to be on."""
    file_system, found = _open(spark, path)
    return str(file_system.makeQualified(found).toString())


def read_text(spark: SparkSession, path: str) -> str:
    """Read a small file of UTF-8."""
    file_system, found = _open(spark, path)
    stream = file_system.open(found)
    try:
        return str(_jvm(spark).org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def write_text(spark: SparkSession, path: str, text: str) -> None:
    """Write a small file of UTF-8, in the place of one that is there."""
    file_system, found = _open(spark, path)
    stream = file_system.create(found)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()


def exists(spark: SparkSession, path: str) -> bool:
    """Whether there is a file or folder."""
    file_system, found = _open(spark, path)
    return bool(file_system.exists(found))


def list_names(spark: SparkSession, path: str) -> list[str]:
    """Return the names of what is in a folder; none if there is no such folder."""
    file_system, found = _open(spark, path)
    if not file_system.exists(found):
        return []
    return [str(status.getPath().getName()) for status in file_system.listStatus(found)]


def rename(spark: SparkSession, path: str, name: str) -> None:
    """Give a file or folder another name, which must be free.

    Raises:
        OSError: the file system has not done it.
    """
    file_system, found = _open(spark, path)
    _, wanted = _open(spark, name)
    if file_system.exists(wanted) or not file_system.rename(found, wanted):
        raise OSError(f"{path} could not be renamed to {name}")


def remove_older(spark: SparkSession, path: str, age_ms: int) -> None:
    """Remove a folder in which no name has changed for so long, as far as the store tells."""
    file_system, found = _open(spark, path)
    changed_ms = file_system.getFileStatus(found).getModificationTime()
    if 0 < changed_ms < system.time_ns() // 1_000_000 - age_ms:
        file_system.delete(found, True)


def _open(spark: SparkSession, path: str) -> tuple[Any, Any]:
    found = _jvm(spark).org.apache.hadoop.fs.Path(path)
    return found.getFileSystem(spark._jsc.hadoopConfiguration()), found  # noqa: SLF001


def _jvm(spark: SparkSession) -> Any:  # noqa: ANN401 - what Java has there
    return spark.sparkContext._jvm  # noqa: SLF001 - Spark offers no other way


# ----------------------------------------------------------------------------------------------


class CheckpointFolder:
    """The checkpoint of a query with one source, as it is before the query starts."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        """Read nothing yet."""
        self.folder = folder
        self._spark = spark

    @cached_property
    def planned(self) -> int | None:
        """The number of the last micro-batch that was planned; None if there is none."""
        return self._last("offsets")

    @cached_property
    def ended(self) -> int | None:
        """The number of the last micro-batch that has ended; None if there is none."""
        return self._last("commits")

    @property
    def query_id(self) -> str | None:
        """The id that Spark has given to the query; None where no query has begun.

        Raises:
            CheckpointError: the file does not tell.
        """
        path = f"{self.folder}/metadata"
        if not self._is_there(path):
            return None
        try:
            return str(json.loads(self._read(path))["id"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path} does not tell the query's id: {error!r}") from error

    def _is_there(self, path: str) -> bool:
        return exists(self._spark, path)

    def _read(self, path: str) -> str:
        return read_text(self._spark, path)

    def ends(self, batch_id: int) -> PartitionOffsets:
        """Return where a micro-batch ends, trailing markers included; nothing of one below 0.

        Raises:
            CheckpointError: the file does not tell.
        """
        if batch_id < 0:
            return {}
        path = f"{self.folder}/offsets/{batch_id}"
        return reached_of(self._read(path), path)

    def next_starts(self) -> PartitionOffsets:
        """Return where the next micro-batch starts, or the one that has not ended.

        Nothing of a query whose first one has not ended: it starts where its options say.

        Raises:
            CheckpointError: a file does not tell.
        """
        if self.planned is None:
            return {}
        has_ended = self.ended is not None and self.ended >= self.planned
        return self.ends(self.planned if has_ended else self.planned - 1)

    def put_aside(self) -> str | None:
        """Rename the folder, so that the query begins anew; returns its new name.

        None if it is not there.

        Raises:
            OSError: it cannot be renamed.
        """
        if not exists(self._spark, self.folder):
            return None
        aside = f"{self.folder.rstrip('/')}.before-{system.time_ns() // 1_000_000}"
        rename(self._spark, self.folder, aside)
        self.__dict__.pop("planned", None)
        self.__dict__.pop("ended", None)
        return aside

    def _last(self, kind: str) -> int | None:
        names = list_names(self._spark, f"{self.folder}/{kind}")
        return max((int(name) for name in names if name.isdecimal()), default=None)


def reached_of(planned: str, path: str) -> PartitionOffsets:
    """Return where a micro-batch of a query with one source ends, of what Spark has planned.

    Raises:
        CheckpointError: the file, which is named by ``path``, does not tell.
    """
    try:
        (end,) = query_offsets(planned).values()
        return from_json_text(end)
    except (CheckpointError, ValueError) as error:
        raise CheckpointError(
            f"{path} does not tell how far the topics are read: {error}"
        ) from error
