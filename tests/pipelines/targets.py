"""The targets of pipelines, their checkpoints, and what a run may come to."""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.pipelines.sources import TOPIC, Line, Rows, bounds, rows_in
from tests.support.copying import cut, run_mirror, run_replay

import kafkalog
from kafkalog.checkpoints.broker import read_topic_id
from kafkalog.checkpoints.query_checkpoint import last_batch
from kafkalog.errors import UnknownTopicOrPartitionError
from kafkalog.jobs.mirroring import Mirror
from kafkalog.streaming.admin.topics import alter, create, delete

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from tests.pipelines.sources import Source

__all__ = ["Ends", "Mirrored", "OfQuery", "Replayed", "Target"]

Ends = dict[int, int]


class Target(ABC):
    """What a pipeline writes to, and its checkpoint; what happens to both is noted.

    ``copied`` is the line of the source of which it holds the rows below ``held``, as seen from
    outside after each run; None where nothing was copied yet.
    """

    ways: tuple[str, ...] = ("--from-target", "--rebuild", "another TO")
    topic = TOPIC
    offsets_kept = True
    """Whether a row has the offset that it has in the source."""
    partitions_kept = True
    """Whether a row is in the partition that it has in the source."""
    continues_after_loss = True
    """Whether ``failOnDataLoss=false`` is followed; else what it leaves is partial, or mixed."""
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
        self.is_foreign = False
        self.was_disturbed = False
        """Whether the source was set back amid the last run: the next one may see that."""
        self._kept: tuple[Path, Line | None, Ends, bool] | None = None
        self._older: Path | None = None

    # What is done to it

    def keep(self) -> None:
        """Make a backup of the target."""
        if self.path.is_dir():
            place = self._fresh("target-kept")
            shutil.copytree(self.path, place)
            self._kept = place, self.copied, dict(self.held), self.is_foreign

    def put_back(self) -> None:
        if self._kept is None:
            return self.keep()
        place, self.copied, held, self.is_foreign = self._kept
        self.held = dict(held)
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

    def keep_checkpoint(self) -> None:
        if self.checkpoint.is_dir():
            self._older = self._fresh("checkpoint-kept")
            shutil.copytree(self.checkpoint, self._older)

    def put_checkpoint_back(self) -> None:
        if self._older is None:
            return self.keep_checkpoint()
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        shutil.copytree(self._older, self.checkpoint)
        return None

    @abstractmethod
    def lose_last_commit(self) -> None:
        """Lose the note that the last micro-batch has ended."""

    @abstractmethod
    def take_other_checkpoint(self) -> None:
        """Take the checkpoint of another query."""

    def _begin(self) -> None:
        self.copied, self.held, self.is_foreign = None, {}, False

    def _fresh(self, name: str) -> Path:
        self._number += 1
        return self.folder / f"{name}-{self._number}"

    def take_another(self) -> None:
        """Go on with another target, and another checkpoint."""
        self.path, self.checkpoint = self._fresh("target"), self._fresh("checkpoint")
        self._kept = self._older = None
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
        """Give the largest ends that its checkpoint knows."""

    def ended(self) -> Ends:
        """Give the ends of the last micro-batch that it knows to have ended."""
        return self.planned()

    def reasons(self, source: Source) -> list[str]:  # noqa: C901 - a list of reasons
        """Give why a run may be refused; without any, it has to go through."""
        found = ["somebody else wrote to it"] if self.is_foreign else []
        now, ends = bounds(source.path), self.ends()
        held = self.held if self.copied is not None else {}
        if self.copied is not None:
            if self.copied.number != source.line.number:
                found.append("another topic")
            if source.line.below(held).rows != self.copied.rows:
                found.append("another history")
            if any(now.get(number, (0, 0))[1] < end for number, end in held.items()):
                found.append("a shorter log")
        found += [
            f"a cut at {n}" for n, end in held.items() if self.offsets_kept and ends.get(n) != end
        ]
        if self.partitions_kept and ends and len(ends) != len(now):
            found.append("other partitions")
        if (self.planned() | held).keys() - now.keys():
            found.append("a partition is gone")
        for number, (start, _) in now.items():
            planned = self.planned().get(number)
            if planned is not None and planned > held.get(number, 0):
                found.append("a checkpoint that is further")
            if start > held.get(number, ends.get(number, 0)):
                found.append("rows were deleted before they were copied")
            if planned is not None and start > self.ended().get(number, 0):
                found.append("rows were deleted that the checkpoint still reads")
        return found

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
        return self._largest((self.checkpoint / "offsets").glob("[0-9]*"))

    def ended(self) -> Ends:
        commits = (self.checkpoint / "commits").glob("[0-9]*")
        return self._largest(self.checkpoint / "offsets" / path.name for path in commits)

    def _largest(self, offsets: Iterable[Path]) -> Ends:
        found: Ends = {}
        for path in offsets:
            topics = json.loads(path.read_text().splitlines()[2]) if path.exists() else {}
            for number, end in topics.get(TOPIC, {}).items():
                found[int(number)] = max(end, found.get(int(number), 0))
        return found

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
            missing = held.items() - rows.get(number, {}).items()
            assert not missing, f"the copy of {TOPIC}-{number} lacks {sorted(missing)}"
        ends = {number: end for number, (_, end) in bounds(source.path).items()}
        assert self.ends() == ends, f"the copy ends at {self.ends()}, the source at {ends}"

    def note(self, *lines: Line) -> None:
        rows, ends = self.rows(), self.ends()
        for line in lines:
            if all(held.items() <= line.rows.get(n, {}).items() for n, held in rows.items()):
                self.copied, self.held = line.below(ends), ends
                return
        raise AssertionError(
            f"the copy has {rows}, which no line has: {[each.rows for each in lines]}"
        )


