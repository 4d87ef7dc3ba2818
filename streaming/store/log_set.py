"""The log directories that are written as one set: who belongs to it, and what it has committed.

A set has an id, and each of its directories a member id; every copy of the commit state names them
all. So a directory that is missing (not mounted), was copied, or belongs elsewhere is noticed,
where an empty folder in its place would start all of its partitions again at offset 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafkalog.errors import DurabilityError
from kafkalog.streaming.log.log_dir import LogDirs
from kafkalog.streaming.log.retired_files import Removed
from kafkalog.streaming.store.deleted import without_deleted
from kafkalog.streaming.store.partition_states import in_present_format
from kafkalog.streaming.store.publishing import lost_locks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.checkpoints.intent import Intent
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.nodes import Node

__all__ = ["LogSet"]


@dataclass
class LogSet:
    """An opened set; whoever has it holds the locks of all its directories.

    ``state`` is the newest state of any directory. ``verify_locks`` raises if the locks are lost.
    ``removed`` are files of segments that others had deleted, which went when it was opened.
    """

    state: CommitState
    node: Node
    verify_locks: Callable[[], None] = lambda: None  # of a look, which has none
    removed: Removed = field(default_factory=Removed)

    @property
    def members(self) -> Mapping[str, Path]:
        """The log directories by member id."""
        return self.node.members

    @property
    def directories(self) -> list[Path]:
        """The log directories."""
        return self.node.directories

    def partitions(self) -> Mapping[TopicPartition, PartitionDirectory]:
        """Find the partitions, in order; those of topics that are being deleted are gone."""
        return without_deleted(LogDirs(self.directories).partitions(), self.state)

    def unfinished(self) -> list[Intent]:
        """List the intents that no state has published; more than one only after a crash in one."""
        pending = [each for each in self.node.intents() if each.sequence > self.state.sequence]
        return [intent for slot, intent in enumerate(pending) if intent not in pending[:slot]]

    def is_outdated(self) -> bool:
        """Return whether a directory holds a newer state than this one, or another one as new.

        Raises:
            OSError, CheckpointError: that cannot be read.
        """
        known = self.state.stamp
        return any(s != known and s.sequence >= known.sequence for s in self.node.stamps())

    def check_current(self) -> None:
        """See that the locks are held, and that nobody has published since this was opened.

        Raises:
            CommitError: somebody has, though the locks seemed to be held.
            LogDirectoryError: they are lost.
            OSError, CheckpointError: that cannot be read.
        """
        self.verify_locks()
        if self.is_outdated():
            raise lost_locks(self.directories[0], self.state.sequence + 1)

    def publish(self, state: CommitState, *conditions: Callable[[LogSet], None]) -> None:
        """Make ``state`` the truth. The first rename is the commit: after it nothing is undone.

        REQUIRES: the locks are held. That is looked at, and ``conditions`` are, right before it.

        Raises:
            OSError: nothing was published.
            LogDirectoryError: likewise, since the locks are lost.
            CommitError: likewise, since another writer has published meanwhile; or it is not known
                whether this was, since what is there cannot be read, or came after it.
            DurabilityError: it was published, and may not survive a loss of power.
        """

        def check() -> None:
            self.check_current()
            for condition in conditions:
                condition(self)

        state = in_present_format(state, self.directories)
        failed = self.node.publish(state, check)
        self.state = state
        if failed is not None:
            raise DurabilityError(
                f"commit {state.sequence} is published and its rows are visible, but a loss of "
                f"power may take it away: {failed}. Do not write the rows again as new ones: a "
                "query that runs its batch again, or a write under the same id and version, makes "
                "them durable"
            ) from failed

    def make_durable(self) -> None:
        """Let the state survive a loss of power: who published it may have ended before that.

        It is written again. To sync what is there would not tell whether that has failed before.

        Raises:
            OSError: it may not survive.
            CommitError: another writer has published meanwhile.
        """
        self.state = in_present_format(self.state, self.directories)
        failed = self.node.publish(self.state, self.check_current)
        if failed is not None:
            raise failed
