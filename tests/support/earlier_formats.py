"""Log directories that earlier releases wrote, in ``tests/data``, and the rows in them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from tests.support.archives import unpack
from tests.support.scenes import tasks
from tests.support.sinking import Writer
from tests.support.states import version_of

import kafkalog

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SETS", "EarlierSet", "Rows", "values_of"]

_DATA: Final = Path(__file__).parents[1] / "data" / "commit-state-1"

SETS: Final = {
    "plain": 3,
    "two-directories": 2,
    "unfinished": 1,
    "unfinished-new-topic": 1,
    "published-once": 2,
    "left-to-the-system": 3,
    "after-a-broker": 2,
}
"""The sets of format 1, each with the next batch of its query."""

Rows = dict[str, dict[int, list[tuple[int, str]]]]
"""By topic and partition: offsets and values."""


@dataclass(frozen=True)
class EarlierSet:
    """A set of log directories, unpacked; ``rows`` is what could be read when it was packed."""

    directories: tuple[Path, ...]
    rows: Rows
    next_batch: int

    @classmethod
    def unpacked(cls, name: str, folder: Path) -> Self:
        """Unpack one of :data:`SETS` into a folder."""
        unpack(_DATA / f"{name}.tar.gz", folder)
        return cls.at(name, folder)

    @classmethod
    def at(cls, name: str, folder: Path) -> Self:
        """Return the set that was unpacked into a folder, or copied there."""
        known = json.loads((_DATA / f"{name}.json").read_text(encoding="ascii"))
        rows = {
            topic: {
                int(number): [(offset, value) for offset, value in found]
                for number, found in partitions.items()
            }
            for topic, partitions in known.items()
        }
        return cls(tuple(sorted(folder.iterdir())), rows, SETS[name])

    def read(self) -> Rows:
        """Read what is committed, of the topics that had rows when the set was packed."""
        table = kafkalog.read(
            [str(each) for each in self.directories],
            list(self.rows),
            columns=["topic", "partition", "offset", "value"],
            strings=["value"],
        ).read_all()
        found: Rows = {}
        for row in table.to_pylist():
            partitions = found.setdefault(row["topic"], {})
            partitions.setdefault(row["partition"], []).append((row["offset"], row["value"]))
        return found

    def versions(self, name: str) -> set[int]:
        """Return the versions of the files of that name in the log directories."""
        paths = (folder / name for folder in self.directories)
        return {version_of(path.read_bytes()) for path in paths if path.exists()}

    def writer(self, run: str = "run-2", **options: str) -> Writer:
        """Return the query that wrote the set, in a later run."""
        return Writer(*self.directories, run=run, allowBrokerDirectory="true", **options)

    def write(self, batch_id: int, run: str = "run-2") -> list[str]:
        """Let that query write a batch; gives its values."""
        topics: Sequence[str] = tuple(self.rows)
        batches = tasks(batch_id, 12, topics)
        self.writer(run).write(batch_id, *batches, digest=f"digest of {batch_id}")
        return [value for batch in batches for value in batch.column("value").to_pylist()]


def values_of(rows: Rows) -> list[str]:
    """Return all values, sorted."""
    return sorted(
        value for partitions in rows.values() for found in partitions.values() for _, value in found
    )
