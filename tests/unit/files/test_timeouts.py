"""An action continues without a folder in which a call does not return."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kafkalog.files.closing import Closing
from kafkalog.files.deferred_signals import check_interrupt
from kafkalog.files.timeouts import (
    LeftBehind,
    at,
    hold,
    let_go,
    run_with_timeout,
    stalled,
    taken_over,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

A, B = Path("/of-a-test/a"), Path("/of-a-test/b")
LIMIT_MS = 50
LONG_S = 60.0


class Call:
    """A call that does not return before it is released, and what came of its thread."""

    def __init__(self) -> None:
        self._released = threading.Event()
        self.has_come = threading.Event()
        self.ended = threading.Event()
        self.steps: list[str] = []

    def stall(self) -> None:
        self.has_come.set()
        assert self._released.wait(LONG_S)

    def release(self) -> None:
        self._released.set()


@pytest.fixture
def call() -> Iterator[Call]:
    made = Call()
    yield made
    if made.has_come.is_set():
        until_returned(made)


class Held(Closing):
    def __init__(self) -> None:
        self.closed_by: list[int] = []

    def close(self) -> None:
        self.closed_by.append(threading.get_ident())


def stalling_once(call: Call, then: Callable[[], None] = lambda: None) -> Callable[[], str]:
    """Return an action of two folders, the first of which stalls the first time."""

    def action() -> str:
        is_first = not call.has_come.is_set()
        if is_first:
            try:
                with at(A / "file"):
                    call.stall()
                    call.steps.append("returned")
                call.steps.append("late")
            finally:
                then()
                call.ended.set()
        with at(B):
            return "without a"

    return action


def until_returned(call: Call) -> None:
    call.release()
    assert call.ended.wait(LONG_S)
    for _ in range(1000):
        if stalled(A) is None:
            return
        threading.Event().wait(0.01)
    raise AssertionError


def test_what_an_action_returns_or_raises_comes_back() -> None:
    assert run_with_timeout(lambda: 3, [A], LIMIT_MS) == 3
    with pytest.raises(KeyError):
        run_with_timeout(lambda: {}["no"], [A], LIMIT_MS)


def test_without_a_limit_it_runs_in_the_same_thread() -> None:
    assert run_with_timeout(threading.get_ident, [A], None) == threading.get_ident()
    assert run_with_timeout(threading.get_ident, [A], LIMIT_MS) != threading.get_ident()


def test_an_action_within_another_is_a_part_of_it() -> None:
    def both() -> list[int]:
        return [threading.get_ident(), run_with_timeout(threading.get_ident, [A], LIMIT_MS)]

    one, other = run_with_timeout(both, [A], LIMIT_MS)
    assert one == other


def test_it_begins_again_without_the_folder_that_stalls(call: Call) -> None:
    assert run_with_timeout(stalling_once(call), [A, B], LIMIT_MS) == "without a"
    assert stalled(A) is not None
    assert stalled(B) is None


def test_what_was_left_behind_ends_with_the_call_that_stalled(call: Call) -> None:
    run_with_timeout(stalling_once(call), [A, B], LIMIT_MS)
    until_returned(call)
    assert call.steps == ["returned"]
    assert stalled(A) is None


def test_what_was_left_behind_comes_to_no_other_folder(call: Call) -> None:
    def clear_up() -> None:
        with suppress(LeftBehind), at(B):
            call.steps.append("late")

    run_with_timeout(stalling_once(call, clear_up), [A, B], LIMIT_MS)
    until_returned(call)
    assert call.steps == ["returned"]


def test_it_is_asked_to_stop(call: Call) -> None:
    def action() -> str:
        if not call.has_come.is_set():
            try:
                with at(A):
                    call.stall()
                    check_interrupt()
                    call.steps.append("late")
            finally:
                call.ended.set()
        return ""

    run_with_timeout(action, [A], LIMIT_MS)
    until_returned(call)
    assert not call.steps


def test_nobody_comes_to_a_folder_in_which_a_call_is_out(call: Call) -> None:
    run_with_timeout(stalling_once(call), [A, B], LIMIT_MS)

    def come() -> None:
        with at(A):
            raise AssertionError

    with pytest.raises(OSError, match="still out"):
        run_with_timeout(come, [A, B], LIMIT_MS)
    until_returned(call)
    with pytest.raises(AssertionError):
        run_with_timeout(come, [A, B], LIMIT_MS)


def test_signs_of_life_are_waited_for() -> None:
    def slow() -> str:
        with at(A):
            for _ in range(20):
                threading.Event().wait(LIMIT_MS / 5000)
                check_interrupt()
        return "done"

    assert run_with_timeout(slow, [A], LIMIT_MS) == "done"


def test_who_is_at_no_folder_is_waited_for() -> None:
    def slow() -> str:
        threading.Event().wait(LIMIT_MS / 200)
        return "done"

    assert run_with_timeout(slow, [A], LIMIT_MS) == "done"


def test_what_is_held_elsewhere_passes_on_and_in_the_folder_is_kept(call: Call) -> None:
    here, there = Held(), Held()
    mine: list[bool] = []
    passed: list[object] = []
    inner = stalling_once(call, lambda: mine.extend(let_go([each]) for each in (A, B)))

    def action() -> str:
        if not call.has_come.is_set():
            hold([A], here)
            hold([B], there)
        else:
            passed.extend(taken_over([each]) for each in (A, B))
        return inner()

    assert run_with_timeout(action, [A, B], LIMIT_MS) == "without a"
    assert passed == [None, there]
    until_returned(call)
    assert mine == [True, False]


def test_what_nobody_takes_over_is_closed(call: Call) -> None:
    held = Held()
    inner = stalling_once(call)

    def action() -> str:
        if not call.has_come.is_set():
            hold([B], held)
        return inner()

    run_with_timeout(action, [A, B], LIMIT_MS)
    assert held.closed_by == [threading.get_ident()]


def test_a_handler_of_exceptions_does_not_keep_a_thread_that_was_left_behind() -> None:
    assert not issubclass(LeftBehind, Exception)


def test_a_forked_child_leaves_no_folder_alone(call: Call) -> None:
    """The call is out in its parent, and would never return to the child."""
    run_with_timeout(stalling_once(call), [A, B], LIMIT_MS)
    assert stalled(A) is not None
    child = os.fork()
    if child == 0:
        os._exit(0 if stalled(A) is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert stalled(A) is not None
