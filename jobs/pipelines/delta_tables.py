"""Delta tables: what one holds of a source, and how it is made, given properties, compacted."""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.errors import AnalysisException
from pyspark.sql import functions as sf

from kafkalog.errors import CheckpointError, CommitError, OptionError
from kafkalog.jobs.pipelines.checkpoint_folder import exists, qualified, read_text
from kafkalog.jobs.pipelines.continuation import HeldTopic, TargetState
from kafkalog.jobs.pipelines.topic_facts import TopicFacts, read_facts
from kafkalog.model import TopicPartition, listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType


__all__ = [
    "FEW_FILES",
    "WRITES",
    "DeltaTable",
    "HeldByTable",
    "History",
    "TableCommit",
    "held_in",
    "sql_text",
]


# ----------------------------------------------------------------------------------------------
# Delta tables by their folders: made, given properties, compacted.


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


# ----------------------------------------------------------------------------------------------
# What a Delta table holds of a source: kept in the commits that wrote the rows.
#
# Each commit of an archive has ``userMetadata``, in the same transaction as its rows::
#
#     {"kafkalog.archive": {"base": 41, "run": "0f…", "held": {…}}}
#
# ``held`` is a :class:`~kafkalog.jobs.pipelines.continuation.TargetState` with the table's id as
# its epoch. ``base`` is the version of the table that the state before was read at. It is the
# transaction's version too (``txnVersion``), under an id that all runs over this table share
# (``txnAppId``). So of two runs that begin at one version, the first commits, and the other one's
# rows are not written. Delta says nothing about that, which is why the newest commit is looked at
# afterwards.
#
# What Delta does to a table is in its history, newest commit first (:func:`held_in`):
#
# ===================================  =============================================================
# commit                               what it means for the state
# ===================================  =============================================================
# one of ours                          the state
# ``RESTORE`` to a version             the state is that of this version
# a table made, replaced, overwritten, what was held before counts no more; so does ``DELETE`` and
# cloned, emptied                      ``TRUNCATE`` of all rows
# ``OPTIMIZE``, ``VACUUM``, settings   nothing. Nor does ``DELETE`` of some rows: they were taken,
#                                      and stay deleted
# rows that somebody else has written  the table is searched for offsets above those held
# ===================================  =============================================================
#
# Where the history ends before any of ours, as in a clone, or once Delta has cleaned its log up,
# the table's own largest offsets tell, and its properties
# (:mod:`~kafkalog.jobs.pipelines.topic_facts`). RESTORE and CLONE keep both in step.
#
# Source: Delta 4.4 ``WriteIntoDelta``, ``RestoreTableCommand``, ``CloneTableBase``,
# ``ConflictChecker.checkIfSetTransaction…``, ``DeltaOperations``.


_KEY: Final = "kafkalog.archive"
_FIRST_COMMITS: Final = 50
"""So many are read of a history at first; all of it only if these do not tell."""

_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"
_APP_ID: Final = "spark.databricks.delta.write.txnAppId"
_VERSION: Final = "spark.databricks.delta.write.txnVersion"

_CONFLICT: Final = re.compile(r"DELTA_(CONCURRENT_|METADATA_CHANGED|PROTOCOL_CHANGED)")


class _Kept(NamedTuple):
    """What a commit of ours keeps."""

    base: int
    run: str
    held: TargetState


@dataclass(frozen=True)
class History:
    """What a table's history tells of what the table holds.

    Args:
        held: the state; None where the history does not tell.
        why: what has set the table back, in words; empty if nothing has.
        begins_anew: whether properties may tell of more than is there.
        others_wrote: whether somebody else has written rows since.
        is_mixed: whether rows were written above a change of the table that their writer did not
            see.
    """

    held: TargetState | None
    why: str = ""
    begins_anew: bool = False
    others_wrote: bool = False
    is_mixed: bool = False


