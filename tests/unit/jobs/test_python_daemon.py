"""Connections that Spark closes leave no traces; all other failures of its processes do."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from pyspark import daemon

from kafkalog.jobs import python_daemon


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("print", "traceback"):
        monkeypatch.setattr(daemon, name, getattr(daemon, name, print), raising=False)
    monkeypatch.setattr(daemon, "manager", lambda: None)
    python_daemon.main()


def show(error: BaseException) -> None:
    """Print a failure in each of the ways in which PySpark's daemon does."""
    names: Any = daemon
    with suppress(type(error)):
        try:
            raise error
        finally:
            names.print("failed to flush:", names.traceback.format_exc())
            names.traceback.print_exc()


def test_a_connection_that_spark_has_closed_leaves_no_trace(
    capfd: pytest.CaptureFixture[str],
) -> None:
    show(BrokenPipeError(32, "Broken pipe"))
    assert capfd.readouterr() == ("", "")


def test_another_failure_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    show(ValueError("wrong"))
    printed = capfd.readouterr()
    assert "failed to flush: Traceback" in printed.out
    assert "ValueError: wrong" in printed.err
