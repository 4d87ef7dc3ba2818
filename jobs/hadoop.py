"""Files where Spark keeps them: by Hadoop's file systems, local or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["qualified", "read_text"]


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


def _open(spark: SparkSession, path: str) -> tuple[Any, Any]:
    found = _jvm(spark).org.apache.hadoop.fs.Path(path)
    return found.getFileSystem(spark._jsc.hadoopConfiguration()), found  # noqa: SLF001


def _jvm(spark: SparkSession) -> Any:  # noqa: ANN401 - what Java has there
    return spark.sparkContext._jvm  # noqa: SLF001 - Spark offers no other way
