"""Search what comes of one fault in a commit on three nodes, and see that mistakes are found.

CI searches at some of a commit's changes, ``make model`` at every second one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.support.commit_model import Broken
from tests.support.disk import Renamed
from tests.support.replica_model import (
    FAULTS,
    Fault,
    begun,
    changes_of_a_commit,
    search_replicas,
    visit,
)

from kafkalog.checkpoints import commit_state as replica_state
from kafkalog.checkpoints import voters
from kafkalog.checkpoints.commit_state import PREPARED_FILE, STATE_FILE
from kafkalog.streaming.store.replicas import controller as deciding
from kafkalog.streaming.store.replicas import copying
from kafkalog.streaming.store.replicas import quorum as several_nodes
from kafkalog.streaming.store.replicas.quorum import Quorum

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.crash

LARGE: Final = "KAFKALOG_MODEL_LARGE" in os.environ
STRIDE: Final = 2 if LARGE else int(os.environ.get("KAFKALOG_KILL_STRIDE", "499"))


ALIKE: Final = ("loss of a", "loss of c")
"""What they show, the loss of ``b`` and that of two show, too."""


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=pytest.mark.nightly) if fault in ALIKE else fault
        for fault in FAULTS
    ],
)
def test_no_single_fault_loses_a_row_or_doubles_one_or_lets_replicas_differ(fault: str) -> None:
    first = _lock_losses() if fault == "locks lost" else FAULTS.index(fault) * 7
    assert search_replicas(fault, stride=STRIDE, first=first) > 10


def _lock_losses() -> int:
    """Return the change from which on all records are in the logs."""
    return _slot(PREPARED_FILE)


def _slot(name: str, number: int = 0) -> int:
    """Return the change that puts a file of this name in place, on a node."""
    changes = changes_of_a_commit(begun())
    found = [n for n, each in enumerate(changes) if isinstance(each, Renamed) and each.name == name]
    return found[number]


def on_one_node(patch: pytest.MonkeyPatch) -> None:
    """Prepare on one node only: it is renamed there, and nobody else has it."""
    prepare = Quorum._prepare

    def on_first(nodes: Quorum, node: int, state: Any) -> bool:
        return node == nodes.live[0] and prepare(nodes, node, state)

    patch.setattr(Quorum, "_prepare", on_first)


def one_is_enough(patch: pytest.MonkeyPatch) -> None:
    """Take one node for a majority."""
    for module in (replica_state, several_nodes, voters):
        patch.setattr(module, "majority_of", lambda _: 1)


def without_claim(patch: pytest.MonkeyPatch) -> None:
    """Roll back without publishing the present state under a new epoch first."""

    def only_said(log_set: Any, state: Any, *_: object) -> None:
        log_set.state = state

    patch.setattr(deciding, "_claim", only_said)


def without_raise(patch: pytest.MonkeyPatch) -> None:
    """Cut logs and go on under the same leader epoch."""
    patch.setattr(deciding, "with_raised_epochs", lambda state, _: state)


def without_verification(patch: pytest.MonkeyPatch) -> None:
    """Rename without looking at the locks after preparing."""
    publish = Quorum.publish

    def unverified(nodes: Quorum, state: Any, check: Callable[[], None]) -> Any:
        check()
        return publish(nodes, state, lambda: None)

    patch.setattr(Quorum, "publish", unverified)


def without_comparison(patch: pytest.MonkeyPatch) -> None:
    """Take bytes of a node that comes back for those of its leader."""
    patch.setattr(copying, "equal_bytes", lambda *arguments: arguments[-1])


MISTAKES: Final[dict[str, tuple[Any, Callable[[], Fault]]]] = {
    "nothing is prepared": (
        on_one_node,
        lambda: Fault("kill", _slot(STATE_FILE) + 1, 0, 1),
    ),
    "one is a majority": (
        one_is_enough,
        lambda: Fault("loss of two", _slot(PREPARED_FILE), 2, None),
    ),
    "no claim before a take-back": (
        without_claim,
        lambda: Fault("kill", _slot(PREPARED_FILE) + 1, 0, 1, recovers=True),
    ),
    "leader epochs are not raised": (
        without_raise,
        lambda: Fault("kill", _slot(PREPARED_FILE), None, 1),
    ),
    "locks are not verified after preparing": (
        without_verification,
        lambda: Fault("locks lost", _slot(PREPARED_FILE) + 1, None, 1),
    ),
    "bytes are not compared": (
        without_comparison,
        lambda: Fault("kill", _slot(PREPARED_FILE), 0, 1),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, fault_of = MISTAKES[mistake]
    start, fault = begun(), fault_of()
    assert visit(start, fault)  # the mistake alone is what is found
    plant(monkeypatch)
    with pytest.raises(Broken):
        visit(start, fault)
