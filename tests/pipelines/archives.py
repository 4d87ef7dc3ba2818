"""An archive whose tables are models of Delta's: its decisions run as they are, without Spark.

The model has what they stand on: versions, transaction ids (a version that is known is skipped
without a word), RESTORE, which brings rows and properties back and no transaction ids,
``userMetadata`` of commits, a history that clean-up cuts short, and clones, which have none. A
clone, or a history, that begins between a micro-batch's rows and the note of their ends is left
out: the last batch below is not known there.
"""

from __future__ import annotations

import json
import uuid
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest.mock import patch

from tests.pipelines.sources import TOPIC, Line, Rows, value_of
from tests.pipelines.targets import Backup, Ends, Held, Mirrored, OfQuery
from tests.support.copying import without_rows_below
from tests.support.micro_batches import CheckpointedQuery

from kafkalog.checkpoints.query_checkpoint import QueryCheckpoint, last_batch
from kafkalog.errors import CommitError
from kafkalog.jobs import archiving
from kafkalog.jobs.archiving import Archive, _Tables
from kafkalog.jobs.pipelines.checkpoint_folder import CheckpointFolder
from kafkalog.jobs.pipelines.continuation import TargetState
from kafkalog.jobs.pipelines.copied_logs import SourceLogs, put_checkpoint_aside
from kafkalog.jobs.pipelines.delta_tables import HeldByTable, TableCommit
from kafkalog.jobs.pipelines.topic_facts import FactsOfLogs, property_of, read_facts
from kafkalog.model import TopicPartition
from kafkalog.streaming.options.read_options import ReadOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa
    from tests.pipelines.sources import Source

RESTORE: Final = "RESTORE TABLE to the version before that"
_FOREIGN: Final = "foreign"
_OTHER_LATEST: Final = "another --latest FOLDER"

__all__ = ["RESTORE", "Archived", "InFiles", "LocalCheckpoint", "Newest", "Row", "WithNewest"]


class Row(NamedTuple):
    """A row of a table; ``stamp`` is its timestamp in ms."""

    partition: int
    offset: int
    value: str
    key: str
    stamp: int

    def is_newer(self, other: Row) -> bool:
        """Whether it is newer than another one of the same key."""
        if self.partition == other.partition:
            return self.offset > other.offset
        return (self.stamp, self.partition) > (other.stamp, other.partition)


def _row_of(row: Mapping[str, Any]) -> Row:
    stamp = round(row["timestamp"].timestamp() * 1000)
    return Row(row["partition"], row["offset"], value_of(row), row["key"].decode(), stamp)


class _Version(NamedTuple):
    commit: TableCommit
    rows: tuple[Row, ...]
    properties: Mapping[str, str]

    @property
    def is_noted(self) -> bool:
        """Whether the properties tell the ends of the rows."""
        facts = read_facts(self.properties).get(TOPIC)
        known = {} if facts is None else facts.partitions
        return all(p in known and offset < known[p].end for p, offset, *_ in self.rows)


class _Conf:
    def set(self, *_: object) -> None:
        pass

    def unset(self, *_: object) -> None:
        pass


class _Session:
    conf = _Conf()


class DeltaModel:
    """A table: its versions, of which the history shows those from ``first`` on."""

    def __init__(self) -> None:
        self.remove()

    def remove(self) -> None:
        self.versions: list[_Version] = []
        self.first = 0
        self.transactions: dict[str, int] = {}
        self.deleted: dict[str, Row] = {}
        """By key, its newest row without a value; a table of its own, in this one's folder."""
        self.of_original: dict[str, Row] = {}
        """The same of the table that this one is a clone of."""
        self.id = str(uuid.uuid4())

    def commit(
        self,
        operation: str,
        *,
        rows: tuple[Row, ...] | None = None,
        properties: Mapping[str, str] | None = None,
        metadata: str | None = None,
        **parameters: str,
    ) -> None:
        last = self.versions[-1] if self.versions else None
        kept_rows = last.rows if last else ()
        kept = last.properties if last else {}
        commit = TableCommit(len(self.versions), operation, parameters, metadata)
        found = kept_rows if rows is None else rows
        self.versions.append(_Version(commit, found, kept if properties is None else properties))

    def write(self, options: Mapping[str, str], operation: str, rows: tuple[Row, ...]) -> None:
        """Commit rows, unless the transaction's version is known."""
        app, version = options["txnAppId"], int(options["txnVersion"])
        if self.transactions.get(app, -1) >= version:
            return
        self.transactions[app] = version
        self.commit(operation, rows=rows, metadata=options["userMetadata"], mode="Append")

    def restore(self, version: int) -> None:
        old = self.versions[version]
        self.commit("RESTORE", rows=old.rows, properties=old.properties, version=str(version))

    def clone(self) -> None:
        """Let a clone of the newest version be in its place."""
        last, of_original = self.versions[-1], {**self.of_original, **self.deleted}
        self.remove()
        self.of_original = of_original
        self.commit("CLONE", rows=last.rows, properties=last.properties)


