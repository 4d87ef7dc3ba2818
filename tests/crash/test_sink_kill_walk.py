"""SIGKILL at each call of a commit that changes a file, one after the other; then go on.

Interrupts (Ctrl-C, alarms) likewise. CI ends it at every 13th call, and interrupts it at every
29th, from another one on in each case; ``make kills`` at all of them.
"""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import pytest
from tests.support.interrupting import AlarmError, interrupted_at
from tests.support.killing import count_calls, run_and_kill
from tests.support.scenes import CASES, Case, Scene, check_indexes

from kafkalog.streaming.admin.recovery import recover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.crash

STRIDE: Final = int(os.environ.get("KAFKALOG_KILL_STRIDE", "59"))
INTERRUPT_STRIDE: Final = int(os.environ.get("KAFKALOG_KILL_STRIDE", "113"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder in memory where there is one: a killed process loses nothing there either."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="sink-") as name:
        yield Path(name)


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Case:
    """Give each case, and let commits do what it wants."""
    request.param.apply(monkeypatch)
    return request.param


def template_of(case: Case, folder: Path) -> Path:
    Scene(case, folder).prepare()
    return folder


def copied(case: Case, template: Path, folder: Path) -> Scene:
    shutil.copytree(template, folder)
    return Scene(case, folder)


def walk(attempt: Callable[[int], bool], case: Case, stride: int = STRIDE) -> int:
    """Call ``attempt`` with the number of each call until nothing is cut off any more."""
    call = CASES.index(case) % stride
    while attempt(call):
        call += stride
    return call


@pytest.mark.parametrize("half", [False, True], ids=["before", "within a write"])
def test_whichever_call_a_commit_is_killed_at_each_row_is_there_once(
    case: Case, half: bool, folder: Path
) -> None:
    template = template_of(case, folder / "template")
    done = case.before + 1

    def attempt(call: int) -> bool:
        scene = copied(case, template, folder / str(call))
        died = run_and_kill(lambda: scene.write(case.before, "run-1"), call, half=half)
        scene.check_guarded()
        assert scene.values() in (scene.expected(case.before), scene.expected(done))
        scene.write(case.before, "run-2")
        assert scene.values() == scene.expected(done)
        scene.check_clean()
        check_indexes(scene.directories)
        scene.write(done, "run-2")
        assert scene.values() == scene.expected(done + 1)
        scene.check_clean()
        shutil.rmtree(scene.folder)
        return died

    assert walk(attempt, case) > 20


def test_whichever_call_a_recovery_is_killed_at_each_row_is_there_once(
    case: Case, folder: Path
) -> None:
    template = template_of(case, folder / "template")
    counting = copied(case, template, folder / "counting")
    calls = count_calls(lambda: counting.write(case.before, "run-1"))
    # Deep in the commit, where most is there to be rolled back.
    first = calls * 3 // 5
    unfinished = copied(case, template, folder / "unfinished")
    assert run_and_kill(lambda: unfinished.write(case.before, "run-1"), first)
    done = case.before + 1

    def attempt(call: int) -> bool:
        scene = copied(case, unfinished.folder, folder / f"r{call}")
        died = run_and_kill(lambda: scene.write(case.before, "run-2"), call)
        scene.check_guarded()
        assert scene.values() in (scene.expected(case.before), scene.expected(done))
        scene.write(case.before, "run-3")
        assert scene.values() == scene.expected(done)
        scene.check_clean()
        check_indexes(scene.directories)
        shutil.rmtree(scene.folder)
        return died

    assert walk(attempt, case) > 20


def check_none_running() -> None:
    """No thread of ours goes on beneath the next commit; one that has done all may still end.

    Those that read ahead in stores wait for more to read.
    """
    ours = [each for each in threading.enumerate() if each.name.startswith("kafkalog")]
    ours = [each for each in ours if not each.name.startswith("kafkalog-ahead")]
    for thread in ours:
        thread.join(30)
    assert not [thread.name for thread in ours if thread.is_alive()]


@pytest.mark.parametrize("times", [1, 2], ids=["once", "and again while it stops"])
def test_whichever_call_a_commit_is_interrupted_at_each_row_is_there_once(
    case: Case, times: int, folder: Path
) -> None:
    template = template_of(case, folder / "template")
    done = case.before + 1

    def attempt(call: int) -> bool:
        scene = copied(case, template, folder / str(call))
        with interrupted_at(call, times=times) as reached:
            try:
                scene.write(case.before, "run-1")
            except AlarmError as error:
                is_done = any("it is done" in note for note in getattr(error, "__notes__", ()))
            else:
                is_done = True
        check_none_running()
        scene.check_guarded()
        seen = scene.values()
        assert seen in (scene.expected(case.before), scene.expected(done))
        assert not is_done or seen == scene.expected(done)
        scene.write_another()
        assert scene.values() == seen
        scene.write(case.before, "run-2")
        assert scene.values() == scene.expected(done)
        scene.check_clean()
        check_indexes(scene.directories)
        shutil.rmtree(scene.folder)
        return reached()

    assert walk(attempt, case, INTERRUPT_STRIDE) > 20


def test_whichever_call_a_recovery_is_interrupted_at_each_row_is_there_once(
    case: Case, folder: Path
) -> None:
    template = template_of(case, folder / "template")
    counting = copied(case, template, folder / "counting")
    calls = count_calls(lambda: counting.write(case.before, "run-1"))
    unfinished = copied(case, template, folder / "unfinished")
    assert run_and_kill(lambda: unfinished.write(case.before, "run-1"), calls * 3 // 5)

    def attempt(call: int) -> bool:
        scene = copied(case, unfinished.folder, folder / f"i{call}")
        with interrupted_at(call) as reached, suppress(AlarmError):
            recover([str(directory) for directory in scene.directories])
        check_none_running()
        scene.check_guarded()
        scene.write_another()
        assert scene.values() == scene.expected(case.before)
        scene.write(case.before, "run-2")
        assert scene.values() == scene.expected(case.before + 1)
        scene.check_clean()
        shutil.rmtree(scene.folder)
        return reached()

    assert walk(attempt, case, INTERRUPT_STRIDE) > 0
