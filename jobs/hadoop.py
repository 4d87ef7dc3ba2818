"""Files where Spark keeps them: by Hadoop's file systems, local or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["exists", "list_names", "qualified", "read_text", "rename", "write_text"]


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


def _open(spark: SparkSession, path: str) -> tuple[Any, Any]:
    found = _jvm(spark).org.apache.hadoop.fs.Path(path)
    return found.getFileSystem(spark._jsc.hadoopConfiguration()), found  # noqa: SLF001


def _jvm(spark: SparkSession) -> Any:  # noqa: ANN401 - what Java has there
    return spark.sparkContext._jvm  # noqa: SLF001 - Spark offers no other way
