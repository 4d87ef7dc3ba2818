"""Delta tables by their folders: made, given properties, compacted."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException

from kafkalog.jobs.hadoop import qualified

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Row, SparkSession

__all__ = ["FEW_FILES", "DeltaTable"]

FEW_FILES: Final = 16
"""A folder with so many files is left as it is: to put them together means to write all again."""

_SMALL_FILES: Final = ("spark.databricks.delta.optimize.minFileSize", str(64 * 2**20))
"""Files of so many bytes are left alone. Delta's own limit is 1 GiB: a folder that grows for a day
would be written again each time."""


class DeltaTable:
    """The table in a folder, which nobody else changes; it may not be there yet."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        """Take a folder on any file system of Spark's."""
        self.path = qualified(spark, folder)
        self.name = "delta.`{}`".format(self.path.replace("`", "``"))
        self._spark = spark

    def create(self, columns: str, partitioned_by: Sequence[str]) -> None:
        """Make an empty table of these columns (DDL), unless there is one.

        Whoever was killed while it made the table has left folders without a first version. CREATE
        TABLE IF NOT EXISTS would take them for a table, so nothing is appended to it instead.
        """
        try:
            _ = self._detail
        except AnalysisException:
            nothing = self._spark.createDataFrame([], columns)
            writer = nothing.write.format("delta").mode("append")
            writer.partitionBy(*partitioned_by).save(self.path)

    @property
    def partition_columns(self) -> list[str]:
        """The columns that its files are divided by."""
        return list(self._detail["partitionColumns"])

    @cached_property
    def properties(self) -> dict[str, str]:
        """What is set as properties of the table, as of the first look and what was set here."""
        return dict(self._detail["properties"])

    @property
    def version(self) -> int:
        """The number of its newest version."""
        (row,) = self._spark.sql(f"DESCRIBE HISTORY {self.name} LIMIT 1").collect()
        return int(row["version"])

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set some properties; those that have the value already cost no version of the table."""
        known = self.properties
        changed = {name: text for name, text in properties.items() if known.get(name) != text}
        if changed:
            pairs = ", ".join(f"{_literal(k)} = {_literal(v)}" for k, v in changed.items())
            self._spark.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({pairs})")
            known.update(changed)

    def compact(self) -> None:
        """Put small files together, if a folder has more than :data:`FEW_FILES`."""
        files = self._spark.read.format("delta").load(self.path).inputFiles()
        folders = Counter(file.rpartition("/")[0] for file in files)
        if max(folders.values(), default=0) > FEW_FILES:
            self._spark.conf.set(*_SMALL_FILES)
            self._spark.sql(f"OPTIMIZE {self.name}")

    @cached_property
    def _detail(self) -> Row:
        (row,) = self._spark.sql(f"DESCRIBE DETAIL {self.name}").collect()
        return row


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