class _ModelTable:
    """What a run sees of a table, as :class:`~kafkalog.jobs.pipelines.delta_tables.DeltaTable`."""

    def __init__(self, model: DeltaModel) -> None:
        self.model, self.path, self.spark = model, "model", _Session()
        self.partition_columns: list[str] = []

    def create(self, *_: object) -> None:
        if not self.model.versions:
            self.model.commit("WRITE", mode="Append")

    @property
    def exists(self) -> bool:
        return bool(self.model.versions)

    def refresh(self) -> None:
        self.__dict__.pop("properties", None)

    @property
    def id(self) -> str:
        return self.model.id

    def commits(self, most: int | None = None) -> list[TableCommit]:
        found = [each.commit for each in self.model.versions[self.model.first :]][::-1]
        return found[:most]

    def commits_after(self, version: int) -> list[TableCommit]:
        return [each.commit for each in self.model.versions[version + 1 :]][::-1]

    @cached_property
    def properties(self) -> dict[str, str]:
        return dict(self.model.versions[-1].properties) if self.model.versions else {}

    def set_properties(self, properties: Mapping[str, str]) -> None:
        if any(self.properties.get(name) != value for name, value in properties.items()):
            self.properties.update(properties)
            known = {**self.model.versions[-1].properties, **properties}
            self.model.commit("SET TBLPROPERTIES", properties=known)


class _Held(HeldByTable):
    def _largest_offsets(self) -> dict[TopicPartition, int]:
        model = self.table.model  # type: ignore[attr-defined]
        found: dict[TopicPartition, int] = {}
        for partition, offset, *_ in model.versions[-1].rows if model.versions else ():
            key = TopicPartition(TOPIC, partition)
            found[key] = max(offset, found.get(key, 0))
        return found


class LocalCheckpoint(CheckpointFolder):
    def ends(self, batch_id: int) -> Mapping[TopicPartition, int]:
        return QueryCheckpoint(Path(self.folder)).ends(batch_id)

    def put_aside(self) -> str | None:
        aside = put_checkpoint_aside(Path(self.folder))
        self.__dict__.pop("planned", None)
        self.__dict__.pop("ended", None)
        return None if aside is None else str(aside)

    def _is_there(self, path: str) -> bool:
        return Path(path).exists()

    def _read(self, path: str) -> str:
        return Path(path).read_text()

    def _last(self, kind: str) -> int | None:
        return last_batch(Path(self.folder) / kind)


class _Frame:
    """The rows of a micro-batch, which are read when they are called for."""

    def __init__(self, read: Callable[[], pa.Table]) -> None:
        self._read = read
        self._kept: pa.Table | None = None

    def __call__(self) -> pa.Table:
        return self._read() if self._kept is None else self._kept

    def persist(self) -> _Frame:
        self._kept = self._read()
        return self

    def unpersist(self) -> None:
        self._kept = None


