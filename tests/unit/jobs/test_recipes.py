"""The recipes of docs/recipes.md, as they stand on the page: one after the other in one folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.corpus import UnpackedCase

import kafkalog

PAGE = Path(__file__).parents[3] / "docs" / "recipes.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def shell(block: str, folder: Path) -> str:
    """Run the commands of a block; return it with what they print in place of what it shows."""
    environment = {**os.environ, "COLUMNS": "200"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    shown = ""
    for line in (each for each in block.splitlines() if each.startswith("$ ")):
        ran = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line[2:]],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{line}\n{ran.stdout}{ran.stderr}"
        shown += line + "\n" + ran.stdout
    return comparable(shown)


def comparable(text: str) -> str:
    """Drop blanks at the ends of lines, which editors do not keep, and what the time was."""
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "TIME", text)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


@pytest.mark.long
def test_each_block_does_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = UnpackedCase("p06-transactions", tmp_path / "case")
    (tmp_path / "broker").symlink_to(case.path)
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) >= 10
    for language, block in blocks:
        if language == "python":
            exec(compile(block, str(PAGE), "exec"), {})
        else:
            assert shell(block, tmp_path) == comparable(block)
    played = kafkalog.read("logs", "txn", columns=["value"]).read_all()
    there = kafkalog.read("broker", "txn", options={"kafka.isolation.level": "read_committed"})
    assert sorted(played["value"].to_pylist()) == sorted(there.read_all()["value"].to_pylist())
    for copy in ("restored", "erased"):
        rows = kafkalog.read(copy, "flights", options={"includeHeaders": True}).read_all()
        assert {str(each) for each in rows["headers"].to_pylist()} == {
            "[{'key': 'client', 'value': b'web-3'}]"
        }
    assert b"IAH-SFO" not in b"".join(
        each.read_bytes() for each in (tmp_path / "erased").rglob("*") if each.is_file()
    )
