"""An archive whose tables are models of Delta's: its decisions run as they are, without Spark.

The model has what they stand on: versions, transaction ids (a version that is known is skipped
without a word), RESTORE, which brings rows and properties back and no transaction ids,
``userMetadata`` of commits, a history that clean-up cuts short, and clones, which have none. A
clone, or a history, that begins between a micro-batch's rows and the note of their ends is left
out: the last batch below is not known there.
"""

from __future__ import annotations

import uuid
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.pipelines.sources import TOPIC, Line, Rows, bounds
from tests.pipelines.targets import Ends, Mirrored
from tests.support.copying import without_rows_below
from tests.support.micro_batches import CheckpointedQuery

from kafkalog.checkpoints.query_offsets import last_batch
from kafkalog.jobs.archiving import Archive, _Tables
from kafkalog.jobs.checkpoint_folder import CheckpointFolder
from kafkalog.jobs.continuation import TargetState
from kafkalog.jobs.copied_logs import SourceLogs, put_checkpoint_aside
from kafkalog.jobs.delta_state import HeldByTable
from kafkalog.jobs.delta_tables import TableCommit
from kafkalog.jobs.topic_facts import FactsOfLogs, property_of, read_facts
from kafkalog.model import TopicPartition
from kafkalog.streaming.commit.query_checkpoint import QueryCheckpoint
from kafkalog.streaming.source.read_options import ReadOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tests.pipelines.sources import Source

__all__ = ["Archived"]

Row = tuple[int, int, str]
"""Partition, offset, value."""


class _Version(NamedTuple):
    commit: TableCommit
    rows: tuple[Row, ...]
    properties: Mapping[str, str]

    @property
    def is_noted(self) -> bool:
        """Whether the properties tell the ends of the rows."""
        facts = read_facts(self.properties).get(TOPIC)
        known = {} if facts is None else facts.partitions
        return all(p in known and offset < known[p].end for p, offset, _ in self.rows)


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
        last = self.versions[-1]
        self.remove()
        self.commit("CLONE", rows=last.rows, properties=last.properties)


class _ModelTable:
    """What a run sees of a table, as :class:`~kafkalog.jobs.delta_tables.DeltaTable`."""

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
        for partition, offset, _ in model.versions[-1].rows if model.versions else ():
            key = TopicPartition(TOPIC, partition)
            found[key] = max(offset, found.get(key, 0))
        return found


class _LocalCheckpoint(CheckpointFolder):
    def ends(self, batch_id: int) -> Mapping[TopicPartition, int]:
        return QueryCheckpoint(Path(self.folder)).ends(batch_id)

    def put_aside(self) -> str | None:
        aside = put_checkpoint_aside(Path(self.folder))
        self.__dict__.pop("planned", None)
        self.__dict__.pop("ended", None)
        return None if aside is None else str(aside)

    def _last(self, kind: str) -> int | None:
        return last_batch(Path(self.folder) / kind)


class _ModelTables(_Tables):
    """The tables of an archive, whose rows go to a model."""

    def _write(self, each: Any, part: Any, rows: Any) -> None:
        left = without_rows_below(rows(), part.first)
        columns = (left[name].to_pylist() for name in ("partition", "offset", "value"))
        new = tuple((p, o, v.decode()) for p, o, v in zip(*columns, strict=True))
        with each.committing(part.after, each.table.spark) as options:
            model = each.table.model
            model.write(options, "WRITE", model.versions[-1].rows + new)

    def _empty(self, each: Any) -> None:
        each.look()
        with each.committing(TargetState(), each.table.spark) as options:
            each.table.model.write(options, "DELETE", ())
        each.table.properties.pop(property_of(TOPIC), None)
        each.table.model.commit("UNSET TBLPROPERTIES", properties={})

    def _compact(self) -> None:
        self.records.table.model.commit("OPTIMIZE")  # type: ignore[union-attr]