class _ModelTables(_Tables):
    """The tables of an archive, whose rows go to a model."""

    step: Callable[[str], None] = staticmethod(lambda _: None)

    def _write(self, each: Any, part: Any, rows: Any) -> None:
        left = without_rows_below(rows(), part.first).to_pylist()
        if each is self.newest:
            self._merge(each, part, left)
            return
        new = tuple(map(_row_of, left))
        with each.committing(part.after, each.table.spark) as options:
            model = each.table.model
            model.write(options, "WRITE", model.versions[-1].rows + new)

    def _merge(self, each: Any, part: Any, left: list[dict[str, Any]]) -> None:
        """Do what MERGE does: first for the keys that are gone, and then in the table."""
        model, newest = each.table.model, dict[str, Row]()
        for new in map(_row_of, left):
            if new.key not in newest or new.is_newer(newest[new.key]):
                newest[new.key] = new
        for new in newest.values():
            known = model.deleted.get(new.key)
            if new.value[0] == "x" and (known is None or new.is_newer(known)):
                model.deleted[new.key] = new
        self.step("gone keys kept")
        merged = {row.key: row for row in model.versions[-1].rows}
        for new in newest.values():
            older = model.deleted.get(new.key)
            if older is not None and new.value[0] != "x" and not new.is_newer(older):
                continue
            if new.key not in merged or new.is_newer(merged[new.key]):
                merged[new.key] = new
        rows = tuple(row for row in merged.values() if row.value[0] != "x")
        with each.committing(part.after, each.table.spark) as options:
            model.write(options, "MERGE", rows)

    def _empty(self, each: Any) -> None:
        each.look()
        with each.committing(TargetState(), each.table.spark) as options:
            each.table.model.write(options, "DELETE", ())
        each.table.model.deleted.clear()
        each.table.properties.pop(property_of(TOPIC), None)
        each.table.model.commit("UNSET TBLPROPERTIES", properties={})

    def _copy_deleted(self, newest: Any) -> None:
        model = newest.table.model
        model.deleted.update(model.of_original)
        model.of_original = {}

    def _forget_deleted_above(self, newest: Any) -> None:
        model, held = newest.table.model, newest.look()
        for key, row in [*model.deleted.items()]:
            if row.offset >= (held.end_of(TopicPartition(TOPIC, row.partition)) or 0):
                del model.deleted[key]

    def _compact(self) -> None:
        for each in self._held:
            each.table.model.commit("OPTIMIZE")  # type: ignore[attr-defined]


class Archived(Mirrored):
    """A table with each record once."""

    ways = ("--from-target", "--rebuild", "another TABLE", RESTORE)
    offsets_kept = False

    def make_way(self, way: str) -> None:
        if way == RESTORE:
            versions = self.model.versions
            known = range(self.model.first, len(versions))
            clean = [n for n in known if all(row.value != _FOREIGN for row in versions[n].rows)]
            if clean:
                self.model.restore(clean[-1])
                self._set_back(clean[-1])
        super().make_way(way)

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.model = DeltaModel()
        self._noted: dict[int, Held] = {}

    def keep(self) -> None:
        """Let Delta clean up its log, or put files together."""
        if self.model.versions:
            noted = [n for n, each in enumerate(self.model.versions) if each.is_noted]
            if noted and self._chance.random() < 0.5:
                self.model.first = max(self.model.first, self._chance.choice(noted))
                self._forget_history()
            self.model.commit(self._chance.choice(("OPTIMIZE", "VACUUM END")))
            self._noted[self.version] = self.holds

    def put_back(self) -> None:
        """Restore an older version."""
        if not self.model.versions:
            return
        version = self._chance.randrange(self.model.first, len(self.model.versions))
        self.model.restore(version)
        self._set_back(version)

    def _set_back(self, version: int) -> None:
        known = [each for each in self._noted if each <= version] or [*self._noted][:1]
        passed = frozenset() if version in self._noted else self.passed
        self.holds = self._noted[max(known)] if known else Held()
        if self.model.first:
            self._forget_history()
        if version not in self._noted:  # amid a run that was killed, or emptied it
            self.held = self.ends()
            self.most = {n: max(end, self.held.get(n, 0)) for n, end in self.most.items()}
        self.passed |= passed
        self._noted[self.version] = self.holds

    def remove(self) -> None:
        self.model.remove()
        self._begin()

    def replace(self) -> None:
        """Let it be replaced by a clone, or by an empty one."""
        if self.model.versions and self._chance.random() < 0.5:
            self.clone()
            return
        self.remove()
        if self._chance.random() < 0.5:
            self.model.commit("CREATE TABLE")

    def clone(self) -> None:
        if self.model.versions[-1].is_noted:
            self.model.clone()
            self._forget_history()
            self._noted = {0: self.holds}

    def _forget_history(self) -> None:
        """Note that the rows tell alone what is held: where there are none, nothing."""
        ends = self.ends()
        self.held = {n: end if n in ends else 0 for n, end in self.held.items()}

    def write(self) -> None:
        if self.model.versions:
            foreign = Row(0, 1000 + self.version, _FOREIGN, _FOREIGN, 1000 + self.version)
            rows = (*self.model.versions[-1].rows, foreign)
            self.model.commit("WRITE", rows=rows, mode="Append")
            self.is_foreign = True
            self._noted[self.version] = self.holds

    def cut(self) -> None:
        self.keep()

    def take_another(self, way: str) -> None:
        super().take_another(way)
        self.model = DeltaModel()

    def _begin(self) -> None:
        super()._begin()
        self._noted = {}

    def run(self, source: Source, step: Callable[[str], None], way: str = "", **given: Any) -> None:
        options = self._reading(given)
        archive = self.archive(source, "model", way, options)
        given = {"path": archive.log, "subscribe": TOPIC}
        parsed = ReadOptions.parse({**options, **given})
        table = _Held(_ModelTable(self.model))  # type: ignore[arg-type]
        tables = _ModelTables(
            archive,
            FactsOfLogs(parsed.paths, archive.topics),
            SourceLogs(parsed),
            LocalCheckpoint(None, archive.checkpoint),  # type: ignore[arg-type]
            *self._in_archive(table),
        )
        tables.step = step
        chosen = tables.prepare("", {"startingOffsets": "earliest", **options})
        step("prepared")

        def take(read: Callable[[], pa.Table], number: int) -> None:
            tables.take(_Frame(read), number)  # type: ignore[arg-type]

        CheckpointedQuery(self.checkpoint, {**chosen, **given}, take, step).run()
        tables.finish()

    def _in_archive(self, table: HeldByTable) -> tuple[HeldByTable | None, HeldByTable | None]:
        """Give the table of all records, and that of the newest ones."""
        return table, None

    def archive(self, source: Source, table: str, way: str, options: Mapping[str, str]) -> Archive:
        if way == "--rebuild":
            self.is_foreign = False
        return Archive(
            log=str(source.path),
            table=table,
            topics=(TOPIC,),
            checkpoint=str(self.checkpoint),
            options=options,
            from_target=way == "--from-target",
            rebuild=way == "--rebuild",
        )

    @property
    def version(self) -> int:
        return len(self.model.versions) - 1

    def every_row(self) -> Iterable[Row]:
        return self.model.versions[-1].rows if self.model.versions else ()

    def rows(self) -> Rows:
        found: Rows = {}
        for partition, offset, value, *_ in self.every_row():
            rows = found.setdefault(partition, {})
            assert offset not in rows, f"{TOPIC}-{partition}@{offset} is there twice"
            rows[offset] = value
        return found

    def ends(self) -> Ends:
        return {number: max(rows) + 1 for number, rows in self.rows().items()}

    def check(self, source: Source, *lines: Line) -> None:
        check_rows(self.rows(), source, self.passed)

    def note(self, *lines: Line) -> None:
        super().note(*lines)
        assert self.copied is not None
        self.most = self.copied.ends  # what lies above the last row, and is gone, was taken too
        self._noted[self.version] = self.holds

    def settle(self, source: Source) -> None:
        super().settle(source)
        self._noted[self.version] = self.holds


