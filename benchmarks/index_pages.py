"""How many pages of an offset index a lookup touches: warm section first, against plain search.

A page that a lookup touches and that nobody else needs is a page fault, and on a busy machine a
read from the disk. So what counts is not the time of a lookup in a warm cache but the number of
distinct pages: for *hot* targets, those of a reader at the tail of the log, and for *cold* ones.

    python -m benchmarks.index_pages
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from benchmarks.page_counts import counted_pages

from kafkalog.streaming.log.indexes import OFFSET_ENTRY, WARM_BYTES, OffsetIndex, OffsetPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["INDEX_SIZES", "PageCounts", "count_pages", "plain_lookup", "write_index"]

INDEX_SIZES: Final = (1, 10, 100, 512, 1024, 1025, 2048, 8192, 65536, 1310720)
"""In entries of 8 bytes; the last is 10 MiB, what a broker preallocates."""

_OFFSETS_PER_ENTRY: Final = 100
_LOOKUPS: Final = 50


class PageCounts(NamedTuple):
    """Distinct pages of some lookups: of each alone at most, and of all together."""

    most: int
    together: int


def write_index(path: Path, entries: int) -> None:
    """Write an index with an entry every 100 offsets and 4 KiB."""
    content = np.empty(entries, OFFSET_ENTRY)
    content["offset"] = np.arange(1, entries + 1) * _OFFSETS_PER_ENTRY
    content["position"] = np.arange(1, entries + 1) * 1024
    path.write_bytes(content.tobytes())


def plain_lookup(index: OffsetIndex, offset: int) -> OffsetPosition:
    """Find what ``OffsetIndex.lookup`` finds, by a binary search over all entries."""
    low, high = -1, len(index) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if index.read(middle, middle + 1)[0]["offset"] <= offset - index.base_offset:
            low = middle
        else:
            high = middle - 1
    if low < 0:
        return OffsetPosition(index.base_offset, 0)
    entry = index.read(low, low + 1)[0]
    return OffsetPosition(index.base_offset + int(entry["offset"]), int(entry["position"]))


def count_pages(
    index: OffsetIndex,
    lookup: Callable[[OffsetIndex, int], OffsetPosition],
    targets: list[int],
) -> PageCounts:
    """Count the pages that looking the targets up touches."""
    most = 0
    with counted_pages() as read:
        for target in targets:
            read.reset()
            lookup(index, target)
            most = max(most, read.pages)
        read.reset()
        for target in targets:
            lookup(index, target)
        return PageCounts(most, read.pages)


def _targets(entries: int, *, hot: bool) -> list[int]:
    """Choose offsets in the warm section, or all over the index."""
    chosen = random.Random(entries)
    warm = WARM_BYTES // OFFSET_ENTRY.itemsize
    first = max(0, entries - warm) if hot else 0
    return [chosen.randint(first, entries) * _OFFSETS_PER_ENTRY + 1 for _ in range(_LOOKUPS)]


def _rows(folder: Path) -> Iterator[str]:
    for entries in INDEX_SIZES:
        path = folder / f"{0:020d}.index"
        write_index(path, entries)
        with OffsetIndex(path, 0) as index:
            cells = [
                count_pages(index, lookup, _targets(entries, hot=hot))
                for hot in (True, False)
                for lookup in (OffsetIndex.lookup, plain_lookup)
            ]
        counts = "  ".join(f"{cell.most:6d} {cell.together:6d}" for cell in cells)
        yield f"{entries:9d} {entries * 8:10d}  {counts}"


def main() -> None:
    """Print the table."""
    print(f"distinct pages of 4 KiB: in one lookup at most, and in {_LOOKUPS} lookups together\n")
    print(f"{'':20}  {'hot targets':^28}  {'cold targets':^28}")
    print(f"{'':20}  {'warm first':^13}  {'plain':^13}  {'warm first':^13}  {'plain':^13}")
    print(f"{'entries':>9} {'bytes':>10}  " + "  ".join([f"{'one':>6} {'all':>6}"] * 4))
    with tempfile.TemporaryDirectory() as folder:
        for row in _rows(Path(folder)):
            print(row)


if __name__ == "__main__":
    main()
