"""Ctrl-C and alarms: what holds the locks comes to its own end before anything is raised."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from tests.support.interrupting import AlarmError, interrupted_at, raising
from tests.support.killing import run_and_kill
from tests.support.sinking import Writer, rows, values_of

import kafkalog
from kafkalog.errors import CommitError, KafkaLogError
from kafkalog.files.deferred_signals import (
    Interrupted,
    check_interrupt,
    in_shielded_steps,
    pause,
    shielded,
    shielded_rest,
    shielded_step,
)
from kafkalog.files.open_file import LocalFile
from kafkalog.files.parallel import for_each
from kafkalog.files.system import ThreadPool, system
from kafkalog.streaming.admin.recovery import recover
from kafkalog.streaming.store.locks import DirectoryLocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def interrupt() -> Iterator[Any]:
    with raising() as call:
        yield call


@pytest.fixture
def begun() -> Callable[[], list[str]]:
    """Name the threads of ours that began in the test and are alive.

    The pools of remote files stay with a process: another test may have left some.
    """
    before = set(threading.enumerate())
    return lambda: [
        thread.name
        for thread in threading.enumerate()
        if thread not in before and thread.name.startswith("kafkalog")
    ]


@pytest.fixture
def press_ctrl_c() -> Iterator[Callable[[], None]]:
    """Send the signal from any thread, and wait until the main thread has it: a load delays it."""
    arrived = threading.Event()

    def handle(number: int, frame: Any) -> None:
        arrived.set()
        signal.default_int_handler(number, frame)

    def press() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert arrived.wait(60)
        time.sleep(0.2)  # what it raises comes a few steps after it

    before = signal.signal(signal.SIGINT, handle)
    yield press
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("times", [1, 5])
def test_what_is_interrupted_ends_before_the_interrupt_is_raised(
    interrupt: Any, times: int
) -> None:
    ended = []

    def work() -> None:
        for _ in range(times):
            interrupt()
        ended.append(True)

    with pytest.raises(AlarmError) as raised:
        shielded(work)()
    assert ended == [True]
    assert "it is done" in "".join(raised.value.__notes__)


def test_what_is_interrupted_stops_where_it_may(interrupt: Any) -> None:
    steps = []

    def work() -> None:
        for step in range(5):
            check_interrupt()
            steps.append(step)
            if step == 1:
                interrupt()

    with pytest.raises(AlarmError) as raised:
        shielded(work)()
    assert steps == [0, 1]
    assert raised.value.__notes__ == ["kafkalog: it was stopped before it was done"]


def test_an_interrupt_amid_the_rest_says_that_all_that_was_wanted_is_done(interrupt: Any) -> None:
    def work() -> None:
        interrupt()
        check_interrupt()

    with pytest.raises(AlarmError) as raised:
        shielded_rest(work)()
    assert "it is done" in "".join(raised.value.__notes__)


def test_what_clears_up_after_an_interrupt_is_not_stopped_by_the_same_one(interrupt: Any) -> None:
    steps = []

    def work() -> None:
        interrupt()
        try:
            check_interrupt()
        except Interrupted:
            check_interrupt()
            steps.append("cleared up")
            raise

    with pytest.raises(AlarmError):
        shielded(work)()
    assert steps == ["cleared up"]


def test_errors_and_values_of_shielded_work_are_its_callers() -> None:
    assert shielded(lambda value: value + 1)(1) == 2
    with pytest.raises(CommitError, match="no"):
        shielded(_fail)()


def _fail() -> None:
    raise CommitError("no")


def test_of_calls_in_threads_none_begins_after_an_interrupt_and_all_have_ended(
    interrupt: Any,
) -> None:
    begun, ended = [], []
    first = threading.Event()

    def act(number: int) -> None:
        begun.append(number)
        if number == 0:
            interrupt()
            first.set()
        first.wait()
        ended.append(number)

    with pytest.raises(AlarmError):
        shielded(lambda: for_each(act, range(100)))()
    assert sorted(begun) == sorted(ended)
    assert len(begun) <= 8


def test_of_calls_in_threads_none_begins_after_one_has_failed() -> None:
    begun = []

    def act(number: int) -> None:
        begun.append(number)
        if number == 0:
            raise OSError("full")
        time.sleep(0.001)

    with pytest.raises(OSError, match="full"):
        for_each(act, range(10_000))
    assert len(begun) < 10_000


def table(name: str, partitions: int) -> pa.Table:
    values = [f"{name}{number}" for number in range(partitions)]
    return pa.table({"value": values, "partition": pa.array(range(partitions), pa.int32())})


def values(folder: Path) -> list[str]:
    found = kafkalog.read(folder, "t", columns=["value"], strings=["value"]).read_all()
    return sorted(found.column("value").to_pylist())


def test_after_ctrl_c_in_an_append_of_many_partitions_the_next_one_is_left_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    begun: Callable[[], list[str]],
    press_ctrl_c: Callable[[], None],
) -> None:
    options = {"numPartitions": "40"}
    original, sent = os.pwrite, threading.Event()

    def interrupted(*arguments: Any) -> int:
        if threading.current_thread().name.startswith("kafkalog") and not sent.is_set():
            sent.set()
            press_ctrl_c()
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", interrupted)
        with pytest.raises(KeyboardInterrupt):
            kafkalog.append(tmp_path, "t", table("a", 40), options=options)
    assert begun() == []
    kafkalog.append(tmp_path, "t", table("b", 40), options=options)
    assert values(tmp_path) == sorted(f"b{number}" for number in range(40))


def test_after_ctrl_c_in_a_recovery_of_many_partitions_the_next_append_is_left_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    begun: Callable[[], list[str]],
    press_ctrl_c: Callable[[], None],
) -> None:
    options = {"numPartitions": "12"}
    kafkalog.append(tmp_path, "t", table("a", 12), options=options)
    last = 0
    while run_and_kill(
        lambda: kafkalog.append(tmp_path, "t", table("b", 12), options=options), last + 20
    ):
        last += 20
        if (tmp_path / "kafkalog.intent").exists():
            break
    original, sent = os.ftruncate, threading.Event()

    def interrupted(*arguments: Any) -> None:
        if not sent.is_set():
            sent.set()
            press_ctrl_c()
        original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            recover([str(tmp_path)])
    assert sent.is_set()
    assert begun() == []
    kafkalog.append(tmp_path, "t", table("c", 12), options=options)
    assert values(tmp_path) == sorted(f"{name}{n}" for name in "ac" for n in range(12))


def test_who_waits_for_a_lock_can_be_interrupted(tmp_path: Path, interrupt: Any) -> None:
    writer = Writer(tmp_path, topic="t")
    runs = writer.stage(0, rows(["a"]))
    held, free = threading.Event(), threading.Event()

    def hold() -> None:
        with DirectoryLocks([tmp_path], holder="other", timeout_ms=0):
            held.set()
            free.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    alarm = threading.Timer(0.1, interrupt)
    alarm.start()
    try:
        with pytest.raises(AlarmError):
            writer.commit(0, runs)
    finally:
        alarm.join()
        free.set()
        holder.join()
    writer.commit(0, runs)
    assert values_of([tmp_path], "t") == {0: ["a"]}


def test_an_interrupt_that_is_too_late_says_that_the_batch_is_committed(tmp_path: Path) -> None:
    writer = Writer(tmp_path, topic="t")
    call, was_late = 0, False
    while True:
        folder = tmp_path / str(call)
        writer = Writer(folder, topic="t")
        runs = writer.stage(0, rows(["a"]))
        with interrupted_at(call) as reached:
            try:
                writer.commit(0, runs)
            except AlarmError as error:
                is_committed = "it is done" in "".join(error.__notes__)
                was_late |= is_committed
                assert values_of([folder], "t") in (
                    ({0: ["a"]},) if is_committed else ({}, {0: []})
                )
        if not reached():
            break
        call += 3
    assert was_late


@pytest.mark.long
@pytest.mark.parametrize("isolated_per_node", [None, 30])
def test_what_is_said_of_an_interrupted_append_is_said_of_all_of_it(
    tmp_path: Path, isolated_per_node: int | None
) -> None:
    """Not of the set that it makes first, nor of what clears up when it is interrupted again."""
    call, said = 0, set()
    while True:
        folder = tmp_path / str(call)
        again = (
            nullcontext() if isolated_per_node is None else interrupted_at(call + isolated_per_node)
        )
        with again, interrupted_at(call) as reached:
            try:
                kafkalog.append(folder, "t", table("a", 1), options={"numPartitions": 1})
            except AlarmError as error:
                for note in getattr(error, "__notes__", []):
                    is_done = "it is done" in note
                    said.add(is_done)
                    assert (values_of([folder], "t") == {0: ["a0"]}) == is_done
        if not reached():
            break
        call += 5 if isolated_per_node is None else 17  # each call is traced twice
    assert said == {False, True}


_UNDER_ITS_CALLERS = {
    "__enter__",  # of a session, which they open
    "_lock",  # of one of several nodes
    "__init__",
    "opened_set",
    "_hand_over_one",
    "_take_over_one",
    "_back_up_nodes",
    "opened_nodes",
    "_ensure_set",
    "check_no_broker",
    "_commit",
    "_copy_set",
    "_opened",
    "opened_after_broker",
    "opened_logs",
    "_session",
}


def test_nothing_takes_locks_but_in_a_shielded_thread() -> None:
    """Whatever is interrupted there ends first. The rest is called by what is shielded."""
    package = Path(kafkalog.__path__[0])
    found = []
    for path in [*package.glob("streaming/**/*.py"), *package.glob("jobs/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and _takes_locks(node):
                found.append(node.name)
                decorators = {d.id for d in node.decorator_list if isinstance(d, ast.Name)}
                assert (
                    decorators & {"shielded", "shielded_part", "shielded_rest"}
                    or node.name in _UNDER_ITS_CALLERS
                ), f"{path.name}: {node.name} takes locks, and is not @shielded"
    assert {"recover", "_take_over_one", "_hand_over_one", "_drop"} <= {*found}


def _takes_locks(function: ast.FunctionDef) -> bool:
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    used = [call.func for call in calls]
    used += [call.args[0] for call in calls if getattr(call.func, "id", "") == "partial"]
    names = {each.id if isinstance(each, ast.Name) else getattr(each, "attr", "") for each in used}
    takers = {"DirectoryLocks", "Session", "session_of", "opened_set", "_session"}
    return bool(names & takers)


def no_thread(*_: Any) -> int:
    raise FinalizationError("can't create new thread at interpreter shutdown")


class FinalizationError(RuntimeError):
    """What Python 3.13 raises there; earlier ones raise a RuntimeError itself."""


def test_where_no_thread_can_be_started_the_caller_does_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.12 starts none once the main thread has ended."""
    monkeypatch.setattr(system, "start_thread", no_thread)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert shielded(threading.get_ident)() == threading.get_ident()
    assert shielded(lambda: 1)() == 1, "it is not in a shielded thread for ever"
    options = {"numPartitions": 20, "max.block.ms": 5000}
    partitions = pa.array(range(20), pa.int32())
    rows = pa.table({"value": ["a"] * 20, "partition": partitions})
    kafkalog.append(tmp_path, "t", rows, options=options)
    start = {"startingOffsets": "earliest"}
    assert next(kafkalog.tail(tmp_path, "t", options=start)).num_rows == 1
    with kafkalog.Consumer(tmp_path, "g", "t", options=start) as reader:
        assert reader.poll(5) is not None
        reader.commit()


