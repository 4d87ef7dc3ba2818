"""A pipeline that is asked to end: when it is stopped, and what is said of it."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from kafkalog.jobs.attended import Ended, attend
from kafkalog.jobs.cli.app import app


class Query:
    """A query that runs ``looks`` more looks' worth of a micro-batch once a signal has come."""

    name = "copy t"
    isActive = True  # noqa: N815 - as Spark's

    def __init__(self, looks: int, number: signal.Signals | None = signal.SIGTERM) -> None:
        self._looks = looks
        self._number = number
        self.stopped_after = -1
        self.looked = 0
        self.recentProgress = [
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
