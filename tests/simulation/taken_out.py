"""A plugin of pytest: runs the tests that are named for guards, each with its guard taken out.

All are collected once. Then each runs in a fork of that process, which ends with it: whatever a
patch, or the test under it, leaves behind in modules and caches, no other test sees. Before that,
it runs with the guard, once for all guards that it is named for: a test that fails anyway holds
nothing.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Final

from _pytest.runner import runtestprotocol
from tests.simulation.mutations import MUTATIONS, mutated

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import pytest

__all__ = ["PASSED", "is_missed", "outcomes"]

_ROOT: Final = Path(__file__).parents[2]
PASSED, _FAILED, _BROKEN = 0, 1, 2
"""What a fork exits with: its tests passed, one failed, or one did not run as a test should."""
_WHOLE: Final = ""
"""In the place of a guard's name: nothing is taken out."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption("--without", action="append", default=[], help="a guard that is taken out")
    parser.addoption("--outcomes", required=True, help="the file that gets a line for each")


def pytest_runtestloop(session: pytest.Session) -> bool:
    """Run each test in a fork, with its guard taken out, in place of pytest's own loop."""
    by_test: dict[str, list[pytest.Item]] = {}
    for item in session.items:
        by_test.setdefault(item.nodeid.partition("[")[0], []).append(item)
    whole: dict[str, int] = {}
    with Path(session.config.getoption("--outcomes")).open("w", encoding="utf-8") as file:
        for name in session.config.getoption("--without"):
            test = _path(name)
            if test not in whole:
                whole[test] = _run_in_fork(by_test[test], _WHOLE)
            file.write(f"{whole[test]} {_run_in_fork(by_test[test], name)} {name}\n")
            file.flush()
    return True


def _path(name: str) -> str:
    return f"tests/{MUTATIONS[name].test}"


def _run_in_fork(items: Sequence[pytest.Item], without: str) -> int:
    with warnings.catch_warnings():
        # nothing has run in this process yet, so that its threads hold no lock
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = _BROKEN
        try:
            code = _run(items, without)
        except BaseException:  # noqa: BLE001 - the fork must not go on as if it were pytest
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _run(items: Sequence[pytest.Item], without: str) -> int:
    with mutated(without) if without else contextlib.nullcontext():
        for item in items:
            for report in runtestprotocol(item, log=False, nextitem=None):
                if report.when == "call" and report.failed:
                    return _FAILED
                if not report.passed:
                    sys.__stderr__.write(f"{item.nodeid}, {report.when}: {report.longreprtext}\n")
                    return _BROKEN
    return PASSED


def outcomes(names: Collection[str]) -> Iterator[tuple[str, int, int]]:
    """Run the tests of guards; yields each guard, what its test does with it and without it.

    Raises:
        RuntimeError: tests were not run at all, or one ended otherwise than by passing or failing.
    """
    if not names:
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "outcomes")
        given = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", __name__]
        given += ["--outcomes", str(file), "--basetemp", str(Path(folder, "tests"))]
        given += [option for name in names for option in ("--without", name)]
        given += list(dict.fromkeys(_path(name) for name in names))
        done = subprocess.run(given, cwd=_ROOT, capture_output=True, text=True, check=False)
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    if done.returncode != 0 or len(lines) != len(names):
        raise RuntimeError(f"tests of guards cannot be run:\n{done.stdout}{done.stderr}")
    for line in lines:
        whole, without, name = line.split(" ", 2)
        if {whole, without} - {str(PASSED), str(_FAILED)}:
            raise RuntimeError(f"{name}: {_path(name)} cannot be run:\n{done.stdout}{done.stderr}")
        yield name, int(whole), int(without)


def is_missed(name: str) -> bool:
    """Whether the test that holds a guard passes with it, and fails without it."""
    ((_, whole, without),) = outcomes([name])
    return whole == PASSED != without
