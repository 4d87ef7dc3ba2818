"""Log directories that get the topics of a table back, which was archived a moment ago."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
from tests.pipelines.archives import Archived
from tests.pipelines.sources import TOPIC, bounds
from tests.pipelines.targets import Target

import kafkalog
from kafkalog.jobs import restoring
from kafkalog.jobs.pipelines.restore_plan import Seen
from kafkalog.jobs.pipelines.topic_facts import read_facts
from kafkalog.jobs.restoring import Restore
from kafkalog.streaming.admin.topics import delete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tests.pipelines.archives import Row
    from tests.pipelines.sources import Line, Source
    from tests.pipelines.targets import Ends

__all__ = ["Restored"]

_STEPS = ("create", "set_bounds", "alter")


class Restored(Target):
    """A topic at the offsets that it had, with the same starts and ends."""

    ways = ("kafkalog topic delete", "other log directories")
    continues_after_loss = False
    has_tombstones = True
    is_before_1970 = True

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._tables = 0
        self._whole: tuple[Line, Mapping[int, tuple[int, int]]] | None = None
        """The line and the bounds of which this has all, since the last run went through."""

    def run(self, source: Source, step: Callable[[str], None], way: str = "", **given: Any) -> None:
        self._tables += 1
        folder = self.folder / f"table-{self._tables}"
        folder.mkdir()
        table = Archived(folder, self._chance)
        table.run(source, lambda _: None)
        version = table.model.versions[-1]
        restore = _Restore(
            table="model",
            log=str(self.path),
            topics=(TOPIC,),
            config={},
        )
        seen: dict[int, Seen] = {}
        for partition, offset, *_ in sorted(version.rows):
            known = seen.get(partition, Seen(0, offset, offset, None))
            seen[partition] = Seen(known.rows + 1, known.first, offset, None)
        with _stepping(step):
            restore.restore_topics(version.rows, read_facts(version.properties), {TOPIC: seen})  # type: ignore[arg-type]

    def make_way(self, way: str) -> None:
        if way == "kafkalog topic delete":
            delete([str(self.path)], TOPIC)
            self._begin()
        if way == "other log directories":
            self.take_another(way)

    def planned(self) -> Ends:
        return {}

    def starts(self) -> Ends:
        return {}

    def reasons(self, source: Source) -> list[str]:
        there = bounds(self.path)
        if self._whole is not None and self._whole == (source.line, bounds(source.path)):
            return []
        if any(end for _, end in there.values()):
            return ["it has records of another restore, or of somebody else"]
        if any(end > there.get(number, (0, 0))[1] for number, end in self.held.items()):
            return ["it was cut"]
        return ["it has other partitions"] if there and len(there) != len(source.line.rows) else []

    def _begin(self) -> None:
        super()._begin()
        self._whole = None

    def put_back(self) -> None:
        self._whole = None
        super().put_back()

    def cut(self) -> None:
        self._whole = None
        super().cut()

    def lose_last_commit(self) -> None:
        """It has no checkpoint."""

    def take_other_checkpoint(self) -> None:
        """It has no checkpoint."""

    def check(self, source: Source, *lines: Line) -> None:
        rows, now = self.rows(), source.rows()
        rows = {n: {o: v for o, v in r.items() if v != "somebody else's"} for n, r in rows.items()}
        for number, held in now.items():
            there = rows.get(number, {})
            found = held.items() - there.items()  # more, where the table was made anew since
            missing = {row for row in found if row[1] not in self.passed}
            assert not missing, f"{TOPIC}-{number} lacks {sorted(missing)}"
        if not self.is_foreign:
            there_now, wanted = bounds(self.path), bounds(source.path)
            assert there_now == wanted, f"the logs are {there_now}, and were {wanted}"
            self._whole = source.line.copied(), wanted

    def note(self, *lines: Line) -> None:
        rows = self.rows()
        for line in lines:
            if all(
                line.rows.get(number, {}).get(offset) == value
                for number, held in rows.items()
                for offset, value in held.items()
                if value != "somebody else's"
            ):
                self.held = self.ends()
                self.copied = line.below(self.held)
                return
        raise AssertionError(f"the copy has {rows}, which no line has")


class _Restore(Restore):
    """One whose rows come from no Spark."""

    def _write(self, rows: Iterable[Row], plan: Any, version: str) -> None:  # type: ignore[override]
        mine = [
            {**row._asdict(), "timestamp": row.stamp}
            | ({"value": None} if row.value[0] == "x" else {})
            for row in sorted(rows)
            if plan.bounds[row.partition].start <= row.offset < plan.bounds[row.partition].end
        ]
        columns = [("partition", pa.int32()), ("offset", pa.int64())]
        columns += [("key", pa.string()), ("value", pa.string()), ("timestamp", pa.int64())]
        table = pa.Table.from_pylist(mine, pa.schema(columns))
        given = {"preserveOffsets": "true", "flush": "os"}
        kafkalog.append(
            self.log, plan.topic, table, transactional_id=version, version=0, options=given
        )


def _stepping(step: Callable[[str], None]) -> Any:
    """Call it after each step of a restore."""

    def after(name: str) -> Any:
        done = getattr(restoring, name)

        def call(*given: Any, **named: Any) -> Any:
            found = done(*given, **named)
            step(f"{name} done")
            return found

        return call

    return patch.multiple(restoring, **{name: after(name) for name in _STEPS})
