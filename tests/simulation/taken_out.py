"""A plugin of pytest: ``-p tests.simulation.taken_out --without GUARD`` runs tests without it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.simulation.mutations import MUTATIONS, mutated

if TYPE_CHECKING:
    import pytest

__all__ = ["is_missed"]

_ROOT: Final = Path(__file__).parents[2]
_FAILED: Final = 1
"""What pytest exits with if tests ran, and one of them failed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--without", required=True, help="the guard that is taken out")


def pytest_configure(config: pytest.Config) -> None:
    """Take the guard out."""
    undo = contextlib.ExitStack()
    undo.enter_context(mutated(config.getoption("--without")))
    config.add_cleanup(undo.close)


def is_missed(name: str) -> bool:
    """Run the test that holds a guard, without that; returns whether it fails.

    Raises:
        RuntimeError: it was not run at all.
    """
    test = f"tests/{MUTATIONS[name].test}"
    plugin = ["-p", "tests.simulation.taken_out", "--without", name]
    given = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", *plugin, test]
    done = subprocess.run(given, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, _FAILED) or "error" in done.stdout.splitlines()[-1]:
        raise RuntimeError(f"{name}: {test} cannot be run:\n{done.stdout}{done.stderr}")
    return done.returncode == _FAILED
