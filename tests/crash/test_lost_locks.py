"""Let commits lose their locks at each change while another one comes between; plant mistakes.

CI plays a few scenes, ``make model`` more: ``docs/protocol.md``.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.support.commit_model import Broken
from tests.support.lost_locks_model import Scene, lose_locks_anywhere, on_a_network

from kafkalog.checkpoints.broker import write_topic_id
from kafkalog.errors import LogDirectoryError
from kafkalog.streaming.log import appender
from kafkalog.streaming.store.locks import DirectoryLocks
from kafkalog.streaming.store.log_set import LogSet
from kafkalog.streaming.store.recovery import rollback as recovery

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.crash

LARGE: Final = "KAFKALOG_MODEL_LARGE" in os.environ

SMALL_SCENES: Final = (
    Scene(),
    Scene(known=False, other="a"),
    Scene(cut_off=True),
)
LARGE_SCENES: Final = (
    Scene(other="a"),
    Scene(known=False),
    Scene(directories=2),
)


@pytest.mark.parametrize(
    "scene",
    [
        SMALL_SCENES[0],
        pytest.param(SMALL_SCENES[1], marks=pytest.mark.nightly),
        *SMALL_SCENES[2:],
        *(LARGE_SCENES if LARGE else ()),
    ],
    ids=str,
)
def test_a_commit_that_loses_its_locks_fails_and_overwrites_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_network(monkeypatch)
    assert lose_locks_anywhere(scene) > 15


def nothing(*_: object, **__: object) -> None:
    """Forget a step."""


def heedless(prove: Callable[..., None]) -> Callable[..., None]:
    """Let a proof have no consequence."""

    def proved(*arguments: Any) -> None:
        with suppress(LogDirectoryError):
            prove(*arguments)

    return proved


def replace_id(folder: Path, topic_id: str, **_: Any) -> None:
    """Write the id of a partition whose folder another writer has made again."""
    write_topic_id(folder, topic_id)


def plant(patch: pytest.MonkeyPatch, bug: str) -> None:
    match bug:
        case "a refused proof is ignored, and who has published":
            patch.setattr(DirectoryLocks, "_prove", heedless(DirectoryLocks._prove))
            patch.setattr(LogSet, "is_outdated", lambda _: False)
        case "a recovery lets the log continue in its segment":
            patch.setattr(recovery, "is_shared", lambda _: False)
        case "a partition's id is replaced":
            patch.setattr(appender, "write_topic_id", replace_id)
        case "a log is appended to wherever it ends":
            patch.setattr(appender, "_check_end", nothing)


BUGS: Final = {
    "a refused proof is ignored, and who has published": SMALL_SCENES[0],
    "a recovery lets the log continue in its segment": SMALL_SCENES[0],
    "a partition's id is replaced": SMALL_SCENES[1],
    "a log is appended to wherever it ends": SMALL_SCENES[2],
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_protocol_with_a_mistake_is_found_out(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_network(monkeypatch)
    plant(monkeypatch, bug)
    with pytest.raises(Broken):
        lose_locks_anywhere(BUGS[bug])