def check_rows(rows: Rows, source: Source, passed: frozenset[str]) -> None:
    """See that rows are all that a source has, but those that were gone for a run."""
    for number, held in source.rows().items():
        found = held.items() - rows.get(number, {}).items()
        missing = sorted(offset for offset, value in found if value not in passed)
        assert not missing, f"the table lacks {missing} of {TOPIC}-{number}"


class Newest(Archived):
    """A table of the newest row of each key: ``--latest TABLE``."""

    has_tombstones = True

    def _in_archive(self, table: HeldByTable) -> tuple[HeldByTable | None, HeldByTable | None]:
        return None, table

    def ends(self) -> Ends:
        found: Ends = {}
        for row in self.every_row():
            found[row.partition] = max(row.offset + 1, found.get(row.partition, 0))
        return found

    def check(self, source: Source, *lines: Line) -> None:
        table = {row.key: row for row in self.every_row()}
        log: dict[str, tuple[int, str]] = {}
        for rows in source.rows().values():
            for value in rows.values():
                key, number = source.keys[value], int(value[1:])
                log[key] = max(log.get(key, (-1, "")), (number, value))
        for key, (number, value) in log.items():
            found = table.get(key)
            newest = max(int(v[1:]) for v in self._taken(source) if source.keys[v] == key)
            if value in self.passed:
                continue
            if value[0] == "x" and newest == number:
                assert found is None, f"{key} was deleted by {value}, and is there: {found}"
            elif newest == number:
                assert found is not None, f"{key} is not there, and {value} is its newest"
                assert found.value == value, f"{found.value} is there of {key}, not {value}"
            elif found is not None:
                assert int(found.value[1:]) >= number, f"{found} is older than {value}"

    def _taken(self, source: Source) -> Iterable[str]:
        """Give all rows of the line: of those that are gone nobody knows whether they were seen."""
        return [value for rows in source.line.rows.values() for value in rows.values()]

    def note(self, *lines: Line) -> None:
        rows = list(self.every_row())
        keys = [row.key for row in rows]
        assert len(keys) == len({*keys}), f"a key is there twice: {rows}"
        for line in lines:
            if all(line.may_have(p, {offset: value}) for p, offset, value, *_ in rows):
                self.copied, self.held, self.most = line.copied(), self.ends(), line.ends
                self._noted[self.version] = self.holds
                return
        raise AssertionError(f"the table has {rows}, which no line has")