class Replayed(Target):
    """A topic that gets the rows again, in pieces, at other offsets."""

    ways = ("--from-target", "another TARGET", "kafkalog topic alter")
    offsets_kept = False
    continues_after_loss = False

    def run(self, source: Source, step: Callable[[str], None], way: str = "", **given: Any) -> None:
        if way == "kafkalog topic alter":
            alter([str(self.path)], TOPIC, partitions=len(source.line.rows))
        run_replay(
            str(source.path),
            str(self.path),
            str(given.get("checkpoint", self.checkpoint)),
            from_target=way == "--from-target",
            most=self._chance.choice((2, 5, 1000)),
            step=step,
        )

    def planned(self) -> Ends:
        path = self.checkpoint / "kafkalog.replay"
        if not path.exists():
            return {}
        ends = json.loads(path.read_text().splitlines()[1])["to"].get(TOPIC, {})
        return {int(number): end for number, end in ends.items()}

    def reasons(self, source: Source) -> list[str]:
        path = self.checkpoint / "kafkalog.replay"
        ids = json.loads(path.read_text().splitlines()[1])["ids"] if path.exists() else {}
        is_other = ids.get(TOPIC, "") not in {"", read_topic_id(source.path / f"{TOPIC}-0")}
        return super().reasons(source) + ["a checkpoint of another topic"] * is_other

    def cut(self) -> None:
        """What is cut off a topic that a replay has written is gone: it holds no offsets."""

    def write(self) -> None:
        """Others may write to it."""

    def lose_checkpoint(self) -> None:
        """A new checkpoint is another replay, which gets a target of its own."""
        self.take_another()

    def lose_last_commit(self) -> None:
        """It has one note alone."""

    def take_other_checkpoint(self) -> None:
        """It is refused by its words."""

    def check(self, source: Source, *lines: Line) -> None:
        played = {number: set(rows.values()) for number, rows in self.rows().items()}
        for number, held in source.rows().items():
            missing = set(held.values()) - played.get(number, set())
            assert not missing, f"{TOPIC}-{number} was not played: {sorted(missing)}"

    def note(self, *lines: Line) -> None:
        rows = self.rows()
        for line in lines:
            if all(_is_played(held, line.rows.get(number, {})) for number, held in rows.items()):
                self.held = self._reached(line)
                self.copied = line.below(self.held)
                return
        raise AssertionError(f"played was {rows}, which no line has once and in order")

    def _reached(self, line: Line) -> Ends:
        """Give the most that may have been played: up to there nothing is to change."""
        return {number: max(rows, default=-1) + 1 for number, rows in line.rows.items()}


def _is_played(rows: dict[int, str], line: dict[int, str]) -> bool:
    """Whether values are those of a line, each once at most and in its order."""
    places = {value: offset for offset, value in line.items()}
    offsets = [places.get(rows[offset], -1) for offset in sorted(rows)]
    return -1 not in offsets and offsets == sorted(set(offsets))