@pytest.mark.parametrize("ends_as", ["thread", "exit hook"])
def test_rows_are_appended_and_polled_after_the_main_thread_has_ended(
    tmp_path: Path, ends_as: str
) -> None:
    code = """
import atexit, sys, threading, pyarrow as pa, kafkalog
folder, ends_as = sys.argv[1:]
rows = pa.table({"value": ["late"]})

def late():
    if ends_as == "thread":
        threading.main_thread().join()
    kafkalog.append(folder, "t", rows, options={"numPartitions": 1})
    start = {"startingOffsets": "earliest"}
    with kafkalog.Consumer(folder, "g", "t", options=start) as reader:
        print(reader.poll(5).num_rows)
        reader.commit()

if ends_as == "thread":
    threading.Thread(target=late).start()
else:
    atexit.register(late)
"""
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), ends_as],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.stdout, ran.stderr) == ("1\n", "")


def test_a_pool_does_all_in_so_many_threads_and_reuses_idle_ones() -> None:
    seen, most = set(), 0
    running, guard = 0, threading.Lock()

    def work(number: int) -> int:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
            seen.add(threading.current_thread().name)
        time.sleep(0.001)
        with guard:
            running -= 1
        if number == 7:
            raise CommitError("no")
        return number

    with ThreadPool(3, "kafkalog-test") as pool:
        futures = [pool.submit(work, number) for number in range(50)]
    assert [each.result() for n, each in enumerate(futures) if n != 7] == [*range(7), *range(8, 50)]
    with pytest.raises(CommitError):
        futures[7].result()
    assert most <= 3
    assert seen <= {f"kafkalog-test_{n}" for n in range(3)}
    with pytest.raises(RuntimeError, match="shut down"):
        pool.submit(work, 1)