class WithNewest(Archived):
    """A table of all rows, and one of the newest ones beside it: each is set back by itself."""

    ways = (*Archived.ways, _OTHER_LATEST)
    has_several = True
    has_tombstones = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.newest = Newest(*given)
        self.newest.fresh = self.fresh  # type: ignore[method-assign]  # names of both are new

    def _in_archive(self, table: HeldByTable) -> tuple[HeldByTable | None, HeldByTable | None]:
        return table, _Held(_ModelTable(self.newest.model))  # type: ignore[arg-type]

    def archive(self, source: Source, table: str, way: str, options: Mapping[str, str]) -> Archive:
        if way == "--rebuild":
            self.newest.is_foreign = False
        return super().archive(source, table, way, options)

    def make_way(self, way: str) -> None:
        if way == RESTORE:
            self.newest.make_way(way)
        super().make_way(way)

    def _either(self, of_this: Callable[[], None], of_newest: Callable[[], None]) -> None:
        self._chance.choice((of_this, of_newest))()

    def keep(self) -> None:
        self._either(super().keep, self.newest.keep)

    def put_back(self) -> None:
        self._either(super().put_back, self.newest.put_back)

    def remove(self) -> None:
        self._either(super().remove, self.newest.remove)

    def replace(self) -> None:
        self._either(super().replace, self.newest.replace)

    def write(self) -> None:
        self._either(super().write, self.newest.write)

    def take_another(self, way: str) -> None:
        """Take another table of the two, as the way says, and another checkpoint for both."""
        if way == _OTHER_LATEST:
            self.newest.take_another(way)
            self.checkpoint, self._older, self.read = self.newest.checkpoint, None, ()
        else:
            super().take_another(way)
            self.newest.checkpoint, self.newest._older = self.checkpoint, None

    def reasons(self, source: Source) -> list[str]:
        return super().reasons(source) + self.newest.reasons(source)

    def check(self, source: Source, *lines: Line) -> None:
        super().check(source, *lines)
        self.newest.check(source, *lines)

    def note(self, *lines: Line) -> None:
        super().note(*lines)
        self.newest.note(*lines)

    def pass_over(self, source: Source, *, is_rebuilt: bool = False) -> None:
        super().pass_over(source, is_rebuilt=is_rebuilt)
        self.newest.pass_over(source, is_rebuilt=is_rebuilt)

    def may_hold(self, *lines: Line) -> None:
        super().may_hold(*lines)
        self.newest.may_hold(*lines)

    def settle(self, source: Source) -> None:
        super().settle(source)
        self.newest.settle(source)


