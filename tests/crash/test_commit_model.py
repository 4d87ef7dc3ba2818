"""Search all that may happen to a few small batches, and see that planted mistakes are found.

CI searches within small bounds, ``make model`` within larger ones: ``docs/protocol.md``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.support.commit_model import Bounds, Broken, first_world, search
from tests.support.reader_model import look_during_commits

from kafkalog.checkpoints.intent import load_intent
from kafkalog.streaming.commit import committer
from kafkalog.streaming.commit.committer import Committer
from kafkalog.streaming.commit.tail_recovery import TailRecovery
from kafkalog.streaming.store import nodes, session
from kafkalog.streaming.store.identity import Verdict
from kafkalog.streaming.store.log_set import LogSet
from kafkalog.streaming.store.nodes import Node

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.crash

LARGE: Final = "KAFKALOG_MODEL_LARGE" in os.environ

SMALL_SEARCHES: Final = (
    (("a",), Bounds(batches=2, kills=0, brokers=1, zombies=1, losses=1)),
    (("a",), Bounds(batches=1, kills=1, brokers=1, zombies=0, losses=0)),
    (("a",), Bounds(batches=2, kills=0, brokers=1, zombies=0, losses=0, interrupts=1)),
    (("a",), Bounds(batches=2, kills=0, brokers=0, zombies=0, losses=0, hot_copies=1)),
)
LARGE_SEARCHES: Final = (
    (("a",), Bounds(batches=1, kills=1, brokers=0, zombies=1, losses=0)),
    (("a",), Bounds(batches=1, kills=2, brokers=0, zombies=0, losses=0)),
    (("a",), Bounds(batches=2, kills=1, brokers=1, zombies=0, losses=1)),
    (("a",), Bounds(batches=2, kills=1, brokers=0, zombies=1, losses=0)),
    (("a",), Bounds(batches=1, kills=1, brokers=2, zombies=0, losses=0)),
    (("a", "b"), Bounds(batches=1, kills=1, brokers=1, zombies=0, losses=0)),
    (("a", "b"), Bounds(batches=1, kills=0, brokers=1, zombies=2, losses=0)),
    (("a", "b"), Bounds(batches=1, kills=0, brokers=0, zombies=0, losses=0, interrupts=2)),
    (("a",), Bounds(batches=2, kills=1, brokers=0, zombies=0, losses=0, interrupts=1)),
    (("a",), Bounds(batches=1, kills=1, brokers=0, zombies=1, losses=0, hot_copies=1)),
)


@pytest.mark.parametrize(
    ("queries", "bounds"),
    [
        (("a",), Bounds(batches=1, kills=0, brokers=1, zombies=1, losses=1)),
        pytest.param(*SMALL_SEARCHES[0], marks=pytest.mark.nightly),
        *SMALL_SEARCHES[1:],
        *(LARGE_SEARCHES if LARGE else ()),
    ],
)
def test_whatever_happens_no_batch_is_lost_doubled_or_half_seen(
    queries: tuple[str, ...], bounds: Bounds
) -> None:
    assert search(first_world(bounds, *queries)) > 60


def test_a_reader_that_is_overtaken_at_any_step_sees_whole_batches() -> None:
    assert look_during_commits(2 if LARGE else 1, jumps=2 if LARGE else 1) > 50


def nothing(*_: object, **__: object) -> None:
    """Forget a step."""


def publish_first(self: Committer, *given: Any) -> None:
    """Leave the appending for after the rename."""
    self.__dict__["late"] = given


def late_publish(original: Callable[..., Any]) -> Callable[..., Any]:
    def publish(self: Committer, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        given = self.__dict__.pop("late", None)
        if given is not None:
            APPLY(self, *given)

    return publish


APPLY: Final = Committer._apply


def always_next(*_: object, **__: object) -> Verdict:
    """Take every batch for a new one."""
    return Verdict.APPEND


def unchecked_run(judge: Callable[..., Verdict]) -> Callable[..., Verdict]:
    """Forget which runs were replaced, and which batch comes next."""

    def judged(identity: Any, last: Any, **options: bool) -> Verdict:
        if last is not None and identity.run_id in last.fenced:
            return Verdict.APPEND
        return judge(identity, last, **options)

    return judged


def plant(patch: pytest.MonkeyPatch, bug: str) -> None:
    match bug:
        case "publish before append":
            patch.setattr(Committer, "_apply", publish_first)
            patch.setattr(Committer, "_publish", late_publish(Committer._publish))
        case "no look at the run":
            # The sweep that follows a commit would stop a late run all the same.
            patch.setattr(committer, "judge", unchecked_run(committer.judge))
            patch.setattr(committer, "sweep", nothing)
        case "every batch is the next":
            patch.setattr(committer, "judge", always_next)
        case "no intent":
            patch.setattr(Committer, "_declare", nothing)
        case "no recovery":
            patch.setattr(session, "roll_back", nothing)
            patch.setattr(committer, "roll_back", nothing)
        case "finished intents are acted on":
            patch.setattr(LogSet, "unfinished", all_intents)
            patch.setattr(Node, "withdraw", nothing)
        case "no guard":
            patch.setattr(nodes, "keep_brokers_out", nothing)
        case "what is interrupted forgets its intent":
            patch.setattr(Committer, "_try_to_roll_back", forget_intent)
        case "the mark of a clean shutdown stays":
            patch.setattr(nodes, "remove_clean_shutdown_marker", nothing)


def forget_intent(_: Committer, log_set: LogSet) -> None:
    """Take nothing back, and take away what tells that there is something to roll back."""
    log_set.node.withdraw(durable=False)


def all_intents(self: LogSet) -> list[Any]:
    found = (load_intent(folder) for folder in self.directories)
    return [intent for intent in found if intent is not None]


ADOPTED: Final = "batches that nobody can have appended are adopted"
SLOW: Final = ("no look at the run",)
BUGS: Final = {
    ADOPTED: SMALL_SEARCHES[3],
    "publish before append": SMALL_SEARCHES[1],
    "no look at the run": SMALL_SEARCHES[0],
    "every batch is the next": SMALL_SEARCHES[1],
    "no intent": SMALL_SEARCHES[1],
    "no recovery": SMALL_SEARCHES[1],
    "finished intents are acted on": SMALL_SEARCHES[0],
    "no guard": SMALL_SEARCHES[1],
    "what is interrupted forgets its intent": SMALL_SEARCHES[2],
    "the mark of a clean shutdown stays": SMALL_SEARCHES[0],
}


@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, marks=pytest.mark.nightly) if bug in SLOW else bug for bug in BUGS],
)
def test_a_protocol_with_a_mistake_is_found_out(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    queries, bounds = BUGS[bug]
    if bug == ADOPTED:
        monkeypatch.setattr(TailRecovery, "check_has_no_more", nothing)
    else:
        plant(monkeypatch, bug)
    with pytest.raises(Broken):
        search(first_world(bounds, *queries))
