"""Which nodes a history has: how many directories each has, and whether the last is a witness."""

from __future__ import annotations

from dataclasses import dataclass

from kafkalog.files.paths import split_paths

__all__ = ["Layout"]


@dataclass(frozen=True)
class Layout:
    """The nodes of a set, by how many log directories each has: ``d0``, ``d1`` and so on."""

    directories: tuple[int, ...]
    has_witness: bool = False
    """Whether the last one votes, and holds no partitions."""

    @property
    def names(self) -> list[list[str]]:
        """The names of the directories of each node."""
        found, first = [], 0
        for count in self.directories:
            found.append([f"d{number}" for number in range(first, first + count)])
            first += count
        return found

    @property
    def with_data(self) -> int:
        """How many nodes hold partitions."""
        return len(self.directories) - self.has_witness

    @property
    def majority(self) -> int:
        """How many nodes decide."""
        return len(self.directories) // 2 + 1

    def node_of(self, name: str) -> int:
        """Return the node that a directory is of, by its name."""
        return next(node for node, names in enumerate(self.names) if name in names)

    def paths(self, root: str) -> tuple[str, ...]:
        """Return the log directories below a folder, which know the nodes that they are of."""
        return split_paths(self.text(root))

    def text(self, root: str) -> str:
        """Return the path that names all nodes."""
        parts = [",".join(f"{root}/{name}" for name in names) for names in self.names]
        if self.has_witness:
            parts[-1] = f"witness:{parts[-1]}"
        return ";".join(parts)
