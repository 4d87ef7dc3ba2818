"""Guards of pipelines that a test takes out one by one: histories have to find that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.pipelines.histories import History

from kafkalog.errors import RowError
from kafkalog.jobs import archiving
from kafkalog.jobs.mirroring import Mirror
from kafkalog.jobs.pipelines import continuation, ingesting, replaying, restore_plan
from kafkalog.jobs.pipelines.continuation import TargetState
from kafkalog.jobs.pipelines.topic_facts import TopicFacts
from kafkalog.streaming.commit.preserved_offsets import CopiedBatch
from kafkalog.streaming.sink.row_columns import Rows
from kafkalog.streaming.source.reading import SplitReader
from kafkalog.streaming.source.start import PositionValidator

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

__all__ = ["GUARDS", "Guard"]


class Guard(NamedTuple):
    """What is put in whose place, and the history that finds it.

    ``amid``: what happens in that, at a step whose name ends so; ``steps``: all that happens; else
    it is drawn.
    """

    patches: tuple[tuple[Any, str, Any], ...]
    history: str
    kind: str = "mirror"
    amid: tuple[str, str] | None = None
    steps: str = ""

    def let_happen(self, folder: Path) -> None:
        """Let the history happen.

        Raises:
            AssertionError: something was lost, doubled or mixed, or refused for nothing.
        """
        history = History(folder, self.history, self.kind)
        if self.steps:
            history.follow(self.steps.split(", "))
        else:
            history.run(self.amid)

    def take_out(self, patch: pytest.MonkeyPatch) -> None:
        for owner, name, without in self.patches:
            patch.setattr(owner, name, without)


def _nothing(*_: object, **__: object) -> None:
    """Check nothing."""


def _as_if_nothing_was_held(*given: Any, **named: Any) -> dict[Any, int]:
    return dict.fromkeys(continuation.first_offsets(*given, **named), 0)


def _noted(_: Mirror, __: object, noted: Any, **___: object) -> Any:
    return noted


def _copied_rows_since_1970(cls: Any, batch: Any, **given: Any) -> Any:
    rows = _ROWS_OF(cls, batch, **given)
    if given.get("keeps_offsets") and (rows.records.timestamps < 0).any():
        raise RowError("a time before 1970")
    return rows


_ROWS_OF: Final[Any] = Rows.of.__func__  # type: ignore[attr-defined]
GROWS: Final = "source append, source append, source append, source append, "

_TOPIC: Final = (continuation, "_refuse_another_topic", _nothing)
_HISTORY: Final = (continuation, "_refuse_changed_history", _nothing)

GUARDS: Final = {
    "a batch starts above the end of its target": Guard(
        ((continuation, "_refuse_starts_above", _nothing),), "g/2"
    ),
    "a topic is another one of the same name": Guard((_TOPIC, _HISTORY), "g/3"),
    "a log has another history below what is held": Guard((_HISTORY,), "g/11"),
    "a log ends below what is held": Guard(
        ((continuation, "_refuse_shorter_logs", _nothing),), "g/30"
    ),
    "rows are held": Guard(
        ((replaying, "first_offsets", _as_if_nothing_was_held),), "g/4", "replay"
    ),
    "somebody else wrote to the copy": Guard(((Mirror, "_held", _noted),), "g/6"),
    "a clone knows the last batches below its ends": Guard(
        ((TopicFacts, "of_rows", lambda facts, _: facts),), "g/15", "archive"
    ),
    "the file table of another query": Guard(
        ((archiving, "_noted_query", _nothing),),
        "g/3",
        "files",
        steps="run, target take_other_checkpoint, source append, run",
    ),
    "the file table of another time": Guard(
        ((archiving, "_refuse_other_times", _nothing),),
        "g/0",
        "files",
        steps="run, target lose_checkpoint, source append, run",
    ),
    "a position in another history": Guard(
        (
            (PositionValidator, "find_diverged", lambda *_: {}),
            (SplitReader, "_check_history", _nothing),
        ),
        "g/0",
        "files",
        steps="run, source keep, source append, run, source put_back, " + GROWS + "run",
    ),
    "a restored log was cut": Guard(
        ((restore_plan, "_refuse_cut", _nothing),),
        "g/0",
        "restore",
        steps="run, target cut, run",
    ),
    "a copy was cut, and somebody else wrote": Guard(
        ((Mirror, "_refuse_written_after_cut", _nothing),),
        "g/0",
        "mirror",
        steps="run, target cut, target write, run",
    ),
    "a time before 1970": Guard(
        ((Rows, "of", classmethod(_copied_rows_since_1970)),), "g/0", "restore", steps="run"
    ),
    "a topic of the same name is ingested": Guard(
        (_TOPIC, _HISTORY), "g/0", "ingest", steps="run, source recreate, " + GROWS + "run"
    ),
    "an ingest that was killed is started again": Guard(
        (
            (TargetState, "__eq__", lambda *_: False),
            (ingesting, "first_offsets", _as_if_nothing_was_held),
            (CopiedBatch, "check_target", _nothing),
        ),
        "g/0",
        "ingest",
        ("taken", "killed"),
    ),
    "another job copies the same": Guard(
        ((CopiedBatch, "check_target", _nothing),), "g/0", "replay", ("decided", "twin")
    ),
}
