"""The targets of pipelines, their checkpoints, and what a run may come to."""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from tests.pipelines.sources import TOPIC, Line, Rows, bounds, rows_in
from tests.support.copying import cut, run_mirror, run_replay

import kafkalog
from kafkalog.checkpoints.query_checkpoint import last_batch
from kafkalog.errors import UnknownTopicOrPartitionError
from kafkalog.jobs.mirroring import Mirror
from kafkalog.streaming.admin.topics import alter, create, delete

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.pipelines.sources import Source

__all__ = ["Backup", "Ends", "Held", "Mirrored", "OfQuery", "Replayed", "Target", "reached"]

Ends = dict[int, int]


class Held(NamedTuple):
    """What a target holds, as far as that is known; see :class:`Target`."""

    copied: Line | None = None
    held: Ends = {}  # noqa: RUF012 - nobody changes it
    most: Ends = {}  # noqa: RUF012
    is_foreign: bool = False
    others: tuple[Line, ...] = ()
    passed: frozenset[str] = frozenset()


class Backup:
    """A target and its checkpoint, of one time."""

    def __init__(self, target: Target) -> None:
        self._target, self._holds, self._read = target, target.holds, target.read
        self._folder = target.fresh("both-kept")
        for path in (target.path, target.checkpoint):
            if path.is_dir():
                shutil.copytree(path, self._folder / path.name)

    def restore(self) -> None:
        target = self._target
        target.holds, target.read = self._holds, self._read
        for path in (target.path, target.checkpoint):
            shutil.rmtree(path, ignore_errors=True)
            if (self._folder / path.name).is_dir():
                shutil.copytree(self._folder / path.name, path)


