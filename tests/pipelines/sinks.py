"""Topics that get the rows of a source at other offsets: by ingest, and by the sink itself."""

from __future__ import annotations

import hashlib
import uuid
from typing import TYPE_CHECKING, Any, Final

from tests.pipelines.archives import LocalCheckpoint
from tests.pipelines.sources import TOPIC
from tests.pipelines.targets import Backup, OfQuery, reached
from tests.support.copying import without_rows_below
from tests.support.micro_batches import CheckpointedQuery
from tests.support.sinking import Writer

import kafkalog
from kafkalog.checkpoints.query_checkpoint import last_batch
from kafkalog.errors import CommitError
from kafkalog.jobs.pipelines.copied_logs import topics_of_target
from kafkalog.jobs.pipelines.ingesting import CountedIngest, Ingest
from kafkalog.jobs.pipelines.inputs import Input
from kafkalog.streaming.admin.topics import delete

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from tests.pipelines.sources import Line, Source

__all__ = ["Ingested", "Streamed", "Versioned"]

_FOREIGN: Final = "somebody else's"
_COLUMNS: Final = ["key", "value"]


class _IntoTopic(OfQuery):
    """A topic of which nothing is known but which rows it has, each once."""

    offsets_kept = False
    partitions_kept = False
    continues_after_loss = False

    def cut(self) -> None:
        """What is cut off is gone: nothing there tells which rows of the source it was."""

    def write(self) -> None:
        """Others may write to it."""
        super().write()
        self.is_foreign = False

    def values(self) -> set[str]:
        found = [value for rows in self.rows().values() for value in rows.values()]
        found = [value for value in found if value != _FOREIGN]
        assert len(found) == len({*found}), f"rows are there twice: {sorted(found)}"
        return {*found}

    def check(self, source: Source, *lines: Line) -> None:
        held = [value for rows in source.rows().values() for value in rows.values()]
        missing = {*held} - self.values() - self.passed
        assert not missing, f"the topic lacks {sorted(missing)}"

    def note(self, *lines: Line) -> None:
        """Note it by partitions: a loss in one is told once what was planned of all is there."""
        values, found = self.values(), lines[0].copied()
        known = (*lines, self.copied) if self.copied else lines
        for number in {number for line in known for number in line.rows}:
            of_lines = [line for line in known if number in line.rows]
            best = max(of_lines, key=lambda line: len(values & {*line.rows[number].values()}))
            found.rows[number] = dict(best.rows[number])
            found.number = min(found.number, best.number)
        left = values - {value for rows in found.rows.values() for value in rows.values()}
        assert not left, f"the topic has {sorted(values)}, which no line has: {sorted(left)}"
        self.copied, self.most = found, found.ends
        self.held = reached(found, self.rows())


class Ingested(_IntoTopic):
    """A topic that knows how far it has taken its source in."""

    ways = ("--from-target continues", "kafkalog topic delete", "another topic")

    def run(self, source: Source, step: Callable[[str], None], way: str = "", **given: Any) -> None:
        options = {"subscribe": TOPIC, "startingOffsets": "earliest", **self._reading(given)}
        ingest = _Ingest(
            Ingest(
                source=Input(str(source.path), "kafkalog", options=options),
                log=str(self.path),
                topic=TOPIC,
                checkpoint=str(self.checkpoint),
                options={"numPartitions": "2", "flush": "os"},
                from_target=way in {"--from-target continues", "kafkalog topic delete"},
            )
        )
        chosen = ingest.prepare()
        step("prepared")
        reading = {**chosen.options, "path": chosen.place}
        CheckpointedQuery(self.checkpoint, reading, ingest.take, step).run()  # type: ignore[arg-type]

    def make_way(self, way: str) -> None:
        super().make_way(way)
        if way == "kafkalog topic delete":
            delete([str(self.path)], TOPIC)
            self._begin()


class _Ingest(CountedIngest):
    """One whose rows come from no Spark."""

    def __init__(self, given: Ingest) -> None:
        super().__init__(given, None)  # type: ignore[arg-type]
        self._folder = LocalCheckpoint(None, given.checkpoint)  # type: ignore[arg-type]

    def _append(self, rows: Any, batch: Any, first: Any, copied: str) -> None:
        given = self._given
        left = without_rows_below(rows(), first).select(_COLUMNS)
        if given.topic not in topics_of_target(given.log) and not left.num_rows:
            self._create()
        options = {**given.options, "copiedFrom": copied}
        kafkalog.append(given.log, given.topic, left, options=options)


