"""Whether the directories of a set tell of one history of commits.

Example: a commit is killed, and one directory is replaced by an older copy. The batch is committed
again, perhaps with other rows. Then the first directory comes back, with records of the killed
commit where the others have those of the new one. Its log ends where it should, so only its commit
state and its intent tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkalog.errors import LogDirectoryError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kafkalog.checkpoints.commit_stamp import CommitStamp
    from kafkalog.checkpoints.intent import Intent

__all__ = ["check_one_history"]


def check_one_history(stamps: Mapping[Path, CommitStamp], intents: Mapping[Path, Intent]) -> None:
    """Refuse a directory that was away while the others committed in place of its last commit.

    All directories get each state, and lose their intents, before the next commit is declared. So
    a directory whose state is older than its intent is at the last commit of all: that one is
    unfinished, or published elsewhere already. ``stamps`` are those of all states.

    Raises:
        LogDirectoryError: there is one.
    """
    if not stamps:
        return
    newest = max(stamps.values(), key=lambda stamp: stamp.sequence)
    for folder, stamp in stamps.items():
        is_other = stamp.sequence == newest.sequence and stamp.commit_id != newest.commit_id
        intent = intents.get(folder)
        if intent is not None and stamp.sequence < intent.sequence <= newest.sequence:
            is_other |= (intent.sequence, intent.commit_id) != newest
        if is_other:
            raise LogDirectoryError(
                f"log directory {folder} has begun or made another commit than the others after "
                f"commit {stamp.sequence}: it was replaced by a copy meanwhile, and its records "
                "may be of another attempt of a batch. Nothing was changed. Put back the copy that "
                "was written to since, or restore all log directories of the set from one backup"
            )
