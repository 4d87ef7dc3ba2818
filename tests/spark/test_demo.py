"""The demo, as ``make demo`` runs it: what it shows, what it leaves, and what it proposes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark


def test_the_demo_shows_rates_and_checks_and_leaves_one_log_and_table_to_look_at(
    tmp_path: Path,
) -> None:
    earlier = tmp_path / "build" / "demo" / "earlier"
    earlier.mkdir(parents=True)

    words = [sys.executable, "-m", "kafkalog.jobs.demo", "--flights=2000"]
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    lines = ran.stdout.splitlines()
    for bar in ("flights → log", "log → Delta"):
        assert any(bar in line and "flights/s" in line for line in lines), ran.stdout
    assert any(line.startswith("checks") and "5/5" in line for line in lines), ran.stdout
    left = sorted(entry.name for entry in (tmp_path / "build" / "demo").iterdir())
    assert left == ["delta", "log", "spark.log"]
    commands = [line for line in lines if line.startswith("  ")][-3:]
    for command in commands:
        shown = subprocess.run(
            command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (shown.returncode, shown.stderr) == (0, ""), command
        assert shown.stdout
