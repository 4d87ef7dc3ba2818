"""Histories of a pipeline: source, target and checkpoint are set back, and runs are killed.

After each run, whatever it came to, the target is held against what the source held at each time
(:class:`~tests.pipelines.sources.Line`). A run that goes through has lost nothing; none has doubled
or mixed anything; and one that nothing was in the way of goes through. Each way on that a refusal
names is followed literally.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from tests.pipelines.archives import RESTORE, Archived, InFiles, Newest, WithNewest
from tests.pipelines.restores import Restored
from tests.pipelines.sinks import Ingested, Streamed, Versioned
from tests.pipelines.sources import Source
from tests.pipelines.targets import Mirrored, Replayed, Target

from kafkalog.errors import (
    BatchIdentityError,
    CommitError,
    DataLossError,
    KafkaLogError,
    OptionError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

__all__ = ["KINDS", "History"]

KINDS: Final[dict[str, type[Target]]] = {
    "mirror": Mirrored,
    "replay": Replayed,
    "archive": Archived,
    "latest": Newest,
    "both": WithNewest,
    "files": InFiles,
    "ingest": Ingested,
    "sink": Streamed,
    "batches": Versioned,
    "restore": Restored,
}

_STEPS: Final = 14
_WAYS: Final = 3
_OF_SOURCE: Final = ("append", "append", "recreate", "cut", "keep", "put_back", "compact", "retain")
_OF_TARGET: Final = (
    *("keep", "put_back", "put_back", "remove", "replace", "write", "cut"),
    *("lose_checkpoint", "keep_checkpoint", "put_checkpoint_back", "put_checkpoint_back"),
    *("lose_last_commit", "take_other_checkpoint"),
)
_LEAVE_OUT: Final = "failOnDataLoss=false"
_AMID: Final = ("append", "recreate", "cut", "put_back")


class KilledError(Exception):
    """The pipeline is killed."""


class History:
    """One history, drawn from its name, as ``seed/17``; ``told`` says what happened."""

    def __init__(
        self,
        folder: Path,
        name: str,
        kind: str,
        target: Callable[[Path, random.Random], Target] | None = None,
        source: type[Source] = Source,
    ) -> None:
        self._chance = chance = random.Random(f"{name}/{kind}")
        make = target or KINDS[kind]
        odd = {name: getattr(make, name, False) for name in ("has_tombstones", "is_before_1970")}
        self.source = source(folder, chance, **odd)
        self.target: Target = make(folder, chance)
        self.told: list[str] = []
        self._is_disturbed = False

    def run(self, amid: tuple[str, str] | None = None) -> None:
        """Let it happen: what is drawn, or one thing amid a run, at a step whose name ends so.

        Raises:
            AssertionError: something was lost, doubled or mixed, or refused for nothing.
        """
        try:
            self._pipeline()
            if amid is None:
                for _ in range(_STEPS):
                    self._step()
            else:
                self._one_amid(*amid)
            self._pipeline(is_whole=True)
        except AssertionError as error:
            error.add_note("\n".join(self.told))
            raise

    def follow(self, steps: Iterable[str]) -> None:
        """Let happen what is given: ``run``, ``two runs``, ``source append``, ``target remove``.

        Raises:
            AssertionError: as :meth:`run`.
        """
        try:
            for step in steps:
                if step == "run":
                    self._pipeline(is_whole=True)
                elif step == "two runs":
                    self._pipeline(steps=_once("started", self._twin))
                else:
                    self._do(*step.split())
        except AssertionError as error:
            error.add_note("\n".join(self.told))
            raise

    def _one_amid(self, name: str, what: str) -> None:
        self._pipeline(is_whole=True)
        self._do("source", "keep")
        self.source.append(4)

        def happens() -> None:
            self._is_disturbed = True
            if what == "killed":
                raise KilledError(name)
            if what == "twin":
                self._twin()
            else:
                self._do("source", what)
                self.source.append(6)

        self._pipeline(steps=_once(name, happens))

    def _step(self) -> None:
        drawn = self._chance.random()
        if drawn < 0.45:
            self._pipeline()
        elif drawn < 0.75:
            self._do("source", self._chance.choice(_OF_SOURCE))
        elif drawn < 0.78:
            self._do("source", "add_partition")
        else:
            self._do("target", self._chance.choice(_OF_TARGET))

    def _do(self, who: str, what: str) -> None:
        self.told.append(f"{who}: {what}")
        getattr(getattr(self, who), what)()

    def _pipeline(
        self,
        way: str = "",
        *,
        leaves_out: bool = False,
        is_whole: bool = False,
        tries: int = _WAYS,
        steps: Callable[[str], None] | None = None,
    ) -> None:
        """Run the pipeline, and if it is refused, follow a way on."""
        source, target = self.source, self.target
        shown = " ".join(filter(None, (way, _LEAVE_OUT * leaves_out)))
        reasons = target.reasons(source) if not shown else []
        target.pass_over(source, is_rebuilt=way == "--rebuild")
        rows, before = target.rows(), source.line.copied()
        self._is_disturbed = False
        error: Exception | None = None
        given = {"options": {"failOnDataLoss": "false"}} if leaves_out else {}
        try:
            with source.process():
                target.run(source, steps or self._steps(is_whole=is_whole), way, **given)
        except (KilledError, KafkaLogError) as caught:
            error = caught
        if self._is_disturbed:
            target.pass_over(source)
        self.told.append(f"run {shown}: {f'{type(error).__name__}: {error}' if error else 'ok'}")
        lines = (source.line.copied(), before) if self._is_disturbed else (before,)
        target.read = lines if error is None else target.read + lines
        if target.rows() != rows or error is None:
            target.note(source.line, before)
        if self._is_disturbed or isinstance(error, KilledError):
            target.may_hold(source.line, before)
        if error is None:
            if not self._is_disturbed:
                target.check(source)
                target.settle(source)
            return
        if isinstance(error, KilledError):
            return
        assert reasons or shown or self._is_disturbed, f"refused for nothing: {error}"
        is_followed = way not in {"", RESTORE} and not self._is_disturbed
        is_else = isinstance(error, (DataLossError, OptionError)) or target.has_several
        assert not is_followed or is_else, f"{way!r} was followed, and is refused: {error}"
        if self._is_disturbed or tries == 0 or not (is_whole or self._chance.random() < 0.7):
            return
        self._go_on(error, way, is_whole=is_whole, tries=tries - 1)

    def _go_on(self, error: Exception, way: str, *, is_whole: bool, tries: int) -> None:
        text = str(error)
        if leaves_out := isinstance(error, DataLossError):
            way = way if way.startswith("--from-target") else ""
            if not self.target.may_leave_out(self.source):
                return
        elif isinstance(error, CommitError) and not isinstance(error, BatchIdentityError):
            way = ""
        else:
            ways = [way for way in self.target.ways if way in text]
            assert ways, f"no way on is named: {text}"
            way = self._chance.choice(ways)
        self.target.make_way(way)
        self._pipeline(way, leaves_out=leaves_out, is_whole=is_whole, tries=tries)
        if (way or leaves_out) and not is_whole:
            return
        has_ended = self.told[-1].endswith(": ok")
        assert tries or has_ended or not (way or leaves_out), f"no end of ways: {text}"

    def _steps(self, *, is_whole: bool) -> Callable[[str], None]:
        """Give what is called between any two steps of a run: now and then something happens."""
        drawn = 1.0 if is_whole else self._chance.random()
        left = self._chance.randint(1, 12)

        def step(name: str) -> None:
            nonlocal left
            left -= 1
            if left:
                return
            if drawn < 0.25:
                self.told.append(f"killed after {name}")
                raise KilledError(name)
            if drawn < 0.4:
                self._is_disturbed = True
                self._do("source", self._chance.choice(_AMID))
            elif drawn < 0.5:
                self._twin()

        return step

    def _twin(self) -> None:
        """Let another job of the same kind run meanwhile, with a copy of the checkpoint."""
        self._is_disturbed = True
        self.told.append("another job runs meanwhile")
        try:
            with self.source.process():
                self.target.run(self.source, lambda _: None)
        except KafkaLogError as error:
            self.told.append(f"it is refused: {error}")


def _once(ending: str, action: Callable[[], None]) -> Callable[[str], None]:
    left = [action]

    def step(name: str) -> None:
        if left and name.endswith(ending):
            left.pop()()

    return step
