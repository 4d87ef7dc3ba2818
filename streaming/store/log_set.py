"""Log set: directories that are written as one, what is committed, and how a state is published.

A set has an id, and each of its directories a member id; every copy of the commit state names them
all. So a directory that is missing (not mounted), was copied, or belongs elsewhere is noticed,
where an empty folder in its place would start all of its partitions again at offset 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

from kafkalog.checkpoints.intent import Intent
from kafkalog.errors import DurabilityError, KafkaLogError
from kafkalog.files.deferred_signals import Interrupted
from kafkalog.files.system import remembered, system
from kafkalog.files.timeouts import at
from kafkalog.model import TopicPartition
from kafkalog.streaming.log.swap import Removed, remove_retired
from kafkalog.streaming.options.topic_settings import LogConfig
from kafkalog.streaming.store.log_dirs import without_deleted
from kafkalog.streaming.store.nodes import lost_locks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.checkpoints.intent import IntendedPartition
    from kafkalog.streaming.log.log_dir import PartitionDirectory
    from kafkalog.streaming.store.nodes import Node

__all__ = [
    "CommittedSet",
    "Condition",
    "LogSet",
    "Schedule",
    "StateCondition",
    "publish_guarded",
    "remove_dead",
]


def _of_a_look() -> None:
    """Verify no locks: who only looks has none."""


@dataclass
class LogSet:
    """An opened set; whoever has it holds the locks of all its directories.

    ``state`` is the newest state of any directory. ``verify_locks`` raises if the locks are lost.
    ``removed`` are files of segments that others had deleted, which went when it was opened.
    ``published`` is the state that readers find.
    """

    state: CommitState
    node: Node
    verify_locks: Callable[[], None] = _of_a_look
    removed: Removed = field(default_factory=Removed)
    published: CommitState = field(init=False)

    def __post_init__(self) -> None:
        self.published = self.state

    @property
    def members(self) -> Mapping[str, Path]:
        """The log directories by member id."""
        return self.node.members

    @property
    def directories(self) -> list[Path]:
        """The log directories."""
        return self.node.directories

    def partitions(self) -> Mapping[TopicPartition, PartitionDirectory]:
        """Find the partitions, in order; those of topics that are being deleted are gone.

        Of a replicated set each is where its leader has it. Who has no locks is told which replicas
        are in sync now, and gets their stamps: another process may be about to change them.
        """
        has_locks = self.verify_locks is not _of_a_look
        return without_deleted(self.node.partitions(self.state, has_locks=has_locks), self.state)

    def unfinished(self) -> list[Intent]:
        """List the intents that no state has published; more than one only after a crash in one.

        A node that was away may have an older one, of a commit that was never published: what it
        names counts where the partition has not grown since.
        """
        found = (self._still_to_roll_back(each) for each in self.node.intents())
        pending = [intent for intent in found if intent is not None]
        return [intent for slot, intent in enumerate(pending) if intent not in pending[:slot]]

    def _still_to_roll_back(self, intent: Intent) -> Intent | None:
        state = self.state
        if intent.sequence > state.sequence:
            return intent
        if not state.is_replicated or intent.stamp == state.stamp:
            return None
        left = tuple(each for each in intent.partitions if not self._is_beyond(each))
        return replace(intent, partitions=left) if left else None

    def _is_beyond(self, intended: IntendedPartition) -> bool:
        """Whether a take-back would cut committed records, or nobody can tell that it would not."""
        topic = self.state.topics.get(intended.key)
        known = None if topic is None else topic.partitions.get(intended.partition)
        grows = intended.end_offset > intended.start_offset
        return known is None or not grows or known.log_end != intended.start_offset

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

        state = self.node.settled(state)
        failed = self.node.publish(state, check)
        self.state = self.published = state
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
        self.state = self.node.repeated(self.state)
        failed = self.node.publish(self.state, self.check_current)
        self.published = self.state
        if failed is not None:
            raise failed


Condition = Callable[[LogSet], None]
"""Looks at an opened set, and raises what forbids to continue."""


class CommittedSet(Protocol):
    """What a set of log directories and a log in an object store show of what is committed."""

    @property
    def state(self) -> CommitState:
        """The commit state."""
        ...

    @property
    def directories(self) -> Sequence[Path]:
        """The log directories, or the root of the log."""
        ...

    def partitions(self) -> Mapping[TopicPartition, PartitionDirectory]:
        """Find the partitions, in order."""
        ...


StateCondition = Callable[[CommittedSet], None]
"""A condition that also a log in an object store can be asked for."""


# ----------------------------------------------------------------------------------------------
# Publish a state that is followed by changes which a broker must not start amid.
#
# The intent names no partition: there is nothing to roll back. It keeps brokers out, and tells
# the next session that something may be left to do if this one is cut off.


def publish_guarded(log_set: LogSet, state: CommitState, writer: str) -> None:
    """Declare and publish a state; the intent, with ``writer`` in it, stays.

    REQUIRES: the locks are held, and nothing is unfinished.

    Raises:
        OSError, KafkaLogError: nothing is published; or it is, and the intent is there.
    """
    log_set.check_current()
    try:
        log_set.node.declare(Intent.of_state(state, writer))
        log_set.publish(state)
    except (Exception, Interrupted):
        _withdraw(log_set, state)
        raise


def _withdraw(log_set: LogSet, state: CommitState) -> None:
    """Take the intent away, unless the state is published after all."""
    with suppress(OSError, KafkaLogError):
        log_set.verify_locks()
        is_open = log_set.state.stamp != state.stamp and log_set.node.decides_alone
        if is_open and not log_set.is_outdated():
            log_set.node.withdraw(durable=True)


# ----------------------------------------------------------------------------------------------
# Delete files of expired segments on a schedule, once their delay is over.


class Schedule:
    """When the next round of a set is due, and after which partition it begins, by directories.

    Each kind of work has a class of its own, of which a process remembers one object.
    """

    def __init__(self) -> None:
        self._due: dict[tuple[Path, ...], float] = {}
        self._after: dict[tuple[Path, ...], TopicPartition] = {}

    def begins(self, directories: Sequence[Path], interval_s: float) -> bool:
        """Tell whether a round is due, and note when the one after it is."""
        which, now = tuple(directories), system.monotonic()
        if now < self._due.get(which, now):
            return False
        self._due[which] = now + interval_s
        return True

    def chosen(
        self, directories: Sequence[Path], partitions: Iterable[TopicPartition], most: int
    ) -> list[TopicPartition]:
        """Choose at most so many partitions, from those on that the last round has left.

        The first round begins anywhere: processes that live for one alone are to come to all.
        """
        which, found = tuple(directories), sorted(partitions)
        after = self._after.pop(which, None)
        if after is not None:
            first = sum(key <= after for key in found)
        else:
            first = system.random_id().int % len(found) if len(found) > most else 0
        chosen = found[first:] + found[:first]
        if len(chosen) > most:
            chosen = chosen[:most]
            self._after[which] = chosen[-1]
        return chosen


# ----------------------------------------------------------------------------------------------
# Files of segments that were deleted go with any later session, once their delay is over.
#
# Whoever renames a segment to ``.deleted`` does not wait until readers are through with it, and
# may never come again. So each process that changes a set looks for such files: in its first
# session, and then every five minutes, in some folders at a time.


_LOGGER: Final = logging.getLogger("kafkalog.log")

_INTERVAL_S: Final = 300
_MOST_FOLDERS: Final = 500
"""That one session looks into: some 30 microseconds each."""


class _RemovalSchedule(Schedule):
    pass


def remove_dead(log_set: LogSet) -> None:
    """Unlink what was deleted long enough ago, of topics that the state knows; fails nobody.

    REQUIRES: the locks are held. ``log_set.removed`` tells what has gone.
    """
    schedule = remembered(_RemovalSchedule)
    if not schedule.begins(log_set.directories, _INTERVAL_S):
        return
    try:
        _remove(log_set, schedule)
    except (KafkaLogError, OSError) as error:
        _LOGGER.warning("deleted segments were not removed, a later session will: %s", error)


def _remove(log_set: LogSet, schedule: Schedule) -> None:
    topics = {
        TopicPartition(topic.name, number): topic
        for topic in log_set.state.topics.values()
        for number in topic.partitions
    }
    now_ms = system.time_ns() // 1_000_000
    there: dict[TopicPartition, list[PartitionDirectory]] = {}
    for found in log_set.node.replicas():
        for key, where in found.items():
            there.setdefault(key, []).append(where)
    known = (key for key in there if key in topics)
    for key in schedule.chosen(log_set.directories, known, _MOST_FOLDERS):
        delay_ms = LogConfig.of_topic(topics[key].settings).file_delete_delay_ms
        for where in there[key]:
            with at(where.path):
                removed = remove_retired(where.path, now_ms - delay_ms)
            log_set.removed = log_set.removed.plus(removed)
