"""Search what a loss of power leaves of batches with either ``flush``, and see mistakes found.

CI searches within small bounds, ``make model`` within larger ones: ``docs/protocol.md``.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.support.commit_model import Broken
from tests.support.mixed_flush_model import Bounds, search_mixed_flush

from kafkalog.files import atomic as atomic_file
from kafkalog.streaming.commit import committer
from kafkalog.streaming.commit import committer as applying
from kafkalog.streaming.store.recovery import unsynced

if TYPE_CHECKING:
    from collections.abc import Callable

    from kafkalog.checkpoints.commit_state import CommitState, TopicState

pytestmark = pytest.mark.crash

LARGE: Final = "KAFKALOG_MODEL_LARGE" in os.environ

TWO_QUERIES: Final = Bounds(batches=2, rolls=True, amid=False)
AMID: Final = Bounds(batches=1, queries=("a",))
KILLED: Final = Bounds(batches=1, kills=1, queries=("a",), amid=False)
SMALL_SEARCHES: Final = (
    AMID,
    *(pytest.param(bounds, marks=pytest.mark.nightly) for bounds in (TWO_QUERIES, KILLED)),
)
LARGE_SEARCHES: Final = (
    Bounds(batches=2),
    Bounds(batches=2, queries=("a",), is_new=True, thorough=True),
)


@pytest.mark.parametrize("bounds", SMALL_SEARCHES + (LARGE_SEARCHES if LARGE else ()), ids=str)
def test_whatever_is_left_unsynced_durable_rows_survive_and_the_loss_is_told(
    bounds: Bounds,
) -> None:
    disks, lossy = search_mixed_flush(bounds)
    assert disks > lossy > 10


def nothing(*_: object, **__: object) -> list[Any]:
    """Forget a step."""
    return []


def changed(original: Callable[..., CommitState], change: Any) -> Callable[..., CommitState]:
    """Let the next state hold changed topics."""

    def next_state(state: CommitState, *arguments: Any, **named: Any) -> CommitState:
        found = original(state, *arguments, **named)
        topics = {key: change(topic, state.topics.get(key)) for key, topic in found.topics.items()}
        return replace(found, topics=topics)

    return next_state


def all_left_is_durable(topic: TopicState, before: TopicState | None) -> TopicState:
    """Forget what others have left, once somebody leaves nothing."""
    known = {} if before is None else before.durable_ends
    return replace(topic, durable_ends={}) if len(topic.durable_ends) < len(known) else topic


def what_was_left_is_durable(topic: TopicState, before: TopicState | None) -> TopicState:
    """Let the durable end be where the last batch begins that was left unsynced."""
    if before is None:
        return topic
    ends = {
        number: before.partitions[number].log_end if number in before.durable_ends else end
        for number, end in topic.durable_ends.items()
    }
    return replace(topic, durable_ends=ends)


def plant(patch: pytest.MonkeyPatch, bug: str) -> None:
    next_state = committer.next_state
    match bug:
        case "a durable batch ends what was left in other partitions":
            patch.setattr(committer, "next_state", changed(next_state, all_left_is_durable))
        case "the next batch moves the durable end":
            patch.setattr(committer, "next_state", changed(next_state, what_was_left_is_durable))
        case "a durable batch lies behind a hole":
            patch.setattr(applying, "sync_up_to", nothing)
        case "a durable batch that comes again stays left unsynced":
            patch.setattr(committer, "make_left_durable", nothing)
        case "states and intents are left unsynced":
            patch.setattr(atomic_file, "sync", nothing)
        case "nobody looks after a loss of power":
            patch.setattr(unsynced, "find_lost", nothing)


BUGS: Final = {
    "a durable batch ends what was left in other partitions": TWO_QUERIES,
    "the next batch moves the durable end": TWO_QUERIES,
    "a durable batch lies behind a hole": TWO_QUERIES,
    "a durable batch that comes again stays left unsynced": KILLED,
    "states and intents are left unsynced": AMID,
    "nobody looks after a loss of power": AMID,
}


SLOW: Final = {
    "a durable batch ends what was left in other partitions",
    "a durable batch lies behind a hole",
    "a durable batch that comes again stays left unsynced",
}


@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, marks=pytest.mark.nightly) if bug in SLOW else bug for bug in BUGS],
)
def test_a_protocol_with_a_mistake_is_found_out(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, bug)
    with pytest.raises(Broken):
        search_mixed_flush(BUGS[bug])
