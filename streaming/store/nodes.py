"""Where a commit says what it is about to do, and where it publishes: on one node, today.

A node is a machine's log directories, which are locked and published together. What lies in their
roots beside the logs is written here and nowhere else::

    declare     kafkalog.unfinished (keeps brokers out), kafkalog.intent    before the first byte
    publish     kafkalog.commit                                             the first rename counts
    withdraw    takes the two of ``declare`` away                           after either end

REQUIRES, for all that changes something: the locks of the directories are held.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalog.checkpoints.broker import remove_clean_shutdown_marker
from kafkalog.checkpoints.commit_stamp import load_stamp
from kafkalog.checkpoints.intent import INTENT_FILE, load_intent
from kafkalog.files.atomic import write_atomically
from kafkalog.files.regular import fsync_directory
from kafkalog.streaming.store.guard import keep_brokers_out, let_brokers_in
from kafkalog.streaming.store.publishing import write_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kafkalog.checkpoints.commit_stamp import CommitStamp
    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.checkpoints.intent import Intent

__all__ = ["Node"]


@dataclass(frozen=True, slots=True)
class Node:
    """The log directories of a node; ``members`` gives them by member id."""

    members: Mapping[str, Path]

    @property
    def directories(self) -> list[Path]:
        """The log directories."""
        return list(self.members.values())

    def member_of(self, folder: Path) -> str:
        """Return the member id of a log directory."""
        known = {path: member for member, path in self.members.items()}
        return known.get(folder) or known[Path(os.path.realpath(folder))]

    def intents(self) -> Iterator[Intent]:
        """Read the intents that lie there, one for each directory that has one.

        Raises:
            OSError, CheckpointError: one cannot be read.
        """
        found = (load_intent(folder) for folder in self.directories)
        return (intent for intent in found if intent is not None)

    def stamps(self) -> Iterator[CommitStamp]:
        """Read which commits the directories hold, one after the other.

        Raises:
            OSError, CheckpointError: that cannot be read.
        """
        found = (load_stamp(folder) for folder in self.directories)
        return (stamp for stamp in found if stamp is not None)

    def declare(self, intent: Intent) -> None:
        """Say in every directory what is about to happen, durably, and keep brokers out.

        The folder's fsync covers guard and mark, too.
        """
        content = intent.to_bytes()
        for folder in self.directories:
            keep_brokers_out(folder)
            remove_clean_shutdown_marker(folder, fsync=False)
            write_atomically(folder / INTENT_FILE, content)

    def publish(self, state: CommitState, check: Callable[[], None]) -> OSError | None:
        """Make a state the truth, unless ``check``, called right before the rename, raises.

        Return why it may not survive a loss of power; None where it does.

        Raises:
            OSError: nothing was published.
            CommitError: another writer has published meanwhile; or it is not known whether this
                state was.
        """
        return write_state(state, self.members, check=check)

    def withdraw(self, *, durable: bool) -> None:
        """Remove the intent, which is over, and let a broker in again.

        ``durable``: the intent must not come back with a loss of power, since what it names was
        taken back, and another commit gets its sequence number.
        """
        for folder in self.directories:
            (folder / INTENT_FILE).unlink(missing_ok=True)
            if durable:
                fsync_directory(folder)
        for folder in self.directories:
            let_brokers_in(folder)
