"""A writer is stopped, another one goes on in its place, and the first one wakes up late."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from typing import TYPE_CHECKING

import pytest
from tests.support.sinking import Writer, rows, values_of

from kafkalog.checkpoints.commit_state import STAGED_PREFIX, UNFINISHED_FOLDER
from kafkalog.checkpoints.intent import INTENT_FILE
from kafkalog.errors import BatchIdentityError, FencedWriterError, LockTimeoutError
from kafkalog.streaming.commit.append import PartitionAppend
from kafkalog.streaming.store.locks import DirectoryLocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.crash

_WORKED, _REFUSED, _FAILED = 0, 3, 99


class Paused:
    """A process that has stopped itself somewhere."""

    def __init__(self, action: Callable[[], object], refusals: tuple[type[Exception], ...]) -> None:
        self.process = os.fork()
        if self.process == 0:
            code = _FAILED
            try:
                action()
                code = _WORKED
            except refusals:
                code = _REFUSED
            except BaseException:  # noqa: BLE001 - a child must not go on as its parent
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(self.process, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "it has ended instead of stopping"
        self.code: int | None = None

    def wake(self) -> int:
        """Let it go on to its end, and give its exit code."""
        os.kill(self.process, signal.SIGCONT)
        _, status = os.waitpid(self.process, 0)
        self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def end(self) -> None:
        if self.code is None:
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)


def stop_before(patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    original = getattr(owner, name)

    def stopping(*arguments: object, **named: object) -> object:
        # To this thread: one that the process gets may stop it some calls later.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        return original(*arguments, **named)

    patch.setattr(owner, name, stopping)


@pytest.fixture
def pause() -> Iterator[Callable[..., Paused]]:
    """Give what starts a process that stops before a method is called."""
    started: list[Paused] = []

    def pause(
        action: Callable[[], object], owner: type, name: str, *refusals: type[Exception]
    ) -> Paused:
        with pytest.MonkeyPatch.context() as patch:
            stop_before(patch, owner, name)
            started.append(Paused(action, refusals))
        return started[-1]

    yield pause
    for each in started:
        each.end()


def check_nothing_left(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert not names & {INTENT_FILE, UNFINISHED_FOLDER}
    assert not [name for name in names if name.startswith(STAGED_PREFIX)]


def test_a_run_that_was_replaced_while_it_was_stopped_is_refused_and_leaves_nothing(
    tmp_path: Path, pause: Callable[..., Paused]
) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a"]))
    old = Writer(tmp_path, topic="t", run="run-1")
    stopped = pause(
        lambda: old.write(1, rows(["late"])), DirectoryLocks, "__enter__", FencedWriterError
    )
    new = Writer(tmp_path, topic="t", run="run-2")
    new.write(1, rows(["b"]))
    new.write(2, rows(["c"]))
    assert stopped.wake() == _REFUSED
    new.write(3, rows(["d"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b", "c", "d"]}
    check_nothing_left(tmp_path)


def test_a_batch_that_comes_late_under_the_same_run_is_refused_too(
    tmp_path: Path, pause: Callable[..., Paused]
) -> None:
    """As when a query's checkpoint is copied, and both copies go on."""
    writer = Writer(tmp_path, topic="t")
    writer.write(0, rows(["a"]))
    stopped = pause(
        lambda: writer.write(1, rows(["late"]), digest="another"),
        DirectoryLocks,
        "__enter__",
        BatchIdentityError,
    )
    writer.write(1, rows(["b"]), digest="this")
    assert stopped.wake() == _REFUSED
    writer.write(2, rows(["c"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b", "c"]}
    check_nothing_left(tmp_path)


def test_a_writer_that_stops_in_the_middle_of_a_commit_keeps_others_out_until_it_has_ended_it(
    tmp_path: Path, pause: Callable[..., Paused]
) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a"]))
    stopped = pause(
        lambda: Writer(tmp_path, topic="t").write(1, rows(["b"])), PartitionAppend, "apply"
    )
    assert (tmp_path / UNFINISHED_FOLDER).is_dir()
    impatient = Writer(tmp_path, topic="t", name="another", max__block__ms="200")
    holder = f"batch 1 of query:4711, process {stopped.process} on "
    with pytest.raises(LockTimeoutError, match=holder):
        impatient.write(0, rows(["x"]))
    assert values_of([tmp_path], "t") == {0: ["a"]}
    assert stopped.wake() == _WORKED
    impatient.write(0, rows(["x"]))
    assert values_of([tmp_path], "t") == {0: ["a", "b", "x"]}
    check_nothing_left(tmp_path)


def test_a_writer_that_is_killed_while_stopped_in_a_commit_is_recovered_from(
    tmp_path: Path, pause: Callable[..., Paused]
) -> None:
    Writer(tmp_path, topic="t").write(0, rows(["a"]))
    stopped = pause(
        lambda: Writer(tmp_path, topic="t").write(1, rows(["b"])), PartitionAppend, "apply"
    )
    stopped.end()
    stopped.code = -signal.SIGKILL
    Writer(tmp_path, topic="t", run="run-2").write(1, rows(["c"]))
    assert values_of([tmp_path], "t") == {0: ["a", "c"]}
    check_nothing_left(tmp_path)