def held_in(commits: Sequence[TableCommit], epoch: str) -> History:
    """Find the state in a history, which has the newest commit first and may lack its beginning.

    ``epoch`` is the table's id.
    """
    known = {commit.version: commit for commit in commits}
    version = max(known, default=-1)
    why, others = "", False
    while (commit := known.get(version)) is not None:
        kept = _kept(commit)
        if kept is not None and kept.held.epoch == epoch:
            between = (known.get(at) for at in range(kept.base + 1, version))
            unseen = next((one for one in between if one and one.changes_contents), None)
            if unseen is not None:
                why = f"{_shown(unseen)}, and rows were written above it by who had not seen that"
            return History(kept.held, why, others_wrote=others, is_mixed=unseen is not None)
        if commit.operation == "RESTORE":
            why = why or _shown(commit)
            restored = commit.parameters.get("version")
            if restored is None or not restored.isdecimal() or int(restored) >= version:
                return History(None, why)
            version = int(restored)
            continue
        if commit.begins_anew:
            is_clone = commit.operation.endswith("CLONE")
            is_first = commit.version == 0
            return History(
                None, why or ("" if is_first else _shown(commit)), begins_anew=not is_clone
            )
        others = others or commit.operation in WRITES
        version -= 1
    return History(None, why)


def _kept(commit: TableCommit) -> _Kept | None:
    """Read what a commit of ours keeps; None of another one."""
    if not commit.metadata or _KEY not in commit.metadata:
        return None
    try:
        found = json.loads(commit.metadata)[_KEY]
        held = TargetState.from_json(json.dumps(found["held"]))
        return _Kept(int(found["base"]), str(found["run"]), held)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"version {commit.version} of the table has the userMetadata {commit.metadata[:80]!r}, "
            f"which does not tell what the table holds: {error!r}"
        ) from error


def _shown(commit: TableCommit) -> str:
    to = commit.parameters.get("version") or commit.parameters.get("timestamp")
    to = f" to {to}" if commit.operation == "RESTORE" else ""
    return f"{commit.operation}{to} in its version {commit.version}"


