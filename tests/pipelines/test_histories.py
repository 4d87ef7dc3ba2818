"""Pipelines whose source, target or checkpoint is set back: nothing is lost, doubled or mixed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from tests.pipelines.guards import GUARDS
from tests.pipelines.histories import KINDS, History

if TYPE_CHECKING:
    from pathlib import Path

HISTORIES: Final = 25
"""``make pipelines`` runs more."""


@pytest.mark.parametrize("number", range(HISTORIES))
def test_a_target_has_what_its_source_held_whatever_is_set_back(
    tmp_path: Path, number: int
) -> None:
    for kind in KINDS:
        (tmp_path / kind).mkdir()
        History(tmp_path / kind, f"pipelines/{number}", kind).run()


@pytest.mark.parametrize("what", GUARDS)
def test_a_history_finds_that_a_guard_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    guard = GUARDS[what]
    for name in ("with", "without"):
        (tmp_path / name).mkdir()
    History(tmp_path / "with", guard.history, guard.kind).run(guard.amid)
    guard.take_out(monkeypatch)
    with pytest.raises(AssertionError):
        History(tmp_path / "without", guard.history, guard.kind).run(guard.amid)