class Target(ABC):
    """What a pipeline writes to, and its checkpoint; what happens to both is noted.

    ``copied`` is the line of the source of which it holds the rows, as seen from outside after each
    run; None where nothing was copied yet. It holds what lies below ``held``, and may hold what
    lies below ``most``: what a run that was cut off has left, rows do not always tell.
    """

    ways: tuple[str, ...] = ("--from-target", "--rebuild", "another TO")
    topic = TOPIC
    offsets_kept = True
    """Whether a row has the offset that it has in the source."""
    partitions_kept = True
    """Whether a row is in the partition that it has in the source."""
    knows_offsets = True
    """Whether it tells what of the source it holds; else its checkpoint alone does."""
    continues_after_loss = True
    """Whether ``failOnDataLoss=false`` is followed; else what it leaves is partial, or mixed."""
    has_several = False
    """Whether it is more than one target: what goes on for one may leave another one refused."""
    has_tombstones = False
    """Whether its source has records without a value."""
    is_before_1970 = False
    """Whether the times of its source are."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self._chance = chance
        self._number = 0
        self.path, self.checkpoint = folder / "target", folder / "checkpoint"
        self.copied: Line | None = None
        self.held: Ends = {}
        self.most: Ends = {}
        self.others: tuple[Line, ...] = ()
        """Lines that it may have rows of instead: the source was set back amid its last run."""
        self.read: tuple[Line, ...] = ()
        """The lines that the query has read with its checkpoint, as of its last run."""
        self.is_foreign = False
        self.passed: frozenset[str] = frozenset()
        """Rows that a run may have passed over: they were gone from the source, which is put back
        since."""
        self._kept: tuple[Path, Held] | None = None
        self._older: tuple[Path, tuple[Line, ...]] | None = None

    # What is done to it

    def keep(self) -> None:
        """Make a backup of the target."""
        if self.path.is_dir():
            place = self.fresh("target-kept")
            shutil.copytree(self.path, place)
            self._kept = place, self.holds

    def put_back(self) -> None:
        if self._kept is None:
            return self.keep()
        place, self.holds = self._kept
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(place, self.path)
        return None

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._begin()

    def replace(self) -> None:
        """Let the topic be deleted, and maybe made again."""
        with suppress(UnknownTopicOrPartitionError):
            if self.path.is_dir():
                delete([str(self.path)], self.topic)
                self._begin()
                if self._chance.random() < 0.5:
                    create([str(self.path)], self.topic, partitions=2)

    def write(self) -> None:
        """Let somebody else write to it."""
        if bounds(self.path, self.topic):
            rows = pa.table({"key": ["a"], "value": ["somebody else's"]})
            kafkalog.append(self.path, self.topic, rows, options={"flush": "os"})
            self.is_foreign = True

    def cut(self) -> None:
        for partition, rows in rows_in(self.path, self.topic).items():
            if len(rows) > 1 and self.topic == TOPIC:
                cut(self.path, self._chance.choice(sorted(rows)), partition)
                return

    def lose_checkpoint(self) -> None:
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        self.read = ()

    def keep_checkpoint(self) -> None:
        if self.checkpoint.is_dir():
            self._older = self.fresh("checkpoint-kept"), self.read
            shutil.copytree(self.checkpoint, self._older[0])

    def put_checkpoint_back(self) -> None:
        if self._older is None:
            return self.keep_checkpoint()
        place, self.read = self._older
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        shutil.copytree(place, self.checkpoint)
        return None

    @abstractmethod
    def lose_last_commit(self) -> None:
        """Lose the note that the last micro-batch has ended."""

    @abstractmethod
    def take_other_checkpoint(self) -> None:
        """Take the checkpoint of another query."""

    def _begin(self) -> None:
        self.holds = Held()

    @property
    def holds(self) -> Held:
        """What it holds, as far as that is known."""
        held, most = dict(self.held), dict(self.most)
        return Held(self.copied, held, most, self.is_foreign, self.others, self.passed)

    @holds.setter
    def holds(self, known: Held) -> None:
        self.copied, self.is_foreign, self.others = known.copied, known.is_foreign, known.others
        self.held, self.most = dict(known.held), dict(known.most)
        self.passed = known.passed

    def fresh(self, name: str) -> Path:
        self._number += 1
        return self.folder / f"{name}-{self._number}"

    def make_way(self, way: str) -> None:
        """Do what a way on asks for before the next run."""
        if way.startswith("another"):
            self.take_another(way)

    def take_another(self, way: str) -> None:
        """Go on with another target, and another checkpoint, as a way on says."""
        del way
        self.path, self.checkpoint = self.fresh("target"), self.fresh("checkpoint")
        self._kept, self._older, self.read = None, None, ()
        self._begin()

    # A run of it

    @abstractmethod
    def run(self, source: Source, step: Callable[[str], None], way: str = "", **given: Any) -> None:
        """Run the pipeline up to the end of the source."""

    def ends(self) -> Ends:
        return {number: end for number, (_, end) in bounds(self.path, self.topic).items()}

    def rows(self) -> Rows:
        return rows_in(self.path, self.topic)

    @abstractmethod
    def planned(self) -> Ends:
        """Give the ends of the last micro-batch that its checkpoint knows."""

    @abstractmethod
    def starts(self) -> Ends:
        """Give where its checkpoint lets the next micro-batch start."""

    def reasons(self, source: Source) -> list[str]:
        """Give why a run may be refused; without any, it has to go through."""
        found = self._reasons_of_checkpoint(source)
        return found + self._reasons_of_target(source) if self.knows_offsets else found

    def _reasons_of_checkpoint(self, source: Source) -> list[str]:
        """Give why its query may not go on, whatever the target holds."""
        now, starts, planned = bounds(source.path), self.starts(), self.planned()
        found = ["a partition is gone"] if (starts | planned).keys() - now.keys() else []
        for number, (start, end) in now.items():
            at = starts.get(number, planned.get(number))
            if at is not None and start > at:
                found.append(f"rows of {number} were deleted that the checkpoint still reads")
            if (starts or planned) and at is None and start > 0:
                found.append(f"the partition {number} is new, and does not begin at 0")
            if max(at or 0, planned.get(number, 0)) > end:
                found.append(f"{number} ends below what the checkpoint has planned")
        return found

    def _reasons_of_target(self, source: Source) -> list[str]:
        """Give why it may not be continued, by what it holds."""
        now, ends = bounds(source.path), self.ends()
        found = ["somebody else wrote to it"] if self.is_foreign else []
        if self.offsets_kept:
            found += [f"a cut at {n}" for n, end in self.held.items() if ends.get(n) != end]
        if self.partitions_kept and len(ends) > len(now):
            found.append("more partitions")
        if self.held.keys() - now.keys():
            found.append("a partition that it holds is gone")
        for number, (start, _) in now.items():
            least = self.held.get(number, 0)
            if self.starts().get(number, 0) > least:
                found.append(f"a checkpoint that is further in {number}")
            if number in self.held | self.most and start > least:
                found.append(f"rows of {number} were deleted before they were copied")
        lines = () if self.copied is None else (self.copied, *self.others)
        return found + [why for line in lines for why in self._reasons_of_line(source, line)]

    def may_leave_out(self, source: Source) -> bool:
        """Whether what the source has lost can be left out, and nothing is mixed by that."""
        if self.continues_after_loss or self.copied is None:
            return self.continues_after_loss
        is_other = self._reasons_of_line(source, self.copied) or self._reasons_of_reader(source)
        return not is_other

    def _reasons_of_line(self, source: Source, copied: Line) -> list[str]:
        found, now = [], bounds(source.path)
        if copied.number != source.line.number:
            found.append("another topic")
        if source.line.below(self.most).rows != copied.below(self.most).rows:
            found.append("another history")
        if any(now.get(number, (0, 0))[1] < end for number, end in self.most.items()):
            found.append("a shorter log")
        return found

    def _reasons_of_reader(self, source: Source) -> list[str]:
        """Give why a query that keeps what it has read may not go on."""
        ends = self.starts() | self.planned()
        is_other = any(
            line.number != source.line.number or line.below(ends) != source.line.below(ends)
            for line in self.read
        )
        return ["what the checkpoint has read is gone"] if ends and is_other else []

    def may_hold(self, *lines: Line) -> None:
        """Note that a run was cut off, and may have brought more than rows tell."""
        self.copied = self.copied or lines[0].copied()
        self.others = tuple(line.copied() for line in lines)
        for line in lines:
            for number, end in line.ends.items():
                self.most[number] = max(end, self.most.get(number, 0))

    def settle(self, source: Source) -> None:
        """Note that a run went through: it holds what the source has, and nothing else."""
        self.held = {number: end for number, (_, end) in bounds(source.path).items()}
        self.most = dict(self.held)
        self.copied, self.others = source.line.copied(), ()

    def pass_over(self, source: Source, *, is_rebuilt: bool = False) -> None:
        """Note what a run that looks at the source now cannot read, as it was deleted."""
        found = source.rows()
        source.line.firsts = {n: min(found.get(n, (end,))) for n, end in source.line.ends.items()}
        there = {value for rows in found.values() for value in rows.values()}
        every = {value for rows in source.line.rows.values() for value in rows.values()}
        self.passed = (frozenset() if is_rebuilt else self.passed) | (every - there)

    @abstractmethod
    def check(self, source: Source, *lines: Line) -> None:
        """See that it has what a run that went through promises."""

    @abstractmethod
    def note(self, *lines: Line) -> None:
        """Note of which line it holds the rows now, whatever a run came to.

        Raises:
            AssertionError: it has rows of more than one line, or of none.
        """


class OfQuery(Target):
    """What a query of Spark's writes to: its checkpoint has offsets and commits."""

    def _reading(self, given: Mapping[str, Any]) -> dict[str, str]:
        """Draw options of the source."""
        options = {"fetchOffset.retryIntervalMs": "1"}
        if self._chance.random() < 0.5:
            options["maxOffsetsPerTrigger"] = str(self._chance.randint(1, 6))
        return options | given.get("options", {})

    def planned(self) -> Ends:
        return self._ends_of(last_batch(self.checkpoint / "offsets"))

    def starts(self) -> Ends:
        last = last_batch(self.checkpoint / "offsets")
        if last is not None and last_batch(self.checkpoint / "commits") != last:
            last -= 1
        return self._ends_of(last)

    def _ends_of(self, batch: int | None) -> Ends:
        """Give where a micro-batch ends; nothing of one that there is none of."""
        if batch is None or batch < 0:
            return {}
        text = (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[2]
        return {int(number): end for number, end in json.loads(text).get(TOPIC, {}).items()}

    def lose_last_commit(self) -> None:
        found = (self.checkpoint / "commits").glob("[0-9]*")
        commits = sorted(found, key=lambda path: int(path.name))
        if commits:
            commits[-1].unlink()
            commits[-1].with_name(f".{commits[-1].name}.crc").unlink(missing_ok=True)  # Spark's

    def take_other_checkpoint(self) -> None:
        """Take one that has read further, or less, in as many micro-batches."""
        last = last_batch(self.checkpoint / "offsets") or 0
        self.lose_checkpoint()
        for log in ("offsets", "commits"):
            (self.checkpoint / log).mkdir(parents=True)
        planned = json.dumps({TOPIC: {str(n): self._chance.randint(0, 30) for n in range(2)}})
        for number in {str(max(0, last - 1)), str(last)}:
            (self.checkpoint / "offsets" / number).write_text(f"v1\n{{}}\n{planned}\n")
            (self.checkpoint / "commits" / number).write_text("v1\n{}")
        (self.checkpoint / "metadata").write_text(json.dumps({"id": "another query"}))


class Mirrored(OfQuery):
    """A copy with the same offsets."""

    def run(self, source: Source, step: Callable[[str], None], way: str = "", **given: Any) -> None:
        run_mirror(
            Mirror(
                source=str(source.path),
                target=str(self.path),
                topics=(TOPIC,),
                checkpoint=str(given.get("checkpoint", self.checkpoint)),
                options=self._reading(given),
                from_target=way == "--from-target",
                rebuild=way == "--rebuild",
            ),
            step,
        )

    def check(self, source: Source, *lines: Line) -> None:
        rows, now = self.rows(), source.rows()
        for number, held in now.items():
            found = held.items() - rows.get(number, {}).items()
            missing = {row for row in found if row[1] not in self.passed}
            assert not missing, f"the copy of {TOPIC}-{number} lacks {sorted(missing)}"
        ends = {number: end for number, (_, end) in bounds(source.path).items()}
        assert self.ends() == ends, f"the copy ends at {self.ends()}, the source at {ends}"

    def note(self, *lines: Line) -> None:
        rows, ends = self.rows(), self.ends()
        for line in lines:
            if all(line.may_have(number, held) for number, held in rows.items()):
                self.copied, self.held, self.most = line.copied(), ends, dict(ends)
                return
        raise AssertionError(
            f"the copy has {rows}, which no line has: {[each.rows for each in lines]}"
        )


class Replayed(Target):
    """A topic that gets the rows again, in pieces, at other offsets."""

    ways = ("--from-target", "another TARGET", "kafkalog topic alter")
    offsets_kept = False
    continues_after_loss = False
    _begun: Mapping[int, tuple[int, int]] = MappingProxyType({})
    """Where the source started and ended when it was first played."""

    def run(self, source: Source, step: Callable[[str], None], way: str = "", **given: Any) -> None:
        if not self.planned():
            self._begun = bounds(source.path)
        if way == "kafkalog topic alter":
            alter([str(self.path)], TOPIC, partitions=len(source.line.rows))
        run_replay(
            str(source.path),
            str(self.path),
            str(given.get("checkpoint", self.checkpoint)),
            from_target=way == "--from-target",
            most=self._chance.choice((2, 5, 1000)),
            options=given.get("options", {}),
            step=step,
        )

    def planned(self) -> Ends:
        return self._noted("to")

    def starts(self) -> Ends:
        noted = self._read_checkpoint()
        if noted.get("ended", True):
            return self._noted("to")
        return {n: at for n, at in self._noted("from").items() if n not in self._noted("begins")}

    def _noted(self, name: str) -> Ends:
        ends = self._read_checkpoint().get(name, {}).get(TOPIC, {})
        return {int(number): end for number, end in ends.items()}

    def _read_checkpoint(self) -> dict[str, Any]:
        path = self.checkpoint / "kafkalog.replay"
        return json.loads(path.read_text().splitlines()[1]) if path.exists() else {}

    def reasons(self, source: Source) -> list[str]:
        topic_id = self._read_checkpoint().get("ids", {}).get(TOPIC, "")
        is_other = topic_id not in {"", source.topic_id()}
        found = super().reasons(source) + ["a checkpoint of another topic"] * is_other
        ends = self.ends()
        return found + ["fewer partitions"] * (0 < len(ends) < len(bounds(source.path)))

    def cut(self) -> None:
        """What is cut off a topic that a replay has written is gone: it holds no offsets."""

    def write(self) -> None:
        """Others may write to it."""

    def lose_checkpoint(self) -> None:
        """A new checkpoint is another replay, which gets a target of its own."""
        self.take_another("")

    def lose_last_commit(self) -> None:
        """It has one note alone."""

    def take_other_checkpoint(self) -> None:
        """It is refused by its words."""

    def check(self, source: Source, *lines: Line) -> None:
        played = {number: set(rows.values()) for number, rows in self.rows().items()}
        for number, held in source.rows().items():
            start, _ = self._begun.get(number, (0, 0))  # a backup may bring older rows back
            wanted = {value for offset, value in held.items() if offset >= start}
            missing = wanted - played.get(number, set()) - self.passed
            assert not missing, f"{TOPIC}-{number} was not played: {sorted(missing)}"

    def note(self, *lines: Line) -> None:
        rows = self.rows()
        for line in lines:
            if all(_is_played(held, line.rows.get(number, {})) for number, held in rows.items()):
                self.copied = line.copied()
                self.held = reached(line, rows)
                self.most = line.ends
                return
        raise AssertionError(f"played was {rows}, which no line has once and in order")


def reached(line: Line, rows: Rows) -> Ends:
    """Give up to where rows that have other offsets, or are in other partitions, are of a line."""
    values = {value for each in rows.values() for value in each.values()}
    return {
        number: max((offset for offset, value in held.items() if value in values), default=-1) + 1
        for number, held in line.rows.items()
    }


def _is_played(rows: dict[int, str], line: dict[int, str]) -> bool:
    """Whether values are those of a line, each once at most and in its order."""
    places = {value: offset for offset, value in line.items()}
    offsets = [places.get(rows[offset], -1) for offset in sorted(rows)]
    return -1 not in offsets and offsets == sorted(set(offsets))
