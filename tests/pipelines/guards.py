"""Guards of pipelines that a test takes out one by one: histories have to find that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafkalog.jobs import continuation, replaying
from kafkalog.jobs.mirroring import Mirror
from kafkalog.jobs.topic_facts import TopicFacts
from kafkalog.streaming.commit.preserved_offsets import CopiedBatch

if TYPE_CHECKING:
    import pytest

__all__ = ["GUARDS", "Guard"]


class Guard(NamedTuple):
    """What is put in whose place, and the history that finds it.

    ``amid``: what happens in that, at a step whose name ends so; else it is drawn.
    """

    patches: tuple[tuple[Any, str, Any], ...]
    history: str
    kind: str = "mirror"
    amid: tuple[str, str] | None = None

    def take_out(self, patch: pytest.MonkeyPatch) -> None:
        for owner, name, without in self.patches:
            patch.setattr(owner, name, without)


def _nothing(*_: object, **__: object) -> None:
    """Check nothing."""


def _as_if_nothing_was_held(*given: Any, **named: Any) -> dict[Any, int]:
    return dict.fromkeys(continuation.first_offsets(*given, **named), 0)


def _noted(_: Mirror, __: object, noted: Any) -> Any:
    return noted


_TOPIC: Final = (continuation, "_refuse_another_topic", _nothing)
_HISTORY: Final = (continuation, "_refuse_changed_history", _nothing)

GUARDS: Final = {
    "a batch starts above the end of its target": Guard(
        ((continuation, "_refuse_starts_above", _nothing),), "g/2"
    ),
    "a topic is another one of the same name": Guard((_TOPIC, _HISTORY), "g/3"),
    "a log has another history below what is held": Guard((_HISTORY,), "g/11"),
    "a log ends below what is held": Guard(
        ((continuation, "_refuse_shorter_logs", _nothing),), "g/18"
    ),
    "rows are held": Guard(
        ((replaying, "first_offsets", _as_if_nothing_was_held),), "g/4", "replay"
    ),
    "somebody else wrote to the copy": Guard(((Mirror, "_held", _noted),), "g/6"),
    "a clone knows the last batches below its ends": Guard(
        ((TopicFacts, "of_rows", lambda facts, _: facts),), "g/15", "archive"
    ),
    "another job copies the same": Guard(
        ((CopiedBatch, "check_target", _nothing),), "g/0", "replay", ("decided", "twin")
    ),
}
