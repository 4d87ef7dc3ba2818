"""Search what comes of a log directory that is away at times, and see that mistakes are found.

CI searches within small bounds, ``make model`` within larger ones: ``docs/protocol.md``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.support.commit_model import Broken
from tests.support.missing_member_model import (
    Bounds,
    return_after_a_repeated_commit,
    search_missing_members,
)

from kafkalog.streaming.commit import committer
from kafkalog.streaming.commit.tail_recovery import TailRecovery
from kafkalog.streaming.store import open_set, session
from kafkalog.streaming.store.ends import rule
from kafkalog.streaming.store.ends import tracker as watch
from kafkalog.streaming.store.identity import Verdict
from kafkalog.streaming.store.recovery.lost_partitions import NOTHING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kafkalog.streaming.store.ends.rule import RecordedOffsets, SeenEnd

pytestmark = pytest.mark.crash

LARGE: Final = "KAFKALOG_MODEL_LARGE" in os.environ

SMALL_SEARCHES: Final = (
    Bounds(batches=3, moves=2),
    pytest.param(Bounds(batches=2, moves=2, single=True), marks=pytest.mark.nightly),
    pytest.param(Bounds(batches=1, moves=1, kills=1), marks=pytest.mark.nightly),
)
LARGE_SEARCHES: Final = (
    Bounds(batches=3, moves=2, single=True),
    Bounds(batches=3, moves=3),
    Bounds(batches=2, moves=1, kills=1, single=True),
    Bounds(batches=2, moves=2, kills=1),
)


@pytest.mark.parametrize("bounds", SMALL_SEARCHES + (LARGE_SEARCHES if LARGE else ()), ids=str)
def test_no_order_of_unmounts_and_copies_loses_a_row_silently_or_doubles_one(
    bounds: Bounds,
) -> None:
    assert search_missing_members(bounds) > 250


def test_a_directory_that_began_a_commit_which_was_made_without_it_is_refused() -> None:
    """Else half of a batch is of one run and half of another; the search takes minutes for it."""
    assert return_after_a_repeated_commit() > 10


def those_there(states: Mapping[Path, Any], *_: object) -> dict[str, Path]:
    """Take the directories that are there for the whole set."""
    return {state.member_id: folder for folder, state in states.items()}


def nothing(*_: object, **__: object) -> None:
    """Forget a step."""


def always_next(*_: object, **__: object) -> Verdict:
    """Take every batch for a new one."""
    return Verdict.APPEND


def missing_and_not_lost(
    _: RecordedOffsets, log: SeenEnd, committed: int | None
) -> tuple[Any, None]:
    """Stop where the log ends, as at a broker's claim."""
    return (log.end, committed), None


def plant(patch: pytest.MonkeyPatch, bug: str) -> None:
    match bug:
        case "a commit asks for no member":
            patch.setattr(session, "refuse_mount_points", nothing)
            patch.setattr(open_set, "_members", those_there)
            patch.setattr(open_set, "_check_may_join", nothing)
        case "a commit appends to a log that ends too early":
            patch.setattr(TailRecovery, "check_has_all", nothing)
        case "every batch is the next":
            patch.setattr(committer, "judge", always_next)
        case "a reader asks for no member":
            patch.setattr(watch, "find_missing_parts", lambda *_: NOTHING)
        case "a reader takes a log that ends too early as it is":
            patch.setattr(rule, "_lacking", missing_and_not_lost)


BUGS: Final = {
    "a commit asks for no member": Bounds(batches=2, moves=2),
    "a commit appends to a log that ends too early": Bounds(batches=3, moves=1),
    "every batch is the next": Bounds(batches=2, moves=2),
    "a reader asks for no member": Bounds(batches=1, moves=1),
    "a reader takes a log that ends too early as it is": Bounds(batches=2, moves=1),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_protocol_with_a_mistake_is_found_out(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, bug)
    with pytest.raises(Broken):
        search_missing_members(BUGS[bug])
