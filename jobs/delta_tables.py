"""Delta tables by their folders: made, given properties, compacted."""

from __future__ import annotations

import json
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.errors import AnalysisException

from kafkalog.jobs.hadoop import exists, qualified, read_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["FEW_FILES", "WRITES", "DeltaTable", "TableCommit", "sql_text"]

FEW_FILES: Final = 16
"""A folder with so many files is left as it is: to put them together means to write all again."""

_SMALL_FILES: Final = ("spark.databricks.delta.optimize.minFileSize", str(64 * 2**20))
"""Files of so many bytes are left alone. Delta's own limit is 1 GiB: a folder that grows for a day
would be written again each time."""


_STARTS: Final = ("CREATE", "REPLACE", "CLONE", "CONVERT", "TRUNCATE")
WRITES: Final = frozenset({"WRITE", "STREAMING UPDATE", "MERGE", "UPDATE", "COPY INTO"})
"""Operations that may add rows, or change them."""

_EVERY_ROW: Final = frozenset({"[]", '["true"]'})


class TableCommit(NamedTuple):
    """One version in a table's history."""

    version: int
    operation: str
    parameters: Mapping[str, str | None]
    metadata: str | None

    @property
    def begins_anew(self) -> bool:
        """Whether what the table held before counts no more."""
        if self.operation.startswith(_STARTS):
            return True
        if self.operation == "DELETE":
            return self.parameters.get("predicate", "[]") in _EVERY_ROW
        mode = self.parameters.get("mode") or self.parameters.get("outputMode")
        return self.operation in WRITES and mode in {"Overwrite", "Complete"}

    @property
    def changes_contents(self) -> bool:
        """Whether the rows after it are not those before it and what was added."""
        return self.begins_anew or self.operation == "RESTORE"

    @property
    def matters(self) -> bool:
        """Whether it may have changed what the table holds."""
        return bool(self.metadata) or self.changes_contents or self.operation in WRITES


class DeltaTable:
    """The table in a folder, which nobody else changes; it may not be there yet."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        """Take a folder on any file system of Spark's."""
        self.path = qualified(spark, folder)
        self.name = "delta.`{}`".format(self.path.replace("`", "``"))
        self.spark = spark

    def create(self, columns: str | StructType, partitioned_by: Sequence[str]) -> None:
        """Make an empty table of these columns, unless there is one.

        Whoever was killed while it made the table has left folders without a first version. CREATE
        TABLE IF NOT EXISTS would take them for a table, so nothing is appended to it instead.
        """
        try:
            _ = self._detail
        except AnalysisException:
            nothing = self.spark.createDataFrame([], columns)
            writer = nothing.write.format("delta").mode("append")
            writer.partitionBy(*partitioned_by).save(self.path)

    def refresh(self) -> None:
        """Forget what was seen of the table: somebody else has changed it."""
        for seen in ("_detail", "properties"):
            self.__dict__.pop(seen, None)

    @property
    def exists(self) -> bool:
        """Whether the folder has a log of Delta's, be it without a version yet."""
        return exists(self.spark, f"{self.path}/_delta_log")

    @property
    def id(self) -> str:
        """The table's id, which a clone, or one that is made in its place, does not have."""
        return str(self._detail["id"])

    def commits(self, most: int | None = None) -> list[TableCommit]:
        """Return the newest commits of its history, the newest one first; none without a table."""
        limit = "" if most is None else f" LIMIT {most}"
        try:
            history = self.spark.sql(f"DESCRIBE HISTORY {self.name}{limit}")
            rows = history.select("version", "operation", "operationParameters", "userMetadata")
            found = rows.collect()
        except AnalysisException:
            return []
        return [
            TableCommit(version, operation, parameters or {}, metadata)
            for version, operation, parameters, metadata in found
        ]

    def commits_after(self, version: int) -> list[TableCommit]:
        """Return the commits above a version, the newest one first, without a job of Spark's.

        They are read from the table's log: ``_delta_log/<version>.json`` has a line ``commitInfo``.
        """
        found: list[TableCommit] = []
        while True:
            path = f"{self.path}/_delta_log/{(version := version + 1):020}.json"
            if not exists(self.spark, path):
                return found[::-1]
            lines = map(json.loads, read_text(self.spark, path).splitlines())
            infos = (line["commitInfo"] for line in lines if "commitInfo" in line)
            info: dict[str, Any] = next(infos, {})
            given = info.get("operationParameters", {})
            parameters = {n: v if v is None else str(v) for n, v in given.items()}
            operation = info.get("operation", "")
            found.append(TableCommit(version, operation, parameters, info.get("userMetadata")))

    def rows(self) -> DataFrame | None:
        """Read its newest version; None without a table."""
        try:
            return self.spark.read.format("delta").load(self.path)
        except AnalysisException:
            return None

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
        (commit,) = self.commits(1)
        return commit.version

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set some properties; those that have the value already cost no version of the table."""
        known = self.properties
        changed = {name: text for name, text in properties.items() if known.get(name) != text}
        if changed:
            pairs = ", ".join(f"{sql_text(k)} = {sql_text(v)}" for k, v in changed.items())
            self.spark.sql(f"ALTER TABLE {self.name} SET TBLPROPERTIES ({pairs})")
            known.update(changed)

    def unset_properties(self, names: Sequence[str]) -> None:
        """Remove some properties, as far as they are set."""
        there = [name for name in names if name in self.properties]
        if there:
            listed = ", ".join(map(sql_text, there))
            self.spark.sql(f"ALTER TABLE {self.name} UNSET TBLPROPERTIES IF EXISTS ({listed})")
            for name in there:
                del self.properties[name]

    def delete(self, condition: str) -> None:
        """Delete the rows that fulfil a condition in SQL."""
        self.spark.sql(f"DELETE FROM {self.name} WHERE {condition}")  # noqa: S608 - of our own

    def compact(self) -> None:
        """Put small files together, if a folder has more than :data:`FEW_FILES`."""
        files = self.spark.read.format("delta").load(self.path).inputFiles()
        folders = Counter(file.rpartition("/")[0] for file in files)
        if max(folders.values(), default=0) > FEW_FILES:
            self.spark.conf.set(*_SMALL_FILES)
            self.spark.sql(f"OPTIMIZE {self.name}")

    @cached_property
    def _detail(self) -> Row:
        (row,) = self.spark.sql(f"DESCRIBE DETAIL {self.name}").collect()
        return row


def sql_text(text: str) -> str:
    """Return a text as SQL has it in quotes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
