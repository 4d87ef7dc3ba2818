"""Where the bytes of a run are that is appended to a log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kafkalog.files.regular import write_all

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

__all__ = ["BufferSource", "Source"]


class Source(Protocol):
    """Where the bytes of a run are; positions are those in the run's batch table."""

    def copy(self, position: int, size: int, target: int, target_position: int) -> None:
        """Copy bytes into the open file ``target``."""
        ...

    def link_as(self, path: Path) -> bool:
        """Give the file of the run the name ``path`` too; return False if that cannot be done.

        Raises:
            FileExistsError: there is such a file.
        """
        ...


@dataclass(frozen=True, slots=True)
class BufferSource:
    """A run in memory: uint8[n], whose positions count from its beginning."""

    data: npt.NDArray[np.uint8]

    def copy(self, position: int, size: int, target: int, target_position: int) -> None:
        """Write the bytes."""
        write_all(target, self.data[position : position + size].data, target_position)

    def link_as(self, path: Path) -> bool:
        """Return False: there is no file."""
        del path
        return False
