"""The first script of README.md, run by somebody who has nothing but an environment."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.distributions import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark


def test_the_first_script_prints_what_the_readme_shows(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    steps = readme.partition("## First steps")[2].partition("\n## ")[0]
    (script,) = re.findall(r"```python\n(.*?)```", steps, re.DOTALL)
    output = re.findall(r"```\n(\+-.*?)```", steps, re.DOTALL)[0]
    (tmp_path / "first.py").write_text(script, encoding="utf-8")

    ran = subprocess.run(
        [sys.executable, "first.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.stdout.strip() == output.strip(), ran.stderr[-3000:]
