"""``make mutations``: take each guard out, and write down how soon that is found.

The table goes into docs/guarantees.md, between its two marks. One that is not found is an error.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from tests.simulation.mutations import MUTATIONS, find

PAGE: Final = Path(__file__).parents[2] / "docs" / "guarantees.md"
_MARKS: Final = ("<!-- mutations -->", "<!-- end of mutations -->")
_HEAD: Final = (
    "| without | what happens | seeds until found | seconds |",
    "| --- | --- | ---: | ---: |",
)


def main() -> int:
    """Run all mutations, or those that are named; returns 1 if one is not found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600.0, help="of CPU, for each")
    parser.add_argument("--only", help="run only those with this in their name; writes nothing")
    given = parser.parse_args()
    lines, missed = [], 0
    for name, mutation in MUTATIONS.items():
        if given.only and given.only not in name:
            continue
        found = find(name, given.seconds)
        missed += found.result is None
        shown = "NOT FOUND" if found.result is None else found.result.found[0]
        sys.stdout.write(f"{name}: {found.histories} histories, {found.seconds:.0f} s: {shown}\n")
        sys.stdout.flush()
        cells = (name, mutation.breaks, found.histories, f"{found.seconds:.1f}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    if not given.only and not missed:
        before, _, rest = PAGE.read_text().partition(_MARKS[0])
        after = rest.partition(_MARKS[1])[2]
        table = "\n".join([_MARKS[0], "", *_HEAD, *lines, "", _MARKS[1]])
        PAGE.write_text(before + table + after)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
