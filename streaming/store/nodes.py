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
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kafkalog.checkpoints.broker import remove_clean_shutdown_marker
from kafkalog.checkpoints.commit_stamp import load_stamp
from kafkalog.checkpoints.intent import INTENT_FILE, load_intent
from kafkalog.errors import LogDirectoryError
from kafkalog.files.atomic import write_atomically
from kafkalog.files.regular import fsync_directory
from kafkalog.streaming.store.guard import keep_brokers_out, let_brokers_in
from kafkalog.streaming.store.publishing import write_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

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

    def nodes(self) -> Mapping[int, Mapping[str, Path]]:
        """Return the log directories by node and member id; a set that is not replicated has 0."""
        return {0: self.members}

    def is_whole(self, state: CommitState) -> bool:
        """Whether all directories are there that ``state`` names."""
        return {*state.member_ids} <= self.members.keys()

    @property
    def decides_alone(self) -> bool:
        """Whether what was not published cannot be published by others any more."""
        return True

    def member_of(self, folder: Path) -> str:
        """Return the member id of a log directory."""
        known = {path: member for member, path in self.members.items()}
        return known.get(folder) or known[Path(os.path.realpath(folder))]

    def member_at(self, folder: Path) -> str | None:
        """Return the member id of a log directory, None of one that is not there."""
        return self.member_of(folder)

    def node_of(self, member: str) -> int | None:
        """Return the node of a member id; None of one that is not there."""
        return 0 if member in self.members else None

    def has(self, folder: Path) -> bool:
        """Whether a log directory is of a node that is not out: there is no other one."""
        del folder
        return True

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

    def check_declared(self, stamp: CommitStamp) -> None:
        """See that every directory says what is about to happen: one may have been away meanwhile.

        What was written then lies below its mount, and nobody would take back what is appended.

        Raises:
            LogDirectoryError: one does not.
            OSError, CheckpointError: that cannot be known.
        """
        for folder in self.directories:
            intent = load_intent(folder)
            if intent is None or (intent.sequence, intent.commit_id) != stamp:
                raise LogDirectoryError(
                    f"{folder / INTENT_FILE}, written a moment ago, is not there: was {folder} "
                    "away? Nothing was appended there"
                )

    def publish(self, state: CommitState, check: Callable[[], None]) -> OSError | None:
        """Make a state the truth, unless ``check``, called right before the rename, raises.

        Return why it may not survive a loss of power; None where it does.

        Raises:
            OSError: nothing was published.
            CommitError: another writer has published meanwhile; or it is not known whether this
                state was.
        """
        return write_state(state, self.members, check=check)

    def repeated(self, state: CommitState) -> CommitState:
        """Return what a state that is in place is published as once more."""
        return state

    def settled(self, state: CommitState) -> CommitState:
        """Return a state as it can be published: nodes that are out are not in sync."""
        return state

    def taking_back(self, intent: Intent) -> AbstractContextManager[None]:
        """Return what an unfinished commit is taken back in: one node has nobody to stand in."""
        del intent
        return nullcontext()

    def apart(self) -> Iterator[tuple[Node, AbstractContextManager[None]]]:
        """Return each node by itself, and what something is done to it in: it may fail alone."""
        yield self, nullcontext()

    def working_at(self, folder: Path) -> AbstractContextManager[None]:
        """Return what a log directory is changed in: one node has nobody to stand in for it."""
        del folder
        return nullcontext()

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