class Streamed(_IntoTopic):
    """A topic that a query writes to; it knows the number of the last batch, and what it was of."""

    ways = ("restore the checkpoint that belongs to these log directories", "a missing mount")
    """Where topic and checkpoint are restored of one time, either is what these words ask for."""
    knows_offsets = False

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._is_apart = self._has_written = False
        self._runs = 0
        self._last: tuple[int, str] | None = None
        """The last micro-batch that was committed, and what it was planned to hold."""
        self._kept_last: tuple[int, str] | None = None
        self._backup, self._last_in_backup = Backup(self), self._last

    def settle(self, source: Source) -> None:
        super().settle(source)
        if not self._is_apart:
            self._backup, self._last_in_backup = Backup(self), self._last

    def make_way(self, way: str) -> None:
        if way in self.ways:
            self._backup.restore()
            self._last = self._last_in_backup

    def run(self, source: Source, step: Callable[[str], None], way: str = "", **given: Any) -> None:
        self._has_written = False
        self._is_apart = bool(self._reasons_of_time())
        options = {"startingOffsets": "earliest", **self._reading(given)}
        options |= {"path": str(source.path), "subscribe": TOPIC}
        options["stateLocation"] = str(self.checkpoint / "kafkalog")
        given = {"topic": TOPIC, "numPartitions": "2", "flush": "os"}
        writer = Writer(self.path, name="ingest", run=str(uuid.uuid4()), **given)

        self._runs = mine = self._runs + 1

        def take(read: Callable[[], pa.Table], number: int) -> None:
            self._check_alone(mine)
            self._write(writer, number, read().select(_COLUMNS), step)
            self._has_written = True

        CheckpointedQuery(self.checkpoint, options, take, step).run()

    def _check_alone(self, run: int) -> None:
        """What another run has read since, the topic's own rules tell."""

    def _write(
        self, writer: Writer, number: int, rows: pa.Table, step: Callable[[str], None]
    ) -> None:
        runs = writer.stage(number, *rows.combine_chunks().to_batches())
        step(f"batch {number} staged")
        writer.commit(number, runs, digest=self._digest(number))
        self._last = number, self._digest(number)

    def _digest(self, number: int) -> str:
        planned = (self.checkpoint / "offsets" / str(number)).read_bytes()
        return hashlib.sha256(planned).hexdigest()

    def reasons(self, source: Source) -> list[str]:
        of_reader = self._reasons_of_reader(source)
        return super().reasons(source) + self._reasons_of_time() + of_reader

    def _reasons_of_time(self) -> list[str]:
        """Give why the next micro-batch does not follow the last one that the topic knows."""
        planned, ended = (last_batch(self.checkpoint / log) for log in ("offsets", "commits"))
        is_again = planned is not None and planned != ended
        following = (-1 if planned is None else planned) + (not is_again)
        last, digest = self._last or (-1, "")
        if following == last + 1 or (
            following,
            self._digest(last) if is_again and following == last else None,
        ) == (last, digest):
            return []
        return [f"micro-batch {following} does not follow {last}"]

    def keep(self) -> None:
        if self.path.is_dir():
            self._kept_last = self._last
        super().keep()

    def put_back(self) -> None:
        if self._kept is not None:
            self._last = self._kept_last
        super().put_back()

    def take_other_checkpoint(self) -> None:
        """Under one ``transactional.id`` numbers of batches tell, and not whose they are."""

    def check(self, source: Source, *lines: Line) -> None:
        if self._has_written or not self._is_apart:  # what writes nothing sees nothing
            super().check(source, *lines)

    def replace(self) -> None:
        """To delete what a query writes to, and let it go on, loses what was there."""

    def _begin(self) -> None:
        super()._begin()
        self._last = None


class Versioned(Streamed):
    """A topic that ``foreachBatch`` writes to, by the numbers of its batches as versions.

    What such numbers cannot tell, an older checkpoint or topic, is not among its histories.
    """

    _values: tuple[int, set[bytes]] = -1, set()
    """The version that was written last, and its values."""
    ways = ("leave this write out",)

    def make_way(self, way: str) -> None:
        last = last_batch(self.checkpoint / "offsets")
        (self.checkpoint / "commits" / str(last)).write_text("v1\n{}")

    def _check_alone(self, run: int) -> None:
        """Fail as Spark does where two runs share a checkpoint."""
        if self._runs != run:
            raise CommitError("Spark: concurrent update to the checkpoint")

    def _write(
        self, writer: Writer, number: int, rows: pa.Table, step: Callable[[str], None]
    ) -> None:
        kafkalog.append(
            self.path,
            TOPIC,
            rows,
            transactional_id="batches",
            version=number,
            options={"numPartitions": 2, "flush": "os"},
        )
        self._values = number, {v.as_py() for v in rows["value"]}

    def _reasons_of_time(self) -> list[str]:
        """Numbers tell alone what is there already."""
        return []

    def reasons(self, source: Source) -> list[str]:
        """Give why; one is that a batch that is there comes again, and its rows have gone."""
        found, starts = super().reasons(source), self.starts()
        there = {
            value.encode()
            for number, end in self.planned().items()
            for offset, value in source.rows().get(number, {}).items()
            if starts.get(number, 0) <= offset < end
        }
        if self._values[0] == last_batch(self.checkpoint / "offsets") and self._values[1] != there:
            found.append("the last batch has other rows by now")
        return found

    def put_back(self) -> None:
        """It would lack what its checkpoint has read since."""

    def remove(self) -> None:
        """As :meth:`put_back`."""

    def put_checkpoint_back(self) -> None:
        """Its batches would have numbers that are known, and other rows."""

    def lose_checkpoint(self) -> None:
        """As :meth:`put_checkpoint_back`."""

    def take_other_checkpoint(self) -> None:
        """As :meth:`put_checkpoint_back`."""
