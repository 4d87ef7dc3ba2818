"""The blocks of docs/recipes.md and docs/first-hour.md, run one after the other in one folder."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["FIRST_HOUR", "HOW_TOS", "PAGE", "Block", "blocks_of", "blocks_on", "follow"]

PAGE: Final = Path(__file__).parents[2] / "docs" / "recipes.md"
FIRST_HOUR: Final = PAGE.with_name("first-hour.md")
HOW_TOS: Final = tuple(PAGE.with_name(f"{name}.md") for name in ("parsing", "windows", "testing"))
"""Pages that need nothing of each other."""
Block = tuple[str, str]
"""A language, empty for what a shell is given or shows, and the text."""

_HOME: Final = "/home/you"
"""The folder of who follows a page, as its blocks show it."""

_BLOCK: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FIRST_WITH_SPARK: Final = "## A topic as a Delta table"
_THE_TOPIC: Final = 1


def blocks_of(*, with_spark: bool) -> list[Block]:
    """Return the blocks of the recipes with Spark, or without; both begin with the topic's."""
    plain, heading, rest = PAGE.read_text(encoding="utf-8").partition(_FIRST_WITH_SPARK)
    assert heading, f"the page has no heading {_FIRST_WITH_SPARK}"
    without = _BLOCK.findall(plain)
    return [*without[:_THE_TOPIC], *_BLOCK.findall(rest)] if with_spark else without


def blocks_on(page: Path) -> list[Block]:
    """Return all blocks of a page, but for those of Python that need a jar, a broker or pytest."""
    found: list[Block] = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [block for block in found if block[0] != "py"]


def follow(
    blocks: Sequence[Block], folder: Path, names: Mapping[str, Any], *, in_one_python: bool = False
) -> dict[str, Any]:
    """Run blocks, and compare what they print with what the page shows; return what they named.

    The process is in ``folder`` already, for Python's blocks; ``names`` are what these know, and
    what earlier ones have named if all are run ``in_one_python``. What Python prints is in the
    block after it, which has no command.
    """
    printed = ""
    known = dict(names)
    for language, block in blocks:
        if language == "python":
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(block, block[:80], "exec"), known if in_one_python else dict(names))
            printed = out.getvalue()
        elif block.startswith("$ "):
            _compare(_shell(block, folder), block)
        else:
            _compare(printed, block)
            printed = ""
    assert not printed, "the page does not show what its last block prints"
    return known


def _compare(found: str, block: str) -> None:
    found, shown = _comparable(found), _comparable(block)
    assert found == shown, f"the page shows\n{shown}and this is what came:\n{found}"


def _shell(block: str, folder: Path) -> str:
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
    return shown.replace(str(folder), _HOME)


def _comparable(text: str) -> str:
    """Drop what differs each time: times, ids of topics, and so the width of columns."""
    text = re.sub(r"(?<![\w/-])[\w-]{22}(?![\w/.-])", "ID", text)
    text = re.sub(r"  +", "  ", text)
    text = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "TIME", text)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines() if line.strip())
