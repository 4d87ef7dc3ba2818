"""What a commit came to, also where the thread that made it was left behind amid it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafkalog.errors import (
    CommitError,
    KafkaLogError,
    LogDirectoryError,
    UnknownTopicOrPartitionError,
)
from kafkalog.files.stalling import outlast

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kafkalog.checkpoints.commit_stamp import CommitStamp
    from kafkalog.checkpoints.commit_state import CommitState
    from kafkalog.model import TopicPartition
    from kafkalog.streaming.commit.append import PartitionAppend
    from kafkalog.streaming.commit.commit_plan import CommitPlan
    from kafkalog.streaming.store.log_set import LogSet

__all__ = ["Begun", "Outcome"]

_TRIES: Final = 3
"""How often a batch of several nodes is begun: a mount that comes and goes may be in its way."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a commit came to: whether it appended, and the ends of the partitions it wrote."""

    appended: bool
    sequence: int
    end_offsets: dict[TopicPartition, int]

    @classmethod
    def of(cls, state: CommitState, appends: Sequence[PartitionAppend]) -> Outcome:
        """Return what it comes to if ``state`` is published."""
        ends = {each.plan.topic_partition: each.plan.end_offset for each in appends}
        return cls(True, state.sequence, ends)


class Begun:
    """What a commit of several nodes has begun, should a node stall and it begin again.

    Nobody else can commit in between: the locks of the other nodes pass on. So the newest state
    tells whether what had begun was published.
    """

    def __init__(self) -> None:
        self._stamp: CommitStamp | None = None
        self._outcome: Outcome | None = None

    def note(self, state: CommitState, appends: Sequence[PartitionAppend]) -> None:
        """Note what is about to be published."""
        self._stamp, self._outcome = state.stamp, Outcome.of(state, appends)

    def published(self, log_set: LogSet) -> Outcome | None:
        """Return the outcome of what had begun, if it was published; else it was taken back."""
        stamp, self._stamp = self._stamp, None
        return self._outcome if stamp is not None and stamp == log_set.state.stamp else None

    def until_done(self, plan: CommitPlan, commit: Callable[[], Outcome]) -> Outcome:
        """Do ``commit``; of several nodes again without one that stalls, or that has vanished.

        Raises:
            CommitError: whether it was published is not known, since too few nodes are left.
            OSError, KafkaLogError: as ``commit``.
        """
        if not plan.has_nodes:
            return commit()

        def once() -> Outcome:
            before = self._stamp
            try:
                return commit()
            except (OSError, KafkaLogError):
                if self._stamp is not before:
                    self._stamp = None  # who fails by himself has seen to what he began
                raise

        def go_on() -> Outcome:
            return outlast(once, plan.directories, plan.policy.lag_ms)

        try:
            for _ in range(_TRIES - 1):
                with suppress(OSError, LogDirectoryError, UnknownTopicOrPartitionError):
                    return go_on()
            return go_on()
        except (OSError, KafkaLogError) as error:
            if self._stamp is None:
                raise
            raise CommitError(
                f"whether commit {self._stamp.sequence} will be published is not known: a node "
                f"stalled amid it, and the others cannot tell ({error}). A query, and a write with "
                "an id of its own, finds that out itself when it runs again"
            ) from error