class Archived(Mirrored):
    """A table with each record once."""

    ways = ("--from-target", "--rebuild", "another TABLE")
    offsets_kept = False

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.model = DeltaModel()
        self._noted: dict[int, tuple[Line | None, Ends, bool]] = {}
        self._gone: dict[int, set[int]] = {}
        """By partition, what was gone from the source when the table got as far."""

    def keep(self) -> None:
        """Let Delta clean up its log, or put files together."""
        if self.model.versions:
            noted = [n for n, each in enumerate(self.model.versions) if each.is_noted]
            if noted and self._chance.random() < 0.5:
                self.model.first = max(self.model.first, self._chance.choice(noted))
            self.model.commit(self._chance.choice(("OPTIMIZE", "VACUUM END")))

    def put_back(self) -> None:
        """Restore an older version."""
        if not self.model.versions:
            return
        version = self._chance.randrange(self.model.first, len(self.model.versions))
        self.model.restore(version)
        self._set_back(version)

    def _set_back(self, version: int) -> None:
        known = [each for each in self._noted if each <= version]
        self.copied, held, self.is_foreign = self._noted[max(known)] if known else (None, {}, False)
        ends = self.ends()
        if version not in self._noted and self.copied:  # amid a run that was killed, or emptied it
            held = {n: min(end, ends.get(n, 0)) for n, end in held.items()}
            self.copied = self.copied.below(held)
        self.held = dict(held)
        self._gone = {n: {o for o in gone if o < held.get(n, 0)} for n, gone in self._gone.items()}

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
            self._noted = {0: (self.copied, dict(self.held), self.is_foreign)}

    def write(self) -> None:
        if self.model.versions:
            rows = (*self.model.versions[-1].rows, (0, 1000 + self.version, "foreign"))
            self.model.commit("WRITE", rows=rows, mode="Append")
            self.is_foreign = True

    def cut(self) -> None:
        self.keep()

    def take_another(self) -> None:
        super().take_another()
        self.model = DeltaModel()

    def _begin(self) -> None:
        super()._begin()
        self._noted, self._gone = {}, {}

    def run(self, source: Source, step: Callable[[str], None], way: str = "", **given: Any) -> None:
        options = {"fetchOffset.retryIntervalMs": "1", **given.get("options", {})}
        if self._chance.random() < 0.5:
            options["maxOffsetsPerTrigger"] = str(self._chance.randint(1, 6))
        archive = self.archive(source, "model", way, options)
        given = {"path": archive.log, "subscribe": TOPIC}
        parsed = ReadOptions.parse({**options, **given})
        tables = _ModelTables(
            archive,
            FactsOfLogs(parsed.paths, archive.topics),
            SourceLogs(parsed),
            _LocalCheckpoint(None, archive.checkpoint),  # type: ignore[arg-type]
            _Held(_ModelTable(self.model)),  # type: ignore[arg-type]
            None,
        )
        chosen = tables.prepare("", {"startingOffsets": "earliest", **options})
        step("prepared")
        query = CheckpointedQuery(self.checkpoint, {**chosen, **given}, tables.take, step)  # type: ignore[arg-type]
        query.run()
        tables.finish()

    def archive(self, source: Source, table: str, way: str, options: Mapping[str, str]) -> Archive:
        if way == "--rebuild":
            self.is_foreign, self._gone = False, {}
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
        for partition, offset, value in self.every_row():
            rows = found.setdefault(partition, {})
            assert offset not in rows, f"{TOPIC}-{partition}@{offset} is there twice"
            rows[offset] = value
        return found

    def ends(self) -> Ends:
        return {number: max(rows) + 1 for number, rows in self.rows().items()}

    def check(self, source: Source, *lines: Line) -> None:
        rows, now = self.rows(), source.rows()
        for number, (_, end) in bounds(source.path).items():
            held = now.get(number, {})
            gone = self._gone.setdefault(number, set())
            there = rows.get(number, {})
            missing = {offset for offset in held if there.get(offset) != held[offset]} - gone
            assert not missing, f"the table lacks {sorted(missing)} of {TOPIC}-{number}"
            gone.update({*range(end)} - held.keys() - there.keys())

    def note(self, *lines: Line) -> None:
        super().note(*lines)
        # What lies above the last row, and is gone from the log, was taken too.
        self._noted[self.version] = self.copied, dict(self.held), self.is_foreign
