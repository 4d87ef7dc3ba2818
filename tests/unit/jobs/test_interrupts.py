"""Ctrl-C and SIGTERM while Spark starts, and after that."""

from __future__ import annotations

import logging
import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from kafkalog.files.system import system
from kafkalog.jobs.process.signals import cancel_jobs_on_interrupt, uninterrupted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Have Python's own handlers, and the old ones again after the test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def starting(*signals: signal.Signals, release: threading.Event) -> Callable[[], str]:
    """Return what starts once it is released, and gets signals before."""

    def start() -> str:
        for number in signals:
            handler = signal.getsignal(number)
            os.kill(os.getpid(), number)
            while signal.getsignal(number) is handler:  # the main thread has not handled it yet
                system.sleep(0.001)
        assert release.wait(60)
        return "spark"

    return start


def started_by(prepare: Callable[[], str], roll_back: Callable[[str], object]) -> str:
    """Prepare something, which is what starts then."""
    prepared: list[str] = []
    return uninterrupted(lambda: prepared.append(prepare()), prepared.pop, roll_back)


def test_what_starts_last_starts_in_this_thread() -> None:
    threads: list[threading.Thread] = []

    def note() -> None:
        threads.append(threading.current_thread())

    uninterrupted(note, note, str)
    assert threads[0] is not threads[1]
    assert threads[1] is threading.current_thread()


@pytest.fixture
def released() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


def test_what_starts_undisturbed_is_returned(released: threading.Event) -> None:
    ended: list[str] = []
    assert started_by(starting(release=released), ended.append) == "spark"
    assert not ended
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_one_signal_waits_until_it_has_started_and_ends_it(
    number: signal.Signals,
    error: type[BaseException],
    released: threading.Event,
) -> None:
    ended: list[str] = []
    with pytest.raises(error) as raised:
        started_by(starting(number, release=released), ended.append)
    assert ended == ["spark"]
    assert getattr(raised.value, "code", None) in {None, 143}


def test_the_wait_for_spark_is_told(
    released: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[str] = []

    def start() -> str:
        spark = starting(signal.SIGINT, release=released)()
        said = ""
        while "Ctrl-C again ends it now" not in said:
            said += capsys.readouterr().err
            system.sleep(0.001)
        return spark

    with pytest.raises(KeyboardInterrupt):
        started_by(start, ended.append)
    assert ended == ["spark"]


def test_a_second_signal_does_not_wait(released: threading.Event) -> None:
    never = threading.Event()
    ended: list[str] = []

    def start() -> str:
        starting(signal.SIGINT, release=released)()
        os.kill(os.getpid(), signal.SIGINT)
        assert never.wait(60)
        return "spark"

    with pytest.raises(KeyboardInterrupt):
        started_by(start, ended.append)
    never.set()
    assert not ended


def test_what_fails_to_start_raises_its_error() -> None:
    def fail() -> str:
        raise ValueError("no Java")

    with pytest.raises(ValueError, match="no Java"):
        started_by(fail, str)


def test_other_threads_start_without_handlers(released: threading.Event) -> None:
    with system.pool(1, "starts") as pool:
        started = pool.submit(started_by, starting(release=released), str)
        assert started.result() == "spark"


class Context:
    """Spark's context, which can cancel what runs."""

    def __init__(self) -> None:
        self.cancelled_in: list[str] = []

    def cancelAllJobs(self) -> None:  # noqa: N802 - as Spark's
        self.cancelled_in.append(threading.current_thread().name)


def test_an_interrupt_cancels_jobs_from_a_thread_of_its_own() -> None:
    context = Context()
    cancel_jobs_on_interrupt(context)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert len(context.cancelled_in) == 1
    assert context.cancelled_in[0] != threading.main_thread().name


def test_a_later_context_has_its_jobs_cancelled() -> None:
    contexts = [Context(), Context()]
    for context in contexts:
        cancel_jobs_on_interrupt(context)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    assert [len(context.cancelled_in) for context in contexts] == [0, 1]


def test_a_handler_that_is_there_stays() -> None:
    def mine(*_: object) -> None:
        """Stand for a pipeline's own."""

    signal.signal(signal.SIGINT, mine)
    cancel_jobs_on_interrupt(Context())  # type: ignore[arg-type]
    assert signal.getsignal(signal.SIGINT) is mine


@pytest.mark.parametrize("name", ["py4j.clientserver", "py4j.java_gateway"])
def test_a_call_that_an_interrupt_breaks_off_is_not_logged_and_others_are(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    cancel_jobs_on_interrupt(Context())  # type: ignore[arg-type]
    for error in (KeyboardInterrupt, OSError):
        try:
            raise error
        except (KeyboardInterrupt, OSError):
            logging.getLogger(name).exception("broken off")
    assert [record.exc_info and record.exc_info[0] for record in caplog.records] == [OSError]