def test_what_waits_in_a_pool_can_be_cancelled() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        goes_on.wait(60)

    with ThreadPool(1, "kafkalog-test") as pool:
        running, waiting = pool.submit(work), pool.submit(work)
        assert begun.wait(60)
        assert waiting.cancel()
        goes_on.set()
        assert running.result() is None


def test_steps_that_were_cut_off_do_not_seem_to_have_ended(interrupt: Any) -> None:
    @in_shielded_steps("count")
    def numbers() -> Iterator[int]:
        for number in range(5):
            if number == 2:
                interrupt()
                check_interrupt()
            yield number

    found = numbers()
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(AlarmError):
        next(found)
    with pytest.raises(KafkaLogError, match="this count was cut off by an error or an interrupt"):
        next(found)


def test_an_interrupt_of_a_step_needs_no_note_and_ends_a_rest(interrupt: Any) -> None:
    def step() -> None:
        interrupt()
        pause(600)

    with pytest.raises(AlarmError) as raised:
        shielded_step(step)()
    assert not hasattr(raised.value, "__notes__")


def test_a_descriptor_is_never_closed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"a")
    closed: list[int] = []
    close = os.close

    def interrupted(descriptor: int) -> None:
        close(descriptor)
        closed.append(descriptor)
        raise KeyboardInterrupt

    file = LocalFile(os.open(tmp_path / "a", os.O_RDONLY))
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            file.close()
        file.close()
    assert len(closed) == 1


def test_a_file_that_was_not_closed_is_closed_with_its_object(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    descriptor = os.open(tmp_path / "a", os.O_RDONLY)
    file = LocalFile(descriptor)
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
