"""Which commit a state is of.

A sequence number is not enough. If one of two writers has lost its locks, both may publish the same
number, and even the same content. So each commit has a random id, which its intent and its state
carry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kafkalog.checkpoints.sealed_file import read_head
from kafkalog.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PREPARED_FILE", "STATE_FILE", "CommitStamp", "load_stamp"]

STATE_FILE: Final = "kafkalog.commit"
PREPARED_FILE: Final = f"{STATE_FILE}.prepared"
"""A state of several nodes that is not decided yet, beside the one in place."""


class CommitStamp(NamedTuple):
    """The sequence number of a commit, and its id; "" where none was noted."""

    sequence: int
    commit_id: str


def load_stamp(directory: Path) -> CommitStamp | None:
    """Read of which commit the state of a log directory is, and nothing else; None without one.

    Raises:
        CheckpointError: it is no file that a release of kafkalog has written.
        OSError: as the system says.
    """
    path = directory / STATE_FILE
    head = read_head(path)
    if head is None:
        return None
    sequence, commit_id = head.get("sequence"), head.get("commit", "")
    if type(sequence) is not int or not isinstance(commit_id, str):
        raise CheckpointError(
            f"{path} holds what no release of kafkalog has written: {head!r:.200}"
        )
    return CommitStamp(sequence, commit_id)
