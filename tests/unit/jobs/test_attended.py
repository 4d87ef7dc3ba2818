"""A pipeline that is asked to end: when it is stopped, and what is said of it."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from kafkalog.jobs.cli.app import app
from kafkalog.jobs.pipelines.supervised import Ended, attend, attend_pieces
from kafkalog.model import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Query:
    """A query that runs ``looks`` more looks' worth of a micro-batch once a signal has come."""

    name = "copy t"
    isActive = True  # noqa: N815 - as Spark's

    def __init__(self, looks: int, number: signal.Signals | None = signal.SIGTERM) -> None:
        self._looks = looks
        self._number = number
        self.stopped_after = -1
        self.looked = 0
        self.recentProgress: list[dict[str, Any]] = [
            {"batchId": batch, "numInputRows": rows} for batch, rows in enumerate((5, 0, 7))
        ]

    @property
    def lastProgress(self) -> dict[str, Any]:  # noqa: N802 - as Spark's
        return self.recentProgress[-1]

    @property
    def status(self) -> dict[str, Any]:
        self.looked += 1
        return {"isTriggerActive": self.looked <= self._looks}

    def awaitTermination(self, _: float) -> bool:  # noqa: N802 - as Spark's
        if self._number is None:
            return True
        os.kill(os.getpid(), self._number)
        return False

    def stop(self) -> None:
        self.stopped_after = self.looked


def end(query: Query, grace_ms: int = 60_000) -> Ended:
    return attend(query, grace_ms=grace_ms)  # type: ignore[arg-type]


def test_one_that_spark_ends_after_each_micro_batch_is_started_until_it_is_at_its_end() -> None:
    def query(batch: int, start: int, end: int) -> Query:
        made = Query(0, None)
        offsets = {"startOffset": f'{{"t":{{"0":{start}}}}}', "endOffset": f'{{"t":{{"0":{end}}}}}'}
        progress = {"batchId": batch, "numInputRows": end - start, "sources": [offsets]}
        made.recentProgress = [progress]
        return made

    def attended(end: int | None) -> str:
        runs = [query(8, 5, 9), query(9, 9, 9)]
        return attend(
            query(7, 0, 5),  # type: ignore[arg-type]
            grace_ms=0,
            start_again=lambda: runs.pop(0),  # type: ignore[arg-type, return-value]
            targets={} if end is None else {TopicPartition("t", 0): end},
        ).rows

    assert attended(None).startswith("copy t: 5 rows in 1 "), "Spark keeps to the end itself"
    assert attended(5).startswith("copy t: 5 rows in 1 "), "what comes meanwhile can wait"
    assert attended(6).startswith("copy t: 9 rows in 2 ")
    assert attended(10).startswith("copy t: 9 rows in 2 "), "nothing is new, whatever was to come"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_is_stopped_when_its_micro_batch_has_ended(
    number: signal.Signals,
) -> None:
    before = signal.getsignal(number)
    query = Query(3, number)
    ended = end(query)
    assert ended.code == 128 + number
    assert ended.rows.startswith("copy t: 12 rows in 2 micro-batches")
    assert query.stopped_after == 4
    assert signal.getsignal(number) is before


def test_it_is_stopped_when_its_time_is_over() -> None:
    query = Query(10**9)
    assert end(query, grace_ms=0).code == 128 + signal.SIGTERM
    assert query.stopped_after == 1


def test_one_that_ends_by_itself_is_not_stopped_and_one_line_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    query = Query(0, None)
    with pytest.raises(typer.Exit):
        end(query).tell()
    assert query.stopped_after == -1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_pipeline_is_told_what_is_wrong_before_spark_starts() -> None:
    for words, said in (
        (["nothing"], "no pipeline; there are archive"),
        (["archive", "/nowhere", "t"], "Missing option '--topic'"),
        (["archive", "/nowhere", "t", "--topic=t", "--checkpoint=c"], "/nowhere does not exist"),
        (["archive", "/", "t", "--topic=t", "--checkpoint=c", "--grace=soon"], "--grace is 'soon'"),
    ):
        done = CliRunner().invoke(app, ["run", *words])
        assert done.exit_code != 0
        assert said in done.output or said in str(done.exception)


class CancelledError(Exception):
    """What a piece of work raises when its jobs are cancelled."""


class Context:
    """Spark's context, which can cancel what runs."""

    def __init__(self) -> None:
        self.was_cancelled = threading.Event()

    def cancelAllJobs(self) -> None:  # noqa: N802 - as Spark's
        self.was_cancelled.set()


class Session:
    """A session with a context."""

    def __init__(self) -> None:
        self.sparkContext = Context()


def pieces_of(session: Session) -> Iterator[Callable[[], int]]:
    """Give a piece that ends, and one that runs until it is cancelled."""

    def run() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        assert session.sparkContext.was_cancelled.wait(60)
        raise CancelledError

    yield lambda: 5
    yield run
    raise AssertionError("no other piece begins")


def test_a_piece_that_outlasts_its_grace_is_broken_off_and_the_last_line_says_so() -> None:
    session = Session()
    ended = attend_pieces(session, "replay t", pieces_of(session), grace_ms=0)  # type: ignore[arg-type]
    assert ended.code == 128 + signal.SIGTERM
    assert ended.rows.startswith("replay t: 5 rows in 1 piece")
    assert ended.rows.endswith("; the piece that ran was broken off")


def test_a_piece_that_fails_by_itself_is_an_error() -> None:
    def fail() -> int:
        raise CancelledError

    with pytest.raises(CancelledError):
        attend_pieces(Session(), "replay t", iter([fail]), grace_ms=0)  # type: ignore[arg-type]