class InFiles(OfQuery):
    """A table of files, as Spark's file sink writes them: ``--format parquet``."""

    ways = ("another TABLE", "remove both", "restore both of one time")
    knows_offsets = False
    continues_after_loss = False

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._runs = 0
        self._backup = Backup(self)

    def settle(self, source: Source) -> None:
        super().settle(source)
        self._backup = Backup(self)

    def make_way(self, way: str) -> None:
        if way == "remove both":
            self.remove()
            self.lose_checkpoint()
        elif way == "restore both of one time":
            self._backup.restore()
        else:
            super().make_way(way)

    def run(self, source: Source, step: Callable[[str], None], way: str = "", **given: Any) -> None:
        options = self._reading(given)
        archive = Archive(
            log=str(source.path),
            table=str(self.path),
            topics=(TOPIC,),
            checkpoint=str(self.checkpoint),
            table_format="parquet",
            options=options,
        )
        checkpoint = LocalCheckpoint(None, archive.checkpoint)  # type: ignore[arg-type]
        with patch.multiple(archiving, **_LOCAL):
            archiving._refuse_other_times(archive, None, checkpoint)  # type: ignore[arg-type]
        step("prepared")
        chosen = {**archive._kept_ids, "startingOffsets": "earliest", **options}
        chosen |= {"path": archive.log, "subscribe": TOPIC}

        self._runs = mine = self._runs + 1

        def take(read: Callable[[], pa.Table], number: int) -> None:
            if self._runs != mine:
                raise CommitError("Spark: concurrent update to the checkpoint")
            if (self._log / str(number)).exists():
                return
            rows = [(r["partition"], r["offset"], value_of(r)) for r in read().to_pylist()]
            self._log.mkdir(parents=True, exist_ok=True)
            file = self.path / f"part-{uuid.uuid4()}.parquet"
            file.write_text(json.dumps(rows))
            step(f"batch {number} in a file")
            if self._runs != mine:
                raise CommitError("Spark: race while writing a batch")
            (self._log / str(number)).write_text(file.name)
            (self._log / f".{number}.plan").write_text(self._plan(number))

        query = CheckpointedQuery(self.checkpoint, chosen, take, step)
        query_id = query.note_query()
        step("started")
        with patch.multiple(archiving, **_LOCAL):
            archiving._note_query(archive, None, query_id)  # type: ignore[arg-type]
        query.run()

    @property
    def _log(self) -> Path:
        return self.path / "_spark_metadata"

    def _plan(self, number: int) -> str:
        """Give what the checkpoint knows of a micro-batch, and of which query it is."""
        planned = self.checkpoint / "offsets" / str(number)
        if not planned.exists():
            return ""
        return (self.checkpoint / "metadata").read_text() + planned.read_text()

    @property
    def _is_of_time(self) -> bool:
        """Whether the table has the micro-batches that the checkpoint knows, and no other."""
        written = last_batch(self._log) if self._log.is_dir() else None
        planned, ended = (last_batch(self.checkpoint / log) for log in ("offsets", "commits"))
        if written is None:  # files that no micro-batch has come to name are of its checkpoint
            return ended is None and (planned is not None or not any(self.path.glob("part-*")))
        plans = self._log.glob(".*.plan")
        is_same = all(
            each.read_text() == self._plan(int(each.name.split(".")[1])) for each in plans
        )
        return is_same and (-1 if ended is None else ended) <= written <= (
            -1 if planned is None else planned
        )

    def rows(self) -> Rows:
        found: Rows = {}
        for entry in sorted(self._log.glob("[0-9]*")):
            file = self.path / entry.read_text()
            for number, offset, value in json.loads(file.read_text()):
                rows = found.setdefault(number, {})
                assert offset not in rows, f"{TOPIC}-{number}@{offset} is there twice"
                rows[offset] = value
        return found

    def ends(self) -> Ends:
        return {number: max(rows) + 1 for number, rows in self.rows().items()}

    def replace(self) -> None:
        self.remove()
        self.path.mkdir()

    def write(self) -> None:
        """Who writes files there that Spark's sink does not know of writes nothing to the table."""

    def cut(self) -> None:
        """Nobody cuts it."""

    def reasons(self, source: Source) -> list[str]:
        found = super().reasons(source)
        if not self._is_of_time:
            found.append("table and checkpoint are of two times")
        return found + self._reasons_of_reader(source)

    def check(self, source: Source, *lines: Line) -> None:
        check_rows(self.rows(), source, self.passed)

    def note(self, *lines: Line) -> None:
        """Note it by partitions: a loss in one is told once what was planned of all is there."""
        known = (*lines, self.copied) if self.copied else lines
        found = lines[0].copied()
        for number, held in self.rows().items():
            fits = [line for line in known if line.may_have(number, held)]
            assert fits, f"{TOPIC}-{number} has {held}, which no line has"
            found.rows[number] = dict(fits[0].rows[number])
            found.number = min(found.number, fits[0].number)
        self.copied, self.held, self.most = found, self.ends(), found.ends


def _names_in(_: object, folder: str) -> list[str]:
    return [each.name for each in Path(folder).iterdir()] if Path(folder).is_dir() else []


def _write(_: object, path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


_LOCAL: Final[dict[str, Any]] = {
    "list_names": _names_in,
    "exists": lambda _, path: Path(path).exists(),
    "read_text": lambda _, path: Path(path).read_text(),
    "write_text": _write,
}
"""What Hadoop does with files, without it."""
