"""``make mutations``: take each guard out, and write down how soon that is found.

The table goes into docs/evidence.md, between its two marks. One that is not found is an error.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.simulation.mutations import MUTATIONS, find

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE: Final = Path(__file__).parents[2] / "docs" / "evidence.md"
_MARKS: Final = ("<!-- mutations -->", "<!-- end of mutations -->")
_HEAD: Final = (
    "| without | what happens | what finds it |",
    "| --- | --- | --- |",
)


def main() -> int:
    """Run all mutations, or those that are named; returns 1 if one is not found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="of CPU, for each")
    parser.add_argument("--only", help="run only those with this in their name; other rows stay")
    given = parser.parse_args()
    rows, missed = _rows(), 0
    for name, what in _finds(given.only or "", given.seconds):
        missed += what is None
        sys.stdout.write(f"{name}: {what or 'NOT FOUND'}\n")
        sys.stdout.flush()
        rows[name] = f"| {name} | {MUTATIONS[name].breaks} | {what or 'nothing'} |"
    if not missed:
        _write([rows[name] for name in MUTATIONS if name in rows])
    return 1 if missed else 0


def _rows() -> dict[str, str]:
    """Read the rows that are there, by guard."""
    table = PAGE.read_text().partition(_MARKS[0])[2].partition(_MARKS[1])[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines[2:]}


def _write(rows: list[str]) -> None:
    before, _, rest = PAGE.read_text().partition(_MARKS[0])
    after = rest.partition(_MARKS[1])[2]
    PAGE.write_text(before + "\n".join([_MARKS[0], "", *_HEAD, *rows, "", _MARKS[1]]) + after)


def _finds(only: str, seconds: float) -> Iterator[tuple[str, str | None]]:
    """Take guards out; yields what finds each, if anything does."""
    for name in (name for name in MUTATIONS if only in name):
        yield name, _by_history(name, seconds)


def _by_history(name: str, seconds: float) -> str | None:
    found = find(name, seconds)
    if found.result is None:
        return None
    sys.stdout.write(f"  {found.result.found[0]}\n")
    return f"history {found.histories}, {found.seconds:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