class HeldByTable:
    """What one table holds, as of the newest version that was looked at, and how it gets more."""

    def __init__(self, table: DeltaTable) -> None:
        """Look at nothing yet; the table may not be there."""
        self.table = table
        self.held = TargetState()
        self.why = ""
        """What has set the table back, in words; empty if nothing has."""
        self.is_mixed = False
        """Whether rows were written above a change of the table that their writer did not see."""
        self.others = ""
        """What somebody else has written to it, in words; empty if nobody has."""
        self._version = -1
        self._run = uuid.uuid4().hex

    def look(self) -> TargetState:
        """Find out what the table holds now; nothing is read again while nobody changes it.

        Raises:
            CheckpointError: a commit does not tell.
            OptionError: it is no archive.
        """
        if self._version >= 0:
            since = self.table.commits_after(self._version)
            if not any(commit.matters for commit in since):
                self._version = since[0].version if since else self._version
                return self.held
        self.table.refresh()
        commits = self.table.commits(_FIRST_COMMITS)
        history = held_in(commits, self.table.id) if commits else History(None)
        if history.held is None and len(commits) == _FIRST_COMMITS:
            commits = self.table.commits()
            history = held_in(commits, self.table.id)
        self.why, self.is_mixed, self.others = history.why, history.is_mixed, ""
        self.held = self._held(history)
        self._version = commits[0].version if commits else -1
        return self.held

    def _held(self, history: History) -> TargetState:
        if history.held is None:
            return self._by_largest_offsets(with_properties=not history.begins_anew)
        if history.others_wrote and not history.is_mixed:
            self.others = self._written_above(history.held)
        return history.held

    def _by_largest_offsets(self, *, with_properties: bool) -> TargetState:
        """Return what the rows show: a partition without any counts as not held.

        Ends that properties have count markers; but they are of before the last rows.
        """
        largest = self._largest_offsets()
        facts = read_facts(self.table.properties) if largest else {}
        topics: dict[str, HeldTopic] = {}
        for key, last in largest.items():
            known = facts.get(key.topic, TopicFacts({}, None))
            noted = known.partitions.get(key.partition) if with_properties else None
            end = max(last + 1, noted.end if noted else 0)
            before = topics.get(key.topic, HeldTopic(None, {}))
            batches = dict(before.batches)
            if noted and noted.end == end and key.partition in known.batches:
                batches[key.partition] = known.batches[key.partition]
            ends = {**before.ends, key.partition: end}
            topics[key.topic] = HeldTopic(known.topic_id, ends, batches)
        return TargetState(topics=topics)

    def _largest_offsets(self) -> dict[TopicPartition, int]:
        rows = self.table.rows()
        if rows is None:
            return {}
        try:
            found = rows.groupBy("topic", "partition").agg(sf.max("offset")).collect()
        except AnalysisException as error:
            raise OptionError(
                f"{self.table.path} is a table without the columns topic, partition and offset, so "
                "it is no archive: name another folder"
            ) from error
        return {TopicPartition(topic, partition): last for topic, partition, last in found}

    def _written_above(self, held: TargetState) -> str:
        """Say which rows lie above what the table is known to hold."""
        above = {
            key: f"{key} up to {last + 1}, and {held.end_of(key) or 0} by this"
            for key, last in sorted(self._largest_offsets().items())
            if last >= (held.end_of(key) or 0)
        }
        return listed(above.values())

    def delete(self, condition: str, held: TargetState) -> None:
        """Delete rows, by a condition in SQL; the table holds ``held`` then.

        Raises:
            CommitError: as :meth:`committing`.
        """
        spark, rows = self.table.spark, self.table.rows()
        if rows is None:
            return
        if not rows.where(condition).isEmpty():
            with self.committing(held, spark):
                self.table.delete(condition)
            return
        with self.committing(held, spark) as options:  # a DELETE of nothing commits nothing
            nothing = rows.limit(0).write.format("delta").mode("append")
            nothing.options(**options).save(self.table.path)

    @contextmanager
    def committing(self, held: TargetState, spark: SparkSession) -> Iterator[dict[str, str]]:
        """Let one command write to the table, as the only one that continues from this state.

        It gets the options of a DataFrame's writer. Those of a SQL command are set in the session
        meanwhile.

        Args:
            held: what the table holds once the command has run.
            spark: the session that runs it.

        Raises:
            CommitError: another run has written to the table meanwhile, and this one has not; or
                the table was set back meanwhile.
        """
        held = TargetState(self.table.id, held.set_id, held.topics)
        kept = {"base": self._version, "run": self._run, "held": json.loads(held.to_json())}
        text = json.dumps({_KEY: kept}, separators=(",", ":"))
        identity = {"txnAppId": f"{_KEY} {self.table.id}", "txnVersion": str(self._version)}
        names = {_METADATA: text, _APP_ID: identity["txnAppId"], _VERSION: identity["txnVersion"]}
        try:
            for name, value in names.items():
                spark.conf.set(name, value)
            with self.telling_conflicts():
                yield {"userMetadata": text, **identity}
        finally:
            for name in names:
                spark.conf.unset(name)
        self._check_committed(self._version, held)

    @contextmanager
    def telling_conflicts(self) -> Iterator[None]:
        """Tell that another run was faster, where Delta has found that out.

        Raises:
            CommitError: it was.
        """
        try:
            yield
        except Exception as error:  # Delta's own reach Python as themselves, or as py4j's
            if not _CONFLICT.search(str(error)):
                raise
            raise self._other_run() from error

    def _check_committed(self, base: int, held: TargetState) -> None:
        """See that the command's commit is there: Delta skips a version that it knows silently."""
        since = self.table.commits_after(base)
        mine = [
            one
            for one in since
            if (kept := _kept(one)) and (kept.run, kept.base) == (self._run, base)
        ]
        if not mine:
            raise self._other_run()
        self._version = since[0].version
        self.held = held
        self.why, self.is_mixed, self.others = "", False, ""  # it was refused, or rows are gone
        changed = [commit for commit in since if commit.changes_contents and commit not in mine]
        if changed:
            self._version = -1
            raise CommitError(
                f"the table {self.table.path} was changed while a batch was written: "
                f"{_shown(changed[0])}. Let nobody else change it meanwhile, and start again"
            )

    def _other_run(self) -> CommitError:
        return CommitError(
            f"another run has written to the table {self.table.path} meanwhile, and nothing of "
            "this batch was written. Let one run write to a table, and start it again: it "
            "continues where the table ends"
        )
